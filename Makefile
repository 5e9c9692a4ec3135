# Two commands matter: `make demo` and `make test`. Both set everything up in .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow lint bench clean

demo: .venv
	$(BIN)/diffattn compare quick

test: .venv lint
	$(BIN)/pytest -m "not slow" -n 2

test-slow: .venv
	$(BIN)/pytest -m slow

lint: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

bench: .venv
	$(BIN)/python benchmarks/sdpa_plans.py

# The stamp is older than pyproject.toml when dependencies changed; then the environment is brought up to date.
.venv: .venv/stamp
.venv/stamp: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "diffattn needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs
