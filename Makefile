# `make demo` and `make test` need python3 and make, nothing else: the first run makes .venv with the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test check format docs bench clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.core  ## set up, train PPO on CartPole, write a report
	$(BIN)/rookery train agent=ppo env=classic/cartpole

test: $(VENV)/.dev  ## set up and run all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -q --durations=20 --ignore=tests/ray
	$(BIN)/python -m pytest -q --durations=5 tests/ray  # one Ray for all of them, so not in several processes

check: $(VENV)/.dev  ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## rewrite the files as `check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev  ## write the tables of options in docs/methods, and the page of the serving protocol
	$(BIN)/python docs/option_tables.py
	$(BIN)/python docs/protocol_page.py

bench: $(VENV)/.dev  ## run the benchmarks and print the table
	$(BIN)/rookery bench

clean:  ## remove what the other targets made
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache runs multirun

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Rookery needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
