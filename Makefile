# Two commands do everything: `make quickstart` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
OUT ?= quickstart

.PHONY: quickstart reproduce audit test docs slow fuzz lint clean install-check

quickstart: $(VENV)/.core
	$(BIN)/rhobust quickstart --out $(OUT)

# All tables and figures of the paper at the smallest scale: digits and tiny networks, minutes on two cores.
reproduce: $(VENV)/.test
	$(BIN)/python -m reproduction all --scale smoke --out reproduced/smoke

# Every published certificate, computed again from its counts.
audit: $(VENV)/.test
	$(BIN)/python -m reproduction audit results/records

# One thread a worker: two workers with two threads each would fight over two cores. Tests of a file share what it sets up.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

# Hours: bad input, changed bytes, kills and concurrent commands, ill-behaved networks. Each prints its counts.
FUZZ := PYTHONPATH=src:. OMP_NUM_THREADS=1 $(BIN)/python -m
fuzz: $(VENV)/.test
	$(FUZZ) tests.fuzz
	$(FUZZ) tests.fuzz.changed_bytes
	$(FUZZ) tests.faults.kills
	$(FUZZ) tests.zoo

# Stages the pages in build/docs and writes the site to build/site; a warning is an error.
docs: $(VENV)/.docs
	$(BIN)/python docs/tools/site.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	PYTHONPATH=. $(BIN)/lint-imports

# pip install and the wheel, from a clean clone, in an empty folder: make install-check PYTHON=python3.13 WITH="--oldest"
install-check:
	$(PYTHON) tests/install/check.py $(WITH)

# torchattacks asks for torchvision, which it never imports: it comes without what it asks for.
# The stamps make a second call cheap; a changed pyproject.toml or constraints.txt installs again.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "rhobust needs Python >= 3.11, got " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps torchattacks
	touch $(VENV)/.core $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[docs]'
	touch $(VENV)/.core $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .cache
