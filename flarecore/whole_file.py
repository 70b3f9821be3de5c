"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["open_whole", "write_whole"]


@contextlib.contextmanager
def open_whole(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write to; it replaces what is at `path` in one step when the block ends well.

    A link is followed; a pipe or a device, which cannot be replaced, is written to.

    Raises
    ------
    OSError
        The file cannot be written; what was there is as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with open(target, "wb") as device:
            yield device
        return
    # Not tempfile: its files are private to the user, this one gets the modes the umask allows.
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text as UTF-8; see :func:`open_whole`."""
    data = text.encode("utf-8")
    with open_whole(path) as file:
        file.write(data)
