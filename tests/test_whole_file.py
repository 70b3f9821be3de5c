"""Files that are written whole or not at all, whatever is in their place."""

import errno
import os

import pytest

from flarecore.errors import IndexFileError
from flarecore.retrieval.index_io import index_info, write_index_file
from flarecore.whole_file import open_whole, write_whole


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    target, link = tmp_path / "page.html", tmp_path / "link.html"
    target.write_text("old")
    os.symlink("page.html", link)
    write_whole(link, "näw")
    assert link.is_symlink() and target.read_text(encoding="utf-8") == "näw"

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"No space left.*page\.html"):
        write_whole(target, "newer")
    assert target.read_text(encoding="utf-8") == "näw"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.html", "page.html"]


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "text")
    assert os.read(reader, 100) == b"text" and not pipe.is_file()
    os.close(reader)


def write_index(path):
    write_index_file(path, {"kind": "bm25"}, {"a": [b"x" * 100]})


def write_text(path):
    write_whole(path, "text")


@pytest.mark.parametrize("write", [write_index, write_text])
@pytest.mark.parametrize("existed", [False, True])
def test_a_link_is_followed(tmp_path, write, existed):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "v1.file", tmp_path / "current"
    if existed:
        target.write_bytes(b"old")
    os.symlink("far/v1.file", link)
    write(link)
    assert os.readlink(link) == "far/v1.file"
    written = target.read_bytes()
    write(tmp_path / "plain")
    assert written == (tmp_path / "plain").read_bytes()
    # Nothing is left beside the link or beside the file.
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["current", "far", "plain", "v1.file"]


@pytest.mark.parametrize("write", [write_index, write_text])
def test_links_that_lead_nowhere_stay(tmp_path, write):
    os.symlink("no/folder", tmp_path / "link")
    with pytest.raises((OSError, IndexFileError), match=r"link.*No such file|No such file.*link"):
        write(tmp_path / "link")
    assert os.readlink(tmp_path / "link") == "no/folder"


@pytest.mark.parametrize("write", [write_index, write_text])
def test_links_in_a_circle_stay(tmp_path, write):
    os.symlink("b", tmp_path / "a")
    os.symlink("a", tmp_path / "b")
    with pytest.raises((OSError, IndexFileError), match=os.strerror(errno.ELOOP)):
        write(tmp_path / "a")
    assert os.readlink(tmp_path / "a") == "b"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_an_index_behind_a_link_is_the_index(tmp_path):
    os.symlink("real.index", tmp_path / "link.index")
    write_index(tmp_path / "link.index")
    assert index_info(tmp_path / "real.index") == index_info(tmp_path / "link.index")


def test_what_is_written_out_of_order_needs_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(IndexFileError, match="pipe: the index cannot be written: a pipe or a dev"):
        write_index(pipe)
    with pytest.raises(OSError, match="not a file"), open_whole(os.devnull, needs_seek=True):
        pass
    with pytest.raises(IndexFileError, match="cannot be written: Is a directory"):
        write_index(tmp_path)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_a_folder_that_cannot_be_flushed_is_no_failure(tmp_path, monkeypatch):
    real = os.fsync

    def flush_files(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(22, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", flush_files)
    write_index(tmp_path / "i")
    assert index_info(tmp_path / "i")["kind"] == "bm25"
