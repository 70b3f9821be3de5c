"""Rows of a GPU check, and the settings that its sections share."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["CheckRow", "Report", "Settings"]


@dataclass(frozen=True)
class Settings:
    """Where and how much. `device` is "cuda" or "interpreter"; `is_quick` takes small sizes."""

    device: str
    is_quick: bool

    @property
    def is_cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def torch_device(self) -> str:
        return "cuda" if self.is_cuda else "cpu"


@dataclass(frozen=True)
class CheckRow:
    """One line: what was looked at, what came out, and whether it is as it must be.

    `is_ok` is None for a measurement without an aim.
    """

    section: str
    name: str
    is_ok: bool | None
    value: float | None = None
    unit: str = ""
    detail: str = ""


@dataclass
class Report:
    """Collects rows; what one of them raises does not lose the others."""

    settings: Settings
    rows: list[CheckRow] = field(default_factory=list)
    show: Callable[[str], object] = print

    def add(self, row: CheckRow) -> None:
        self.rows.append(row)
        self.show(format_row(row))

    def check(self, section: str, name: str, test: Callable[[], str | None]) -> None:
        """Runs a check: it raises, or returns a remark."""
        begin = time.perf_counter()
        try:
            detail = test() or ""
        except Exception as error:
            self._failed(section, name, error)
            return
        self.add(CheckRow(section, name, True, time.perf_counter() - begin, "s", detail))

    def measure(self, section: str, name: str, unit: str,
                timing: Callable[[], float | tuple[float, str]], *,
                at_most: float | None = None, at_least: float | None = None) -> float | None:
        """Runs a timing; the value, or None if it failed. An aim counts on a device only."""
        try:
            out = timing()
        except Exception as error:
            self._failed(section, name, error)
            return None
        value, detail = out if isinstance(out, tuple) else (out, "")
        is_ok = None
        if self.settings.is_cuda and not self.settings.is_quick:
            if at_most is not None:
                is_ok, detail = value <= at_most, f"aim ≤ {at_most:g}  {detail}"
            elif at_least is not None:
                is_ok, detail = value >= at_least, f"aim ≥ {at_least:g}  {detail}"
        self.add(CheckRow(section, name, is_ok, value, unit, detail.strip()))
        return value

    def _failed(self, section: str, name: str, error: Exception) -> None:
        lines = str(error).strip().splitlines() or [""]
        where = traceback.extract_tb(error.__traceback__)[-1]
        self.add(CheckRow(section, name, False, detail=(
            f"{type(error).__name__}: {lines[0][:200]} ({where.name}, line {where.lineno})")))

    @property
    def num_failed(self) -> int:
        return sum(row.is_ok is False for row in self.rows)

    def to_dict(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]


def format_row(row: CheckRow) -> str:
    """One line of the table."""
    mark = {True: "ok", False: "FAILED", None: ""}[row.is_ok]
    value = "" if row.value is None else f"{row.value:.4g} {row.unit}"
    return f"{row.section:<12} {row.name:<44} {value:>16}  {mark:<6} {row.detail}".rstrip()
