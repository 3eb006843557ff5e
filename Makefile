# make demo     train the tiny preset on the toy environment, evaluate, say where to look
# make test     every test; make test-fast leaves out the slow ones
# make install  the environment alone: .venv, with the package and all its extras
# make lint     style, types, direction of imports
# make docs     the documentation site, into site/
#
# Each creates .venv when it is missing and reuses it otherwise. PYTHON=python3.12 picks another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
JOBS ?= 2

.PHONY: install demo test test-fast lint docs clean
.DEFAULT_GOAL := install

install: $(INSTALLED)

# The stamp is written last, so an interrupted install is taken up again.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "error: TWM needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1); try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "error: $(PYTHON) lacks venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[all]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/twm train --preset tiny --out runs/demo

# Tests that measure time run alone, after the parallel part. Those of one xdist_group (Ray) share a process.
test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup -m 'not timing'
	$(BIN)/python -m pytest -m timing

test-fast: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup -m 'not slow and not timing'
	$(BIN)/python -m pytest -m 'timing and not slow'

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(INSTALLED)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
