PYTHON ?= python3
READY := .venv/.ready
DOCS := .venv/.docs
RUN := .venv/bin/python
# Worker processes of the tests. Each has its share of the cores to itself, so more than there are cores gain nothing.
JOBS ?= 2
PYTEST := $(RUN) -m pytest -q --numprocesses=$(JOBS) --durations=10 --durations-min=1

.DEFAULT_GOAL := help
.PHONY: help setup lab demo test test-all bench docs lint types format native-check browser clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

setup: $(READY)  ## make .venv with everything to run and to test; at once when it is there

$(READY): pyproject.toml constraints.txt $(wildcard workbench/training/native/*.cc workbench/training/native/*.h)
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "There is no '$(PYTHON)': install Python 3.11 or newer, or name one with make PYTHON=/path/to/python3." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit("The workbench needs Python 3.11 or newer, and $(PYTHON) is %d.%d: name a newer one with make PYTHON=/path/to/python3." % v[:2] if v < (3, 11) else 0)'
	@echo "Installing everything into .venv: a minute or two, this once."
	"$(PYTHON)" -m venv .venv
	$(RUN) -m pip install --quiet --disable-pip-version-check -e ".[test]" -c constraints.txt
	@$(RUN) -m workbench.native
	@touch $@

lab: $(READY)  ## open JupyterLab on the first notebook
	@$(RUN) tools/lab.py

demo: $(READY)  ## attack an embedded client without a browser, and write report.html
	@.venv/bin/workbench demo

test: lint types browser  ## lint, types, unit tests, doctests, three notebooks, browser tests; JOBS=2 at a time
	$(PYTEST)

test-all: browser  ## the slow tests, which `make test` leaves out: the other notebooks, long runs, fresh clones, sanitizers
	$(PYTEST) -m slow

bench: $(READY)  ## measure speed and memory
	@$(RUN) -m benchmarks

$(DOCS): $(READY)
	$(RUN) -m pip install --quiet --disable-pip-version-check -e ".[docs]" -c constraints.txt
	@touch $@

docs: $(DOCS)  ## build the site, build/docs/index.html, from the documents and notebooks
	rm -rf build/docs
	$(RUN) -m sphinx -q -W --keep-going -c docs/site -d build/doctrees . build/docs
	@echo "Open build/docs/index.html in a browser."

lint: $(READY)  ## ruff, notebooks included, and which module may import which
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	.venv/bin/lint-imports --no-logo --no-cache

types: $(READY)  ## mypy, strict
	$(RUN) -m mypy

format: $(READY)  ## put everything into the format of ruff and clang-format
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format
	.venv/bin/clang-format -i workbench/training/native/*.h workbench/training/native/*.cc tests/training/*.cc

native-check: $(READY)  ## warnings, format and sanitizers of the C++ code, with the tools that are installed
	@$(RUN) tools/native_check.py

# Without a browser its tests are skipped, but never where the result counts.
browser: $(READY)
	@$(RUN) tools/browser.py --install >/dev/null || [ "$$CI" != true ]

clean:  ## remove .venv and everything that was generated
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build ./*.egg-info report.html
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
