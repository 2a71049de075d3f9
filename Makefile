# `make demo` shows the main thing, `make test` proves it. Both set everything up by themselves.
.DEFAULT_GOAL := help
.PHONY: help demo test docs lint kernels slow fuzz sanitize bench results-check install clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
TESTS = $(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not slow"
# The packages whose functions say what shapes they take. Of all others mypy knows the types.
SHAPED := vector_neurons.nn,vector_neurons.geometry,vector_neurons.models,vector_neurons.data,vector_neurons.mesh,vector_neurons.tasks,vector_neurons.viz
# Every pip call, build environments included, sees the pins: an unpinned torch would pull gigabytes of CUDA.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The first process that imports torch keeps its bytecode, whatever the environment says: the tests start many, and
# each would spend seconds on compiling it again.
export PYTHONDONTWRITEBYTECODE :=

help:
	@echo "make demo   set up, then train DGCNN, VN-DGCNN and FrameNet upright, test in any pose: demo/report.html"
	@echo "make test   set up, then lint, type check and run the whole test suite"
	@echo "make docs   set up, then build the documentation into site/ and run all of its code: open site/index.html"
	@echo "make slow   the tests marked slow"
	@echo "make fuzz   damaged files, crashes at every write, full disks: 1,500 cases and more, minutes"
	@echo "make sanitize  the tests of the native kernels under address and undefined-behavior sanitizers"
	@echo "make bench  the published formulation against this library: docs/speed.md, half an hour"
	@echo "make results-check  every number under results/ again, from the weights there and the packs in VN_DATA"
	@echo "make clean  remove the virtual environment and caches"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --editable ".[dev]"
	@touch $@

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests

# Without a compiler there are none, and the tests say so.
kernels: $(STAMP)
	-$(BIN)/vn kernels build

# All tests with the native kernels, where they can be built; then, on the eager backend, those of what both implement.
# The hook rewrites functions to check their shapes, once for all; torch.compile could not trace them.
# Type checks keep one core busy; kernels compile beside them.
test: $(STAMP)
	@$(MAKE) --no-print-directory --jobs=2 lint kernels
	$(TESTS) --ignore=tests/compile --jaxtyping-packages=$(SHAPED),beartype.beartype
	VN_KERNELS=eager $(TESTS) tests/equations tests/properties tests/models tests/geometry
	$(TESTS) tests/compile

# Warnings are errors (mkdocs.yml); the tests then read what was built.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean
	VN_SITE=site $(BIN)/pytest -q tests/docs

slow: $(STAMP)
	$(BIN)/pytest -m slow tests

fuzz: $(STAMP)
	$(BIN)/python tests/robustness/fuzz.py $(FUZZ)

sanitize: $(STAMP)
	$(BIN)/python tests/sanitize.py

bench: $(STAMP)
	$(BIN)/python benchmarks/speed.py

results-check: $(STAMP)
	$(BIN)/python benchmarks/results_check.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
