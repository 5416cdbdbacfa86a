# Every target sets itself up in .venv when needed, from a bare python3 (3.11 or later).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# One more than there are cores: tests that start, kill and wait for processes leave a core idle for a third of the time.
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
NO_INDEX = echo "error: pip could not install what bpg needs; its last lines say why. Without a network, point pip at a folder of wheels (PIP_FIND_LINKS=..., PIP_NO_INDEX=1). What is installed stays; the same command goes on." >&2; exit 1
NO_VENV = echo "error: $(PYTHON) could not make a virtual environment; its last lines say why. Debian and Ubuntu keep what it takes in the package python3-venv." >&2; exit 1

.PHONY: setup demo test test-slow test-real bench lint build clean emoji pretrain

setup: .venv/ready-dev

# What a user has: bpg and what it needs at run time.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("bpg needs Python 3.11 or later, this is " + sys.version.split()[0] + ": make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { rm -rf .venv; $(NO_VENV); }
	@echo "installing bpg and what it needs into .venv"
	@$(PIP) --editable . || { $(NO_INDEX); }
	@touch $@

# What a developer has besides: test tools, linters, and the code bases that ours is compared with.
.venv/ready-dev: .venv/ready
	@echo "installing the test tools into .venv"
	@$(PIP) --editable '.[dev]' || { $(NO_INDEX); }
	@touch $@

demo: .venv/ready
	$(BIN)/bpg demo

test: .venv/ready-dev lint
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m 'not slow' --doctest-modules src tests

test-slow: .venv/ready-dev
	$(BIN)/python -m pytest -m "slow and not real"

test-real: .venv/ready-dev
	$(BIN)/python -m pytest -m real

bench: .venv/ready-dev
	$(BIN)/bpg bench --out docs

# What made the data and the weights that ship: see tools/emoji.py and pretrain/README.md.
WORK ?= $(HOME)/.cache/bpg-build

emoji: .venv/ready
	$(PIP) --requirement tools/requirements.txt
	$(BIN)/python -m tools.emoji $(WORK)

pretrain: .venv/ready
	$(BIN)/python -m pretrain.train $(WORK)
	$(BIN)/python -m pretrain.figures $(WORK)
	$(BIN)/python -m pretrain.ship $(WORK)

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
