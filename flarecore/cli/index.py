"""``flarecore index``: passages into an index file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flarecore.errors import ConfigError
from flarecore.quantization import QUANTIZE
from flarecore.wording import printable

if TYPE_CHECKING:
    from flarecore.retrieval.hybrid import HybridRetriever
    from flarecore.retrieval.stored import StoredRetriever

__all__ = ["RETRIEVERS", "add_parser", "run"]

RETRIEVERS = ("hnsw", "exact", "bm25", "hybrid")
_MAGIC = b"FLAREIDX"
_MAX_NAMED = 5  # files in a line
_INT: dict[str, Any] = {"type": int, "metavar": "N"}
_FLOAT: dict[str, Any] = {"type": float, "metavar": "X"}

# (title, kinds of index it is for, options as (name, how argparse reads it, help))
_GROUPS: tuple[tuple[str, tuple[str, ...], tuple[tuple[str, dict[str, Any], str], ...]], ...] = (
    ("sentence encoder", ("hnsw", "exact", "hybrid"), (
        ("encoder", {"metavar": "NAME_OR_DIR"}, "sentence encoder (default: minilm-l6-v2)"),
        ("quantize", {"choices": QUANTIZE},
         "8-bit weights of the encoder: less time from AVX2 on, nearly the same passages; q4 loses "
         "more (default: float32)"),
        ("threads", _INT, "threads of the encoder"))),
    ("graph, arXiv 1603.09320", ("hnsw", "hybrid"), (
        ("m", _INT, "M: links of a passage (default: 16)"),
        ("ef_construction", _INT, "efConstruction: candidates while building (default: 200)"),
        ("ef_search", _INT, "ef: candidates of a search (default: 64)"))),
    ("words", ("bm25", "hybrid"), (
        ("k1", _FLOAT, "how much repeats of a term count (default: 0.9)"),
        ("b", _FLOAT, "how much a long passage is marked down, 0 to 1 (default: 0.4)"),
        ("stop_words", {"action": argparse.BooleanOptionalAction},
         "leave English stop words out of queries (default: on)"),
        ("stemmer", {"metavar": "LANGUAGE"},
         "reduce words to their stems, such as english (default: off)"))),
)


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "index", parents=[common], allow_abbrev=False,
        help="make an index of documents",
        description="Reads passages from a .jsonl file ({\"text\", \"id\", \"title\", ...} a line, "
        "other keys become metadata), a .txt or .md document or a folder of them, and writes one "
        "index file.")
    parser.add_argument("source", metavar="DIR_OR_JSONL")
    parser.add_argument("-o", "--output", required=True, metavar="INDEX", help="the file to write")
    parser.add_argument("--force", action="store_true",
                        help="replace INDEX even if it is no index")
    parser.add_argument("--retriever", choices=RETRIEVERS, default="hnsw",
                        help="hnsw: by meaning; exact: the same without a graph, for small "
                             "collections; bm25: by words; hybrid: bm25 and hnsw together "
                             "(default: hnsw)")
    group = parser.add_argument_group("documents")
    group.add_argument("--max-words", type=int, default=100, metavar="N",
                       help="words of a passage (default: 100)")
    group.add_argument("--overlap", type=int, default=0, metavar="N",
                       help="words that the next passage repeats (default: 0)")
    group.add_argument("--title-in-text", action=argparse.BooleanOptionalAction, default=True,
                       help="search in the title and the text (default: on)")
    for title, kinds, options in _GROUPS:
        group = parser.add_argument_group(f"{title} ({', '.join(kinds)})")
        for name, how, text in options:
            group.add_argument(f"--{name.replace('_', '-')}", default=None, help=text, **how)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from flarecore.cli.display import make_console
    from flarecore.cli.progress import StageProgress
    from flarecore.retrieval.corpus import read_passages

    output = Path(args.output)
    options = _options(args)
    _check_output(output, args.force)
    # Empty first: what is wrong with the options shows before much is read.
    index, remark = _empty_index(args, options)
    notes = make_console(stderr=True)
    left_out: dict[str, list[str]] = {}
    with StageProgress(notes) as progress:
        passages = read_passages(
            args.source, max_words=args.max_words, overlap=args.overlap, progress=progress,
            left_out=lambda name, why: left_out.setdefault(why, []).append(name))
        for line in _left_out_lines(left_out):
            notes.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
        index.add(passages, progress=progress)
    index.save(output)
    size_kb = -(-output.stat().st_size // 1024)
    print(f"{output}: {len(passages)} passages, {remark}, {size_kb:,} KB")
    return 0


def _left_out_lines(left_out: Mapping[str, list[str]]) -> Iterator[str]:
    """A line for each reason why files were left out, with the first of them."""
    for why, names in left_out.items():
        files = f"{len(names)} file{'s' if len(names) > 1 else ''}"
        more = ", ..." if len(names) > _MAX_NAMED else ""
        yield f"{files} left out: {why}: {', '.join(map(printable, names[:_MAX_NAMED]))}{more}"


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of kinds of indexes that were given, once they fit the kind that is wanted."""
    given = {}
    for _, kinds, options in _GROUPS:
        for name, _, _ in options:
            value = getattr(args, name)
            if value is None:
                continue
            if args.retriever not in kinds:
                raise ConfigError(
                    f"--{name.replace('_', '-')} has no meaning with --retriever {args.retriever}, "
                    f"only with {', '.join(kinds)}")
            given[name] = value
    return given


def _empty_index(
    args: argparse.Namespace, options: dict[str, Any]
) -> tuple[StoredRetriever | HybridRetriever, str]:
    """The index without passages, and what it is in words."""
    from flarecore.retrieval import (
        BM25Retriever,
        ExactRetriever,
        HnswRetriever,
        HybridRetriever,
        SentenceEncoder,
        TextAnalyser,
    )

    common = {"title_in_text": args.title_in_text}
    parts: list[StoredRetriever] = []
    remarks = []
    if args.retriever in ("bm25", "hybrid"):
        stop_words = "english" if options.get("stop_words", True) else None
        constants = {name: options[name] for name in ("k1", "b") if name in options}
        parts.append(BM25Retriever.build(
            [], analyser=TextAnalyser(stop_words, options.get("stemmer")), **constants, **common))
        remarks.append("BM25")
    if args.retriever != "bm25":
        encoder = SentenceEncoder.load(
            options.get("encoder", "minilm-l6-v2"), threads=options.get("threads"),
            quantize=options.get("quantize"))
        graph = {name: options[name] for name in ("m", "ef_construction", "ef_search")
                 if name in options}
        parts.append(ExactRetriever(encoder, **common) if args.retriever == "exact"
                     else HnswRetriever.build([], encoder, **graph, **common))
        remarks.append(f"{encoder.dim} dimensions")
        if encoder.quantization is not None:
            remarks[-1] += (f" ({encoder.quantize} weights, relative RMS error "
                            f"{encoder.quantization.relative_rms_error:.2%})")
    return parts[0] if len(parts) == 1 else HybridRetriever(parts), " and ".join(remarks)


def _check_output(output: Path, force: bool) -> None:
    """Refuses a target that cannot be written or that would lose something else than an index."""
    if output.is_dir():
        raise ConfigError(f"{output}: is a directory; name a file")
    if not output.parent.is_dir():
        raise ConfigError(f"{output}: there is no directory {output.parent}")
    if output.exists() and not force:
        with output.open("rb") as file:
            start = file.read(len(_MAGIC))
        if start not in (b"", _MAGIC):
            raise ConfigError(
                f"{output}: exists and is no index; choose another name or add --force")
