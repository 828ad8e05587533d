# Every target sets up .venv when it is missing. `make help` lists them.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help book test study quick bench clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; set PYTHON=…")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

book: .venv/installed ## execute the notebooks on the recorded runs and build the book; prints the path of index.html
	@$(BIN)/python book/build.py

test: .venv/installed ## run all tests, the browser's included
	@$(BIN)/python tests/browser.py
	$(BIN)/python -m ruff check kd3a book tests
	$(BIN)/python -m ruff format --check kd3a book tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

study: .venv/installed ## train what is missing of STUDY=name at SCALE=cpu, or of all studies with data (hours; stops and resumes)
	for params in params/$(or $(STUDY),*)/$(or $(SCALE),cpu).yaml; do $(BIN)/kd3a study $$params $(if $(STUDY),,--if-there) || exit; done

quick: .venv/installed ## run every notebook at quick scale, trained from scratch, into _build/quick
	rm -rf _build/quick
	KD3A_CACHE=$(CURDIR)/_build/quick KD3A_RESULTS=$(CURDIR)/_build/quick $(BIN)/python book/build.py --scale quick --train --no-html

bench: .venv/installed ## measure what is claimed to be fast, each ratio in one run
	@$(BIN)/python tests/bench.py

clean: ## remove the environment and everything built
	rm -rf .venv _build .pytest_cache .ruff_cache .hypothesis *.egg-info
