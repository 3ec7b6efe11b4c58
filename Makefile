# Every target makes its own environment in .venv from a bare Python and reuses it afterwards.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
BENCH_READY := $(VENV)/ready-bench
export TF_CPP_MIN_LOG_LEVEL ?= 3

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint notebooks bench clean

help: ## List the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
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

notebooks: $(READY) ## Execute the notebooks and store their outputs.
	$(BIN)/python -m tests.notebooks --write

bench: $(BENCH_READY) ## Print the benchmark tables.
	$(BIN)/python -m tests.benchmarks

clean: ## Remove the environment and caches.
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
