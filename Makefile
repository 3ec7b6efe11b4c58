# Every target makes its own environment in .venv from a bare Python and reuses it afterwards.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
OLDEST := .venv-oldest
OLDEST_READY := $(OLDEST)/ready
export TF_CPP_MIN_LOG_LEVEL ?= 3

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-oldest lint notebooks bench clean

help: ## List the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

$(OLDEST_READY): pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' 'tensorflow==2.20.*' 'keras==3.12.*'
	touch $@

demo: $(READY) ## Train a real model on two workers and two parameter servers.
	$(BIN)/python -m tfps.demo

lint: $(READY) ## Check style and types.
	$(BIN)/ruff check tfps tests notebooks
	$(BIN)/ruff format --check tfps tests notebooks
	$(BIN)/mypy

test: lint ## Lint, types, and every test that is quick.
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist worksteal

test-slow: $(READY) ## The tests that start many processes or take long.
	$(BIN)/python -m pytest -m slow

test-oldest: $(OLDEST_READY) ## Contracts, parity and training on the oldest TensorFlow and Keras.
	$(OLDEST)/bin/python -m pytest -m "not slow" --numprocesses 2 --dist worksteal tests/test_compat.py tests/training

notebooks: $(READY) ## Execute the notebooks and store their outputs.
	$(BIN)/python -m tests.notebooks --write

bench: $(READY) ## Print the benchmark tables.
	$(BIN)/python -m tests.benchmarks

clean: ## Remove the environment and caches.
	rm -rf $(VENV) $(OLDEST) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
