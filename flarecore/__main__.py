"""``python -m flarecore``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from flarecore.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(main())
