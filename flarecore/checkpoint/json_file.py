"""JSON files of a checkpoint, and values of known kinds out of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarecore.errors import ModelFileError
from flarecore.wording import system_reason

__all__ = ["MAX_JSON_BYTES", "Section", "read_json", "read_text"]

# A tokenizer.json of 262,144 tokens with its merges has some 35 MB.
MAX_JSON_BYTES = 256 << 20


def read_text(path: Path, limit: int = MAX_JSON_BYTES) -> str:
    """A whole UTF-8 file. Raises ModelFileError if it is too large or cannot be read."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ModelFileError(f"{path}: no such file, or no regular file")
        size = path.stat().st_size
        if size > limit:
            raise ModelFileError(f"{path}: {size} bytes; the limit for such a file is {limit}")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: cannot be read: {system_reason(error)}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises
    ------
    ModelFileError
        The file is missing, too large or no JSON object.
    """
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # also integers of too many digits
        raise ModelFileError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: must hold a JSON object, holds {type(value).__name__}")
    return value


@dataclass(frozen=True)
class Section:
    """One object of a JSON file. Getters take null for a missing value.

    Attributes
    ----------
    values : mapping
        The object.
    where : str
        File, and place in it, for messages.
    defaults : mapping
        Values that missing keys have.

    Raises
    ------
    ModelFileError
        By each getter: the value is missing and has no default, is of another kind or out of range.
    """

    values: Mapping[str, Any]
    where: str
    defaults: Mapping[str, Any]

    def get(self, key: str) -> Any:
        value = self.values.get(key)
        return self.defaults.get(key) if value is None else value

    def fail(self, key: str, expected: str) -> ModelFileError:
        if self.get(key) is None:
            return ModelFileError(f"{self.where}: {key} is missing; expected {expected}")
        return ModelFileError(f"{self.where}: {key} is {self.get(key)!r:.80}, expected {expected}")

    def integer(self, key: str, low: int, high: int) -> int:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(key, f"an integer from {low} to {high}")
        return value

    def positive(self, key: str) -> float:
        """A finite number above 0."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(key, "a number above 0")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number > 0):
            raise self.fail(key, "a finite number above 0")
        return number

    def boolean(self, key: str) -> bool:
        value = self.get(key)
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def string(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise self.fail(key, "a string")
        return value

    def section(self, key: str) -> Section:
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise self.fail(key, "an object")
        return Section(value, f"{self.where}: {key}", {})
