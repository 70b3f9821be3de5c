"""The command line in process."""

from flarecore.cli import main as cli
from flarecore.demo_data import DATA
from flarecore.events import Event

FAST = ["--max-sentences", "1", "--max-new-tokens", "24"]


def use_private_cache(tmp_path_factory, monkeypatch):
    """Caches of this test run alone, and errors as users see them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("FLARECORE_DEBUG", raising=False)


def index_biographies(tmp_path_factory):
    """An index of the demonstration's biographies."""
    path = tmp_path_factory.mktemp("index") / "bios.index"
    assert cli.main(["index", str(DATA / "biographies.jsonl"), "-o", str(path)]) == 0
    return path


def run(argv):
    """Exit code of a command line, also where argparse ends it."""
    try:
        return cli.main(argv)
    except SystemExit as end:
        return end.code


def failure(argv, capsys):
    """Exit code and standard error of a command that must not print anything else."""
    code = run(argv)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return code, err


def events_of(text):
    return [Event.from_json(line) for line in text.splitlines()]
