"""torch and transformers, imported when they are needed."""

from __future__ import annotations

from typing import Any

from flarecore.errors import UnsupportedError

__all__ = ["import_transformers"]


def import_transformers() -> tuple[Any, Any]:
    """``(torch, transformers)``. Raises UnsupportedError if they are not installed."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UnsupportedError(
            "this reference needs torch and transformers: pip install flarecore[transformers]"
        ) from error
    return torch, transformers
