"""A grid over θ and β: which runs it takes, and where their results go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flarecore.errors import ConfigError
from flarecore.eval.settings import MethodRequest
from flarecore.validation import check_number, check_strings

__all__ = ["Grid"]


@dataclass(frozen=True)
class Grid:
    """Runs over θ and β.

    Parameters
    ----------
    method : str
        The method's label.
    thetas, betas : tuple of float
        Rows and columns; no `betas`: β stays what it is.
    labels : tuple of tuple of str
        (len(thetas), max(len(betas), 1)) label of the run of each cell. Cells share a run where β
        cannot matter: θ = 0 makes no query of a draft.
    requests : tuple of MethodRequest
        The different runs; empty for a grid that was read back.
    """

    method: str
    thetas: tuple[float, ...]
    betas: tuple[float, ...]
    labels: tuple[tuple[str, ...], ...]
    requests: tuple[MethodRequest, ...] = ()

    @classmethod
    def make(
        cls, method: MethodRequest, thetas: Sequence[float], betas: Sequence[float] | None
    ) -> Grid:
        """The grid of a method."""
        requests: dict[str, MethodRequest] = {}
        rows = []
        for theta in thetas:
            row = []
            for beta in betas or (None,):
                more = [("theta", f"{theta:g}")]
                if beta is not None and theta > 0:
                    more.append(("beta", f"{beta:g}"))
                label = ":".join([method.label, *(f"{name}={value}" for name, value in more)])
                requests[label] = MethodRequest(label, method.name, (*method.settings, *more))
                row.append(label)
            rows.append(tuple(row))
        return cls(method.label, tuple(thetas), tuple(betas or ()), tuple(rows),
                   tuple(requests.values()))

    def to_dict(self) -> dict[str, Any]:
        """JSON values; :meth:`from_dict` gives the grid back, without its requests."""
        return {"method": self.method, "thetas": list(self.thetas), "betas": list(self.betas),
                "labels": [list(row) for row in self.labels]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> Grid:
        """The grid that :meth:`to_dict` wrote.

        Raises
        ------
        ConfigError
            Something is missing or wrong.
        """
        try:
            thetas = tuple(check_number(f"{where}: thetas", v, 0, 1) for v in data["thetas"])
            betas = tuple(check_number(f"{where}: betas", v, 0, 1) for v in data["betas"])
            labels = tuple(check_strings(f"{where}: labels", row) for row in data["labels"])
            method = data["method"]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{where}: is no grid of a sweep: {error!r}") from None
        columns = max(len(betas), 1)
        if not isinstance(method, str) or len(labels) != len(thetas) \
                or any(len(row) != columns for row in labels):
            raise ConfigError(
                f"{where}: must name {len(thetas)} rows of {columns} runs, got {labels!r:.80}")
        return cls(method, thetas, betas, labels)
