# Every target makes its own virtual environment and installs what it needs; nothing is set up by hand.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Only what is imported is ever compiled, and then by Python itself: to compile all of it takes pip a minute.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile -c constraints.txt

.PHONY: demo docs test lint types unit browser-deps bench-deps bench clean

demo: $(VENV)/.run
	$(BIN)/lowtide demo --out demo

# The guide as a site, in site/. `make test` builds it too.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Lint and types beside the tests: they are done long before those.
test: $(VENV)/.test
	$(MAKE) --no-print-directory --jobs 3 lint types unit

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.test
	$(BIN)/mypy

# Memory is measured alone on the machine, everything else side by side.
unit: $(VENV)/.test browser-deps
	$(BIN)/pytest --ignore tests/memory --numprocesses auto --maxprocesses 4 --dist worksteal
	$(BIN)/pytest tests/memory

# The report is tested in a real browser. Where this is not root the test says what is missing.
browser-deps:
	@command -v chromium >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
		(apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium >/dev/null)

# fio tells what the device itself can do; without it the benchmarks leave that row out and say so.
bench-deps:
	@command -v fio >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
		(apt-get -qq update && apt-get -qq install -y --no-install-recommends fio >/dev/null)

bench: $(VENV)/.bench .venv-mosaicml/.done bench-deps
	$(BIN)/python -m benchmarks

# MosaicML Streaming asks for other versions than the rest, so it has an environment of its own. Where that cannot
# be made the table says that it is not installed.
.venv-mosaicml/.done: pyproject.toml
	$(PYTHON) -m venv .venv-mosaicml
	-.venv-mosaicml/bin/python -m pip --disable-pip-version-check --quiet install \
		-e . torch==2.13.0 mosaicml-streaming==0.13.0
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[gpt,prepare]'
	touch $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[docs]'
	touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[test]'
	$(INSTALL) --no-deps litdata
	touch $@ $(VENV)/.run $(VENV)/.docs

$(VENV)/.bench: $(VENV)/.test
	$(INSTALL) -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) .venv-mosaicml demo site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
