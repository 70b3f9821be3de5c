"""``python -m flarecore``."""

from __future__ import annotations

import sys

from flarecore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
