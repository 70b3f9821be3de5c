"""torch and transformers, imported when they are needed."""

from __future__ import annotations

from typing import Any

from flarecore.errors import UnsupportedError

__all__ = ["INSTALL_TRANSFORMERS", "import_transformers"]

INSTALL_TRANSFORMERS = (
    "pip install 'flarecore[transformers]' (brings torch, on Linux with 2 GB of CUDA packages; for "
    "its CPU build first: pip install torch --index-url https://download.pytorch.org/whl/cpu)")
"""How to get them, for messages."""


def import_transformers() -> tuple[Any, Any]:
    """``(torch, transformers)``. Raises UnsupportedError if they are not installed."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UnsupportedError(
            f"this reference needs torch and transformers: {INSTALL_TRANSFORMERS}"
        ) from error
    return torch, transformers
