"""Files when there is no room: what was there stays, nothing half written is left."""

import subprocess
import sys
from pathlib import Path

import pytest

resource = pytest.importorskip("resource", reason="no limits of file sizes on this system")

# The limit on the size of a file stands for a full disk: writing fails half way with an OSError.
LIMIT = """
import resource, sys
from flarecore.errors import IndexFileError
from flarecore.retrieval.index_io import write_index_file
from flarecore.whole_file import open_whole, write_whole
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
path = sys.argv[1]
"""

WRITES = {
    "index": """
try:
    write_index_file(path, {"kind": "bm25"}, {"a": [b"x" * 4000], "b": [b"y" * 4000] * 3})
except IndexFileError as error:
    print(error)
""",
    "text": """
try:
    write_whole(path, "z" * 20000)
except OSError as error:
    print(error)
""",
    "bytes": """
try:
    with open_whole(path) as file:
        for _ in range(50):
            file.write(b"p" * 1000)
except OSError as error:
    print(error)
""",
}


@pytest.mark.parametrize("kind", list(WRITES))
@pytest.mark.parametrize("existed", [False, True])
def test_no_room_for_a_file(tmp_path: Path, kind: str, existed: bool) -> None:
    path = tmp_path / "file"
    if existed:
        path.write_bytes(b"what was there")
    out = subprocess.run([sys.executable, "-c", LIMIT + WRITES[kind], str(path)],
                         capture_output=True, text=True, check=True)
    assert "too large" in out.stdout and "file" in out.stdout, out.stdout + out.stderr
    assert [p.name for p in tmp_path.iterdir()] == (["file"] if existed else [])
    assert not existed or path.read_bytes() == b"what was there"
