"""Progress of long work: bars on a terminal, a few lines elsewhere, always on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["StageProgress", "waiting"]

_STAGES = {"read": "reading (bytes)", "embed": "embedding passages", "graph": "linking passages",
           "analyse": "reading the words of passages",
           "join": "joining the model's parts (MB)"}


class StageProgress:
    """Shows calls of the form ``progress(stage, done, total)``; a context manager.

    Parameters
    ----------
    console : rich.console.Console
        Where to write; bars only if it is a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._last: dict[str, int] = {}

    def __enter__(self) -> StageProgress:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bars = Progress(
                TextColumn("{task.description}"), BarColumn(bar_width=None),
                MofNCompleteColumn(), console=self._console)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        name = _STAGES.get(stage, stage)
        if self._bars is None:
            # At most one line for each tenth.
            tenth = 10 * done // max(total, 1)
            if self._last.get(stage) != tenth:
                self._last[stage] = tenth
                self._console.print(f"{name}: {done} of {total}")
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(name, total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)


@contextlib.contextmanager
def waiting(console: Console, text: str) -> Iterator[None]:
    """Says what is being done while it is being done."""
    if console.is_terminal and not console.is_dumb_terminal:
        with console.status(text):
            yield
        return
    console.print(text)
    yield
