"""What the README says is run as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flarecore.cli.main import build_parser

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.models
def test_python_example_runs_as_written(tmp_path):
    example, server = blocks("python")
    assert len(example.splitlines()) <= 22 and len(server.splitlines()) <= 22
    file = tmp_path / "example.py"
    file.write_text(example + server + SERVE, encoding="utf-8")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "  searching: Ilse Marwede" in done.stdout
    assert "SentenceAccepted" in done.stdout and "num_prefilled=" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("cancelled {'num_sentences': 1,")


# A client that goes away with the first sentence.
SERVE = """
async def serve():
    async def send(text):
        task.cancel()

    task = asyncio.create_task(answer("Who was Ilse Marwede?", send, deadline_ms=1e6))
    await asyncio.wait([task])
    assert task.cancelled() and flare.config.deadline_ms is None

asyncio.run(serve())
engine.check_integrity()
"""


def test_commands_exist():
    commands = re.findall(r"^flarecore (.*?)(?:  +#.*)?$", "\n".join(blocks("sh")), re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        argv = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]
        build_parser().parse_args(argv)


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
