# Every target builds what it needs in .venv: Python >= 3.11, make and PyPI are enough.
# `make test PYTHON=python3.13` has a folder of its own, .venv-python3.13.
PYTHON  ?= python3
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
VENV    := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
ARGS    ?=

.DEFAULT_GOAL := help
.PHONY: help demo test matrix lint types bench chaos simulate mutants topologies docs clean

help: ## Show what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Windlass needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 1; }
	@echo "Setting up $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e . --group dev
	@touch $@

demo: $(READY) ## Kill a child, a runner and a worker of a small shop, and account for every order
	@$(BIN)/windlass demo $(ARGS)

test: lint types ## Run everything that must hold: lint, types, tests (ARGS="-k lease" to choose)
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

matrix: ## Run the tests on each Python that is installed (PYTHONS="python3.12 python3.13")
	@for python in $(PYTHONS); do \
	  if $$python -c '' 2>/dev/null; then \
	    echo "== $$($$python --version)"; $(MAKE) --no-print-directory test PYTHON=$$python ARGS='$(ARGS)' || exit 1; \
	  else echo "== $$python is not installed: skipped"; fi; \
	done

lint: $(READY) ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY) ## Check types, strictly
	@$(BIN)/mypy

bench: $(READY) ## Measure Windlass beside its peers, on one server in one run (ARGS="--quick", "--only dramatiq,drain")
	@$(BIN)/python -m bench $(ARGS)

chaos: $(READY) ## Kill and cut off everything under load, and account for every job (ARGS="--help" for more)
	@$(BIN)/python -m chaos $(ARGS)

simulate: $(READY) ## Programs, network and time from a seed, on a real server (ARGS="--seed 7")
	@$(BIN)/python -m chaos.simulation $(ARGS)

mutants: $(READY) ## Bugs on purpose, one line each: all must be caught (ARGS="--only fence")
	@$(BIN)/python -m chaos.mutants $(ARGS)

topologies: $(READY) ## The contract on every kind of server: embedded, Redis 7, Valkey, Sentinel, Cluster (ARGS="--only cluster")
	@$(BIN)/python -m tests.topology $(ARGS)

docs: $(READY) ## Check that the docs are true: conformance table, links, snippets
	@$(BIN)/python -m pytest tests/docs/test_docs.py $(ARGS)

clean: ## Remove what was built
	@rm -rf .venv .venv-* .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
