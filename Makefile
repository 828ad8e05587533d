# Every target sets up .venv when it is missing. `make help` lists them.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
GRADER := .venv-course/bin/python
FLOWER := .venv-federated/bin/python
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help book pdf test testcourse testfederated test-federated study quick bench course grade federate clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; set PYTHON=…")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

.venv-course/installed: course/requirements.txt
	test -x $(GRADER) || $(PYTHON) -m venv .venv-course
	$(GRADER) -m pip install --quiet -r course/requirements.txt
	touch $@

# Flower wants other versions of two packages: they come first here, everything else is that of .venv
.venv-federated/installed: .venv/installed requirements-federated.txt
	test -x $(FLOWER) || { $(PYTHON) -m venv .venv-federated; $(FLOWER) -m pip uninstall --quiet --yes setuptools; }
	$(FLOWER) -m pip install --quiet --no-deps -r requirements-federated.txt
	$(FLOWER) -c 'import sysconfig; print("import site, sys; site.addsitedir(sys.prefix + \"/../.venv/lib/python%d.%d/site-packages\" % sys.version_info[:2])", file=open(sysconfig.get_path("purelib") + "/venv.pth", "w"))'
	$(FLOWER) -c 'import flwr, kd3a.runs'
	touch $@

book: .venv/installed ## execute the notebooks on the recorded runs and build the book; prints the path of index.html
	@$(BIN)/python book/build.py

pdf: book ## build and print the book into _build/kd3a.pdf (system package: chromium; installed where none is found)
	@$(BIN)/python book/browser.py
	@$(BIN)/python book/pdf.py

test: .venv/installed ## run all tests, the browser's included
	@$(BIN)/python book/browser.py
	$(BIN)/python -m ruff check kd3a book course tests
	$(BIN)/python -m ruff format --check kd3a book course tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

testcourse: .venv/installed .venv-course/installed ## release the course, grade planted submissions, compare
	$(BIN)/python -m pytest -q course/test_grading.py

testfederated: .venv-federated/installed ## run a federation of real processes through every fault
	$(FLOWER) -m pytest -q tests/federated

test-federated: testfederated

study: .venv/installed ## train what is missing of STUDY=name at SCALE=cpu, or of all studies with data (hours; stops and resumes; a run per core at a time, one with WORKERS=1 or SCALE=paper; sensitivity, which measures time and memory, always one)
	for params in params/$(or $(STUDY),*)/$(or $(SCALE),cpu).yaml; do $(BIN)/kd3a study $$params $(if $(STUDY),,--if-there) $(if $(WORKERS),--workers $(WORKERS),$(if $(filter paper,$(SCALE)),,--executor processes)) || exit; done

quick: .venv/installed ## run every notebook at quick scale, trained from scratch, into _build/quick
	rm -rf _build/quick && mkdir -p _build/quick
	KD3A_CACHE=$(CURDIR)/_build/quick KD3A_RESULTS=$(CURDIR)/_build/quick $(BIN)/python book/build.py --scale quick --train --no-html

bench: .venv-federated/installed ## measure what is claimed to be fast, each ratio in one run
	@$(FLOWER) tests/bench.py

course: .venv/installed .venv-course/installed ## write the student release, the instructor edition and the points into _build/course
	@$(BIN)/python course/release.py --nbgrader $(GRADER) $(if $(BOOK),--book $(BOOK))

grade: .venv/installed .venv-course/installed ## grade SUBMISSIONS=folder (student/assignment/notebook.ipynb) into _build/course/graded
	@$(BIN)/python course/grade.py --nbgrader $(GRADER) $(or $(SUBMISSIONS),submitted)

federate: .venv-federated/installed ## one quick run with a SuperLink and its SuperNodes on this machine, compared with the run in one process
	@$(FLOWER) -m kd3a.federation demo --set epochs=4 --set epoch_samples=200 $(if $(METHOD),--method $(METHOD)) $(if $(TARGET),--target $(TARGET)) $(if $(SAVE),--save)

clean: ## remove the environments and everything built
	rm -rf .venv .venv-course .venv-federated _build .pytest_cache .ruff_cache .hypothesis *.egg-info
