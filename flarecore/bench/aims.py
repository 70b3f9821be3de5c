"""The aims for two threads, and what a run shows of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flarecore.bench.rows import Report, Row

__all__ = ["Aim", "aims", "markdown"]


@dataclass(frozen=True)
class Aim:
    """``wanted`` is a limit, ``got`` what was measured; ``is_met`` compares them."""

    what: str
    wanted: str
    got: str
    is_met: bool


def aims(reports: Sequence[Report]) -> list[Aim]:
    """Every aim of which these reports say something.

    Parameters
    ----------
    reports : sequence of Report
        Of one model.
    """
    by_name = {report.benchmark: report for report in reports}
    found: list[Aim] = []
    if "decode" in by_name:
        found += _decode(by_name["decode"])
    if "prefill" in by_name:
        found += _prefill(by_name["prefill"])
    if "busy" in by_name:
        found += [_at_least("decode beside a busy neighbour, of the quiet speed", 0.5,
                            row.values["share_of_quiet_speed"])
                  for row in by_name["busy"].rows if row.engine.startswith("flarecore")]
    if "load" in by_name:
        found += [_at_most("process start to first token, s", 0.5, row.seconds.median)
                  for row in by_name["load"].rows
                  if row.seconds and row.engine.startswith("flarecore")]
    if "sampling" in by_name:
        found += _sampling(by_name["sampling"])
    if "answers" in by_name:
        found += [_at_least("8 whole answers at once against in turn, answers/s", 1.8,
                            row.values["answers_per_s_of_in_turn"])
                  for row in _own(by_name["answers"], {"at_once": 8})]
    if "retrieval" in by_name:
        found += _retrieval(by_name["retrieval"])
    if "quality" in by_name:
        found += _quality(by_name["quality"])
    return found


def markdown(found: Sequence[Aim]) -> str:
    """A table of them."""
    lines = ["| aim | wanted | measured | |", "|---|---|---|---|"]
    lines += [f"| {aim.what} | {aim.wanted} | {aim.got} | {'met' if aim.is_met else '**missed**'} |"
              for aim in found]
    return "\n".join(lines) + "\n"


def _at_least(what: str, wanted: float, got: float) -> Aim:
    return Aim(what, f"≥ {wanted:g}", f"{got:.3g}", got >= wanted)


def _at_most(what: str, wanted: float, got: float) -> Aim:
    return Aim(what, f"≤ {wanted:g}", f"{got:.3g}", got <= wanted)


def _own(report: Report, params: Mapping[str, int]) -> Iterator[Row]:
    """flarecore's rows with these sizes."""
    for row in report.rows:
        if row.engine.startswith("flarecore") and all(
                row.params.get(name) == value for name, value in params.items()):
            yield row


def _same_file(report: Report) -> str:
    """llama.cpp on the model's own file."""
    return f"llama.cpp {report.model_format}"


def _decode(report: Report) -> Iterator[Aim]:
    contexts = sorted({int(row.params["context"]) for row in report.rows})
    for context in contexts:
        for row in _own(report, {"context": context, "sequences": 1}):
            if row.case.endswith("1 sequence"):
                where = f"decode, context {context}"
                if (ratio := row.ratios.get(_same_file(report))) is not None:
                    yield _at_least(f"{where}, against llama.cpp on the same file", 2.0,
                                    ratio.median)
                if row.memory_share is not None:
                    yield _at_least(f"{where}, of the memory bound", 0.8, row.memory_share)
            elif row.params["rows"] == 4 and "cost_of_one_row" in row.values:
                yield _at_most(f"4 rows against one, context {context}", 1.4,
                               row.values["cost_of_one_row"])
    for row in _own(report, {"sequences": 8}):
        yield _at_least("8 sequences at once against one, tokens/s", 3.0,
                        row.values["tokens_per_s_of_one"])


def _prefill(report: Report) -> Iterator[Aim]:
    for row in _own(report, {"tokens": 512}):
        same = row.ratios.get(_same_file(report))
        if same is not None:
            yield _at_least("prefill of 512, against llama.cpp on the same file", 6.0, same.median)
        others = [ratio.median for name, ratio in row.ratios.items()
                  if name.startswith("llama.cpp") and name != _same_file(report)]
        if others:
            yield _at_least("prefill of 512, against its best other format", 2.2, min(others))


def _sampling(report: Report) -> Iterator[Aim]:
    limits = {49152: 0.01, 262144: 0.03}
    for row in report.rows:
        limit = limits.get(int(row.params["vocab_size"]))
        if limit is not None and row.engine.startswith("greedy"):
            yield _at_most(f"confidence and boundary of a decode step, {row.case}", limit,
                           row.values["share_of_step"])


def _retrieval(report: Report) -> Iterator[Aim]:
    """The aim is for a corpus of 6,119 passages; a smaller one shows nothing."""
    for row in _own(report, {"graph": 1}):
        if "embedding + HNSW" in row.engine and int(row.params["passages"]) >= 6119:
            assert row.seconds is not None
            weights = "8-bit weights" if " q8 " in row.engine else "float32"
            yield _at_most(f"query embedding ({weights}) + HNSW search, {row.case}, p50, ms", 3.0,
                           row.seconds.median * 1e3)


def _quality(report: Report) -> Iterator[Aim]:
    losses = {row.engine: float(row.values["loss"]) for row in report.rows}
    own, peer = losses.get("flarecore int8"), losses.get(_same_file(report))
    if own is not None and peer is not None:
        yield Aim("loss of perplexity, against llama.cpp on the same file", f"≤ {100 * peer:.3f}%",
                  f"{100 * own:.3f}%", own <= peer)
