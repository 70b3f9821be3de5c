"""The page of results: rows, machine and date, written by ``flarecore bench … --write FILE``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flarecore.bench import aims, tables
from flarecore.bench.rows import Report
from flarecore.errors import ConfigError

__all__ = ["render_page", "write_page"]

_INTRO = """Written by `flarecore bench`; change nothing by hand. README.md says how to run it and
what a row means, NOTES.md what was expected of each step and what it brought.
"""


def render_page(reports: Sequence[Report], command: str) -> str:
    """The page as Markdown.

    Parameters
    ----------
    reports : sequence of Report
        At least one, all of one run.
    command : str
        What was run.
    """
    first = reports[0]
    parts = [f"# {first.model} ({first.model_format}) on a CPU", "", _INTRO,
             *(f"- {line}" for line in first.machine.lines()), f"- `{command}`", ""]
    found = aims.aims(reports)
    if found:
        parts += ["## aims", "", aims.markdown(found)]
    parts += [tables.markdown(report) for report in reports]
    return "\n".join(parts)


def write_page(path: Path, reports: Sequence[Report], command: str) -> None:
    """Writes the page.

    Raises
    ------
    ConfigError
        The file cannot be written.
    """
    try:
        path.write_text(render_page(reports, command), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--write {path}: {error.strerror}") from error
