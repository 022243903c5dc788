# Every target makes its own virtual environment and installs what it needs; nothing is set up by hand.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Only what is imported is ever compiled, and then by Python itself: to compile all of it takes pip a minute. Some
# containers forbid Python to keep what it compiled, and then every process compiles PyTorch again, for ten seconds.
export PYTHONDONTWRITEBYTECODE =
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile -c constraints.txt

.PHONY: demo docs quick unit test lint types tests system-deps azurite bench-deps bench dist clean

demo: $(VENV)/.run
	$(BIN)/lowtide demo --out demo

# The guide as a site, in site/. `make test` builds it too.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Within a minute, without PyTorch, a browser or root: what to run while working. Property tests try a tenth of
# the examples of `make test`.
quick: $(VENV)/.quick
	$(MAKE) --no-print-directory --jobs 2 unit lint

unit: $(VENV)/.quick
	EXAMPLES=$${EXAMPLES:-5} $(BIN)/pytest tests/unit --numprocesses auto --dist worksteal

# Debian's packages are installed while Python's are. Lint and types beside the tests: they are done long before those.
test:
	$(MAKE) --no-print-directory --jobs 2 $(VENV)/.test system-deps
	$(MAKE) --no-print-directory --jobs 3 lint types tests

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python .ci/prose.py

types: $(VENV)/.test
	$(BIN)/mypy

# Memory is measured alone on the machine, everything else side by side. One worker more than there are cores, up to
# four: many tests wait for processes and disks.
WORKERS := $(shell n=$$(nproc 2>/dev/null || echo 2); test $$n -lt 4 && echo $$((n + 1)) || echo 4)
tests: $(VENV)/.test system-deps
	$(BIN)/pytest --ignore tests/memory --numprocesses $(WORKERS) --dist worksteal
	$(BIN)/pytest tests/memory

# The report is tested in a real browser, the meter with other allocators. Where this is not root the tests say what is
# missing.
system-deps:
	@(command -v chromium && ldconfig -p | grep -q jemalloc && ldconfig -p | grep -q mimalloc) >/dev/null || \
		test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
		(apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium libjemalloc2 libmimalloc2.0 \
		>/dev/null)
	@command -v npm >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
		(apt-get -qq update && apt-get -qq install -y --no-install-recommends npm >/dev/null)
	@$(MAKE) --no-print-directory azurite

# Microsoft's own emulator of Azure's blobs, for the tests of az:// addresses. It comes from npm.
azurite:
	@test -e $(VENV)/azurite/node_modules/.bin/azurite-blob || ! command -v npm >/dev/null || \
		npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite azurite@3.37.0 || true

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

$(VENV)/.lint: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[lint]'
	touch $@

$(VENV)/.quick: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[quick]'
	touch $@ $(VENV)/.lint

$(VENV)/.test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[test]'
	$(INSTALL) --no-deps litdata
	touch $@ $(VENV)/.run $(VENV)/.docs $(VENV)/.quick $(VENV)/.lint

# What is uploaded: see RELEASING.md.
dist: $(VENV)/bin/python
	$(INSTALL) -e '.[dist]'
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	rm -rf build/installed && $(PYTHON) -m venv build/installed
	build/installed/bin/python -m pip --disable-pip-version-check --quiet install dist/*.whl
	cd build && installed/bin/lowtide --version

$(VENV)/.bench: $(VENV)/.test
	$(INSTALL) -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) .venv-mosaicml demo site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
