"""Typed errors. Each message says what failed, the limit, what was got and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flarecore.result import FlareResult

__all__ = [
    "CallbackError",
    "CancelledError",
    "ClosedError",
    "ConfigError",
    "ContextOverflowError",
    "DeadlineExceeded",
    "FlarecoreError",
    "IndexFileError",
    "ModelFileError",
    "OutOfBlocksError",
    "PassageFileError",
    "RetrievalError",
    "RetrievalWarning",
    "SequenceBusyError",
    "UnsupportedError",
]


class RetrievalWarning(UserWarning):
    """A search will find little or nothing, for a reason that the passages or the filter show."""


class FlarecoreError(Exception):
    """Base of every error that flarecore raises on purpose.

    Attributes
    ----------
    partial : FlareResult or None
        What was accepted of an answer before the error ended it; None outside of an answer.
    """

    partial: FlareResult | None = None


class ConfigError(FlarecoreError, ValueError):
    """An argument or option is unknown, of the wrong type or out of range."""


class ModelFileError(FlarecoreError):
    """A model file is missing, damaged, hostile or of a kind that is not supported."""


class ContextOverflowError(FlarecoreError):
    """The tokens asked for do not fit into the model's context."""


class OutOfBlocksError(FlarecoreError):
    """The KV cache budget has no free block left."""


class SequenceBusyError(FlarecoreError):
    """An operation already runs on the sequence."""


class CancelledError(FlarecoreError):
    """The operation was cancelled; the sequence is as it was before it."""


class DeadlineExceeded(FlarecoreError):
    """The operation's deadline passed; the sequence is as it was before it."""


class ClosedError(FlarecoreError):
    """The engine or the sequence was closed, before the call or while it was at work."""


class UnsupportedError(FlarecoreError):
    """Valid, but not built or not available on this machine."""


class IndexFileError(FlarecoreError):
    """An index file is missing, damaged, hostile or of another version."""


class PassageFileError(IndexFileError):
    """A file of encoded passages is damaged, hostile, of another version or of another model."""


class RetrievalError(FlarecoreError):
    """A retriever raised (the cause is chained) or returned something wrong."""


class CallbackError(FlarecoreError):
    """A callable of the options (trigger, query and others) raised; the cause is chained."""
