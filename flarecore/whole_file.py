"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from flarecore.validation import check_path

__all__ = ["open_whole", "write_whole"]


@contextlib.contextmanager
def open_whole(
    path: str | os.PathLike[str], *, needs_seek: bool = False
) -> Iterator[IO[bytes]]:
    """A file to write to; it replaces what is at `path` in one step when the block ends well.

    A symbolic link is followed, as ``open`` does: the file that it leads to is replaced, or made if
    it is not there, and the link stays. A pipe or a device, which cannot be replaced, is written
    to.

    Parameters
    ----------
    path : path
    needs_seek : bool
        The block moves about in the file: a pipe or a device is refused.

    Raises
    ------
    OSError
        The file cannot be written; what was there is as it was.
    """
    # Not beside the link: a rename stays within one file system.
    target = Path(os.path.realpath(check_path("path", path)))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if target.exists() and not target.is_file():
        if needs_seek and not target.is_dir():
            raise OSError(errno.ESPIPE, "a pipe or a device, not a file", str(path))
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
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable, where the system can do that; the file is whole anyway."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text as UTF-8; see :func:`open_whole`."""
    data = text.encode("utf-8")
    with open_whole(path) as file:
        file.write(data)
