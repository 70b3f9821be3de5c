"""flarecore: FLARE-direct (forward-looking active retrieval) inside the decoder."""

from __future__ import annotations

__version__ = "0.1.0"
