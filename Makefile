# Every target sets itself up in .venv when needed, from a bare python3 (3.11 or later).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WORKERS ?= auto

.PHONY: setup demo test test-slow test-real bench lint build clean

setup: .venv/ready-dev

# What a user has: bpg and what it needs at run time.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("bpg needs Python 3.11 or later, this is " + sys.version.split()[0] + ": make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

# What a developer has besides: test tools, linters, and the code bases that ours is compared with.
.venv/ready-dev: .venv/ready
	$(PIP) --editable '.[dev]'
	touch $@

demo: .venv/ready
	$(BIN)/python examples/quickstart.py

test: .venv/ready-dev lint
	$(BIN)/python -m pytest --numprocesses $(WORKERS) -m 'not slow' --doctest-modules src tests

test-slow: .venv/ready-dev
	$(BIN)/python -m pytest -m "slow and not real"

test-real: .venv/ready-dev
	$(BIN)/python -m pytest -m real

bench: .venv/ready-dev
	$(BIN)/python -m benchmarks.backbone
	$(BIN)/python -m benchmarks.training

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

build: .venv/ready-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist

clean:
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
