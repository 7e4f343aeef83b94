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
PYTEST_ARGS ?=

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

pytest: setup  ## tests alone; PYTEST_ARGS='-m "not wheel"' for the quick ones
	@$(BIN)/pytest $(PYTEST_ARGS)

test: lint  ## style, types, every test (those marked data need BLOCKBENCH_DATA)
	@$(BIN)/pytest $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-vllm

# vLLM 0.5.5's scheduler is read from its wheel; any platform can unpack it.
VLLM_VENV := .venv-vllm-v0
VLLM_STAMP := $(VLLM_VENV)/.set-up

.PHONY: test-vllm
test-vllm: $(VLLM_STAMP)  ## our v0 against vLLM 0.5.5's, on BLOCKBENCH_VLLM_SCENARIOS random scenarios
	@BLOCKBENCH_REQUIRE_VLLM=1 $(VLLM_VENV)/bin/pytest -q -m vllm tests/vllm_v0

$(VLLM_STAMP): pyproject.toml tests/vllm_v0/fetch.py Makefile
	@test -x $(VLLM_VENV)/bin/python || { echo "making $(VLLM_VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VLLM_VENV); }
	@$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable . hypothesis pytest msgspec typing_extensions
	@$(VLLM_VENV)/bin/python tests/vllm_v0/fetch.py
	@touch $(VLLM_STAMP)

clean:  ## remove what was made, .venv too
	rm -rf $(VENV) .venv-vllm-v0 build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
