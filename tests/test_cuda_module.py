"""flarecore._cuda as a module: its table of compiled kernels, its stub, its checks, no driver."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers_cuda import Emulation, Rows

import flarecore
from flarecore import _C
from flarecore.errors import ConfigError, UnsupportedError

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "csrc" / "cuda"
STUB = ast.parse((Path(flarecore.__file__).parent / "_cuda.pyi").read_text(encoding="utf-8"))
CALLS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
KEYWORD_CALLS = [name for name, node in CALLS.items() if node.args.kwonlyargs]
needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None, reason="no nvcc here: flarecore._cuda is not built"
)


@pytest.fixture
def cuda():
    return pytest.importorskip(
        "flarecore._cuda", reason="flarecore._cuda is not built ('flarecore doctor' says why)"
    )


def build(*options, expect=0, **environment):
    """setup.py build_ext of the CUDA module into a folder of its own -> what it printed."""
    result = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--only=_cuda", *options], cwd=ROOT,
        env={**os.environ, **environment}, capture_output=True, text=True)  # fmt: skip
    assert (result.returncode != 0) == (expect != 0), result.stdout + result.stderr
    return result.stdout + result.stderr


# ---- what the compiler makes of it ----


@needs_nvcc
def test_kernels_compile_without_spills_and_as_the_table_says():
    result = subprocess.run([sys.executable, FOLDER / "compile_table.py", "--check"],
                            capture_output=True, text=True)  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("| sm_90 |") == result.stdout.count("| sm_80 |") >= 12


def test_the_table_has_every_kernel():
    sources = "".join(p.read_text() for p in FOLDER.glob("*.cu"))
    kernels = re.findall(r"\b(\w+)_kernel\(const", sources)
    table = (FOLDER / "COMPILED.md").read_text()
    assert len(kernels) >= 5
    assert [k for k in kernels if f" {k} | " not in table] == []


# ---- building or leaving out ----


def test_without_nvcc_it_is_left_out_with_one_line(tmp_path):
    nowhere = {"CUDA_HOME": str(tmp_path)}
    printed = build(f"--build-lib={tmp_path}", **nowhere)
    assert re.fullmatch(r"· flarecore\._cuda is left out: nvcc not found in .*\n", printed)
    printed = build(f"--build-lib={tmp_path}", expect=1, FLARECORE_CUDA="1", **nowhere)
    assert "FLARECORE_CUDA=1, but flarecore._cuda cannot be built: nvcc not found" in printed


def test_it_can_be_forbidden_and_a_wrong_value_is_refused(tmp_path):
    printed = build(f"--build-lib={tmp_path}", FLARECORE_CUDA="0")
    assert printed == "· flarecore._cuda is left out: FLARECORE_CUDA=0\n"
    printed = build(f"--build-lib={tmp_path}", expect=1, FLARECORE_CUDA="yes")
    assert "FLARECORE_CUDA must be 1" in printed and "got 'yes'" in printed
    assert list(tmp_path.rglob("*.so")) == []


def fake_nvcc(folder, body):
    path = folder / "bin" / "nvcc"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return {"CUDA_HOME": str(folder)}


def test_an_nvcc_that_cannot_build_is_left_out_with_its_reason(tmp_path):
    old = fake_nvcc(tmp_path, 'echo "Cuda compilation tools, release 11.2, V11.2.152"')
    printed = build(f"--build-lib={tmp_path}", **old)
    assert "is version 11.2.152, older than 11.8" in printed
    (tmp_path / "broken").mkdir()
    broken = fake_nvcc(tmp_path / "broken", 'case "$1" in --version) echo "V12.4.99";; '
                       '--list-gpu-arch) echo "compute_80 compute_90";; '
                       '*) echo "error: unsupported GNU version!" >&2; exit 1;; esac')  # fmt: skip
    printed = build(f"--build-lib={tmp_path}", **broken)
    assert "nvcc 12.4.99 cannot build here: error: unsupported GNU version!" in printed
    assert "NVCC_CCBIN" in printed
    printed = build(f"--build-lib={tmp_path}", FLARECORE_CUDA_ARCHS="90 17", **broken)
    assert "FLARECORE_CUDA_ARCHS must name architectures from 80" in printed


# ---- stub ----


def test_stub_names_what_the_module_has(cuda):
    constants = {n.target.id for n in STUB.body if isinstance(n, ast.AnnAssign)}
    assert {n for n in vars(cuda) if not n.startswith("_")} == set(CALLS) | constants


def names_in(message):
    return re.search(r"(?:it takes|needs the arguments) (.*)", str(message.value))[1].split(", ")


@pytest.mark.parametrize("name", KEYWORD_CALLS)
def test_calls_take_what_the_stub_says(name):
    call = getattr(_C.testing, f"emulate_cuda_{name}")
    arguments = CALLS[name].args
    with pytest.raises(ConfigError, match="has no argument 'no_such'") as unknown:
        call(no_such=1)
    known = sorted(n for n in names_in(unknown) if n != "block_order")
    assert known == sorted(a.arg for a in arguments.kwonlyargs)
    with pytest.raises(ConfigError) as missing:
        call()
    required = [a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults,
                                            strict=True) if default is None]  # fmt: skip
    assert sorted(names_in(missing)) == sorted(required)


def test_the_module_checks_as_the_emulation_does(cuda):
    for name in KEYWORD_CALLS:
        with pytest.raises(ConfigError) as ours:
            getattr(cuda, name)()
        with pytest.raises(ConfigError) as emulated:
            getattr(_C.testing, f"emulate_cuda_{name}")()
        assert str(ours.value) == str(emulated.value).replace("emulate_cuda_", "")


# ---- no driver ----


def test_it_loads_and_answers_without_a_driver(cuda):
    assert cuda.device_count() >= 0 and cuda.build_info()["nvcc"]
    if cuda.device_count() > 0:
        pytest.skip("there is a device here")
    assert cuda.device_status().startswith("no CUDA device for runtime ")


def test_launches_without_a_device_are_refused(cuda):
    if cuda.device_count() > 0:
        pytest.skip("there is a device here")
    rows = Rows(Emulation(), np.zeros((1, 10), np.float32), [{}])
    kv = {"num_blocks": 4, "num_heads": 2, "token_bytes": 64, "block_stride_bytes": 4096,
          "stream": 0, "caches": [4096]}  # fmt: skip
    calls = [
        lambda: cuda.sample(**rows.arguments(), stream=0),
        lambda: cuda.copy_blocks(copies=[(0, 0, 1, 0, 32)], **kv),
        lambda: cuda.mark_seen(seen=4096, vocab_size=10, num_tokens=0, stream=0),
        lambda: cuda.gather_rows(source=4096, source_stride_bytes=4, num_source_rows=1,
                                 indices=64, num_rows=1, row_bytes=4, out=128, out_stride_bytes=4,
                                 stream=0),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(UnsupportedError, match="no CUDA device for runtime"):
            call()
    assert rows["tokens"][0] == 0 and rows["num_sampled"][0] == 0


# ---- argument checks of the sampler (test_cuda_memory.py has the others') ----

REFUSED = {
    "null pointer": ({"logits": 0}, "logits must be the address of device memory"),
    "negative pointer": ({"tokens": -8}, "tokens must be the address of device memory"),
    "no pointer": ({"flags": "x"}, "flags must be an integer, got 'x'"),
    "a bool": ({"num_rows": True}, "num_rows must be an integer, got True"),
    "misaligned": ({"logits": 4097}, "logits must be aligned to 4 bytes, got address 4097"),
    "misaligned choice": ({"choice_logits": 4098, "choice_stride": 10}, "choice_logits must be al"),
    "misaligned int64": ({"ints": 4100}, "ints must be aligned to 8 bytes"),
    "misaligned workspace": ({"workspace": 4104}, "workspace must be aligned to 16"),
    "dtype": ({"dtype": "float64"}, "dtype must be float32, float16 or bfloat16, got 'float64'"),
    "no rows": ({"num_rows": 0}, "num_rows must be 1 to 65535, got 0"),
    "many rows": ({"num_rows": 65536}, "num_rows must be 1 to 65535, got 65536"),
    "no vocabulary": ({"vocab_size": 0}, "vocab_size must be 1 to 262144, got 0"),
    "large vocabulary": ({"vocab_size": 262145}, "vocab_size must be 1 to 262144, got 262145"),
    "stride": ({"logits_stride": 9}, "logits_stride must be at least vocab_size = 10, got 9"),
    "choice stride": ({"choice_logits": 4096}, "choice_stride must be at least vocab_size = 10"),
    "bias stride": ({"bias": 4096, "bias_stride": 9}, "bias_stride must be 0 .* got 9"),
    "seen alone": ({"seen": 4096}, "seen and penalties go together"),
    "penalties alone": ({"penalties": 4096}, "seen and penalties go together"),
    "workspace": ({"workspace_bytes": 100}, "workspace_bytes must be at least .* got 100"),
    "candidates": ({"candidate_capacity": 0}, "candidate_capacity must be 1 to 262144, got 0"),
    "history": ({"history_capacity": 0}, "history_capacity must be 1 to"),
    "flag": ({"advance": 1}, "advance must be True or False, got 1"),
    "huge": ({"num_rows": 1 << 80}, "num_rows must be 1 to 65535"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_refused_and_change_nothing(name):
    wrong, message = REFUSED[name]
    rows = Rows(Emulation(), np.zeros((1, 10), np.float32), [{}])
    before = {n: rows[n].tobytes() for n in rows.memory}
    with pytest.raises(ConfigError, match=message):
        _C.testing.emulate_cuda_sample(stream=0, **{**rows.arguments(), **wrong})
    assert {n: rows[n].tobytes() for n in rows.memory} == before


def test_workspace_size_is_what_a_launch_needs():
    size = Emulation().call("sample_workspace_size", max_rows=3, vocab_size=5000)
    rows = Rows(Emulation(), np.zeros((3, 5000), np.float32), [{}] * 3)
    assert rows.sizes["workspace_bytes"] == size
    with pytest.raises(ConfigError, match=f"workspace_bytes must be at least {size} for 3 rows"):
        _C.testing.emulate_cuda_sample(stream=0, **{**rows.arguments(),
                                                    "workspace_bytes": size - 1})  # fmt: skip
