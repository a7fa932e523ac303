# Slackwater. `make` or `make help` lists what can be made.
#
# Everything lands in two folders that `make clean` removes: .venv (Python, the installed package, the slackwater
# command) and build (one CMake tree for each kind of build). Steps that are done leave a stamp, so that a second run is quick.

PYTHON ?= python3
JOBS   ?= $(shell nproc)
TORCH  := torch==2.13.0

VENV   := .venv
BIN    := $(VENV)/bin
WHEELS := build/dist

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-builtin-rules
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:   # CMake and ctest run in parallel by themselves

export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CTEST_PARALLEL_LEVEL       := $(JOBS)
export CMAKE_GENERATOR            := Ninja
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What the wheel is made of. Folders are listed too: their time changes when a file is added or removed.
SOURCES := CMakeLists.txt pyproject.toml $(wildcard README.md LICENSE) \
           $(shell find cmake include src python -name __pycache__ -prune -o -print)

section = printf '\n\033[1m== %s\033[0m\n' "$(1)"

.PHONY: help
help:
	@echo "Slackwater: checkpoints at every iteration"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Settings: PYTHON=$(PYTHON) JOBS=$(JOBS)"

## Build --------------------------------------------------------------------------------------------------------------

.PHONY: build
build: build/.installed  ## build and install into .venv: `import slackwater` and .venv/bin/slackwater

.PHONY: packages
packages:
	@scripts/system_packages.sh build $(PYTHON)

$(VENV)/pyvenv.cfg: | packages
	@$(call section,Python environment in $(VENV))
	scripts/setup_venv.sh $(VENV) $(PYTHON)

# torch alone and first: what comes later must not choose another build of it.
$(VENV)/.$(TORCH): $(VENV)/pyvenv.cfg
	$(BIN)/pip install --quiet $(TORCH)
	@touch $@

$(VENV)/.requirements: requirements-dev.txt $(VENV)/.$(TORCH)
	$(BIN)/pip install --quiet -r requirements-dev.txt
	@touch $@

# Without what they depend on: none of them may choose another torch.
$(VENV)/.libraries: requirements-libraries.txt $(VENV)/.requirements
	@$(call section,Libraries that the tests train with)
	$(BIN)/pip install --quiet --no-deps --no-compile -r requirements-libraries.txt
	@touch $@

.PHONY: libraries
libraries: $(VENV)/.libraries  ## the libraries that the Python tests train with (requirements-libraries.txt), into .venv

build/.installed: $(SOURCES) scripts/build_wheel.py $(VENV)/.requirements | packages
	@$(call section,Wheel)
	$(BIN)/python scripts/build_wheel.py build/release $(WHEELS)
	$(BIN)/pip install --quiet --no-deps --force-reinstall $(WHEELS)/slackwater-*.whl
	@touch $@

## Test ---------------------------------------------------------------------------------------------------------------

.PHONY: test
test: build test-cpp test-python test-wheel  ## C++ tests of the release build, Python tests, the wheel
	@$(call section,All tests passed)

.PHONY: test-sanitizers
test-sanitizers: test-asan test-tsan test-fuzz  ## the C++ tests once more under asan, ubsan and tsan, and short fuzzing
	@$(call section,All tests passed under the sanitizers)

.PHONY: test-cpp
test-cpp: build  ## C++ tests, release build
	@$(call section,C++ tests)
	cmake --build build/release --target all_tests
	ctest --test-dir build/release --output-on-failure --no-tests=error

.PHONY: test-asan
test-asan: packages  ## C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(call section,C++ tests under asan and ubsan)
	cmake --preset asan >/dev/null
	cmake --build --preset asan
	ctest --preset asan

.PHONY: test-tsan
test-tsan: packages  ## tests of concurrency under ThreadSanitizer
	@$(call section,Tests of concurrency under tsan)
	cmake --preset tsan >/dev/null
	cmake --build --preset tsan --target threads_tests
	scripts/without_aslr.sh ctest --preset tsan

.PHONY: test-fuzz
test-fuzz: packages  ## replay the fuzzing corpora, then fuzz each parser for a few seconds
	@$(call section,Fuzzing)
	@scripts/system_packages.sh fuzz || true
	$(PYTHON) scripts/fuzz.py --seconds 25 --optional

.PHONY: test-python
test-python: build libraries  ## Python tests, against the installed package and the simulated CUDA driver
	@$(call section,Python tests)
	cmake --build build/release --target slackwater_sim_cuda
	SLACKWATER_SIM_CUDA=$(CURDIR)/build/release/sim/libslackwater_sim_cuda.so $(BIN)/python -m pytest tests/python

.PHONY: test-wheel
test-wheel: build  ## the wheel: its contents, and that it works in an environment without torch
	@$(call section,Wheel)
	$(BIN)/python scripts/check_wheel.py $(WHEELS)

MINUTES ?= 10

.PHONY: fuzz
fuzz: packages  ## fuzz every parser of files and texts for MINUTES=10 in all; new inputs are kept in build/fuzz
	@$(call section,Fuzzing)
	@scripts/system_packages.sh fuzz || true
	$(PYTHON) scripts/fuzz.py --seconds $$(( $(MINUTES) * 60 )) --keep

.PHONY: soak
soak: build libraries  ## the long forms: power cuts, kills, corruptions, mutations, and MINUTES of load (half an hour more)
	@$(call section,Soak)
	cmake --build build/release --target all_tests
	$(BIN)/python scripts/soak.py build/release --minutes $(MINUTES) $(ARGS)

.PHONY: mutate
mutate: build libraries  ## apply each small slip of tests/mutations to a copy, and expect its test to fail (within an hour); ARGS="--only pool"
	@$(call section,Mutations)
	cmake --build build/release --target slackwater_sim_cuda
	SLACKWATER_SIM_CUDA=$(CURDIR)/build/release/sim/libslackwater_sim_cuda.so $(BIN)/python scripts/mutate.py $(ARGS)

## Show ---------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: build  ## two minutes: train, kill, resume bit for bit, compare with torch.save and async_save
	$(BIN)/python examples/demo.py

.PHONY: bench
bench: build  ## a quarter of an hour: the figures of docs/benchmarks.md; ARGS="--quick" for a short look
	cmake --build build/release --target slackwater_bench slackwater_micro
	$(BIN)/python bench/run.py $(ARGS)

.PHONY: bench-lazy
bench-lazy: build  ## nine minutes: lazy copies on a simulated GPU beside the paper's figures; ARGS="--quick" for a short look
	cmake --build build/release --target slackwater_bench slackwater_sim_cuda
	mkdir -p bench/results
	build/release/bench/slackwater_bench lazy --dir build --json bench/results/lazy.json $(ARGS)
	$(PYTHON) bench/lazy_plots.py bench/results/lazy.json bench/results

.PHONY: bench-commit
bench-commit: build  ## minutes: what a commit of 8 to 16,384 ranks costs; ARGS="--quick" for a short look
	cmake --build build/release --target slackwater_bench
	mkdir -p bench/results
	build/release/bench/slackwater_bench commit --dir build --json bench/results/commit.json $(ARGS)

## Care ---------------------------------------------------------------------------------------------------------------

# The folders of source files changed since this commit are checked by clang-tidy in `make lint`.
LINT_BASE ?= $(shell git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)

.PHONY: lint
lint: build  ## clang-format on everything, clang-tidy on what changed since LINT_BASE, ruff where installed
	@scripts/system_packages.sh lint
	scripts/lint.sh format-check
	scripts/lint.sh tidy-changed $(LINT_BASE)
	scripts/lint.sh ruff $(BIN)

.PHONY: tidy
tidy: build  ## clang-tidy on everything (minutes)
	@scripts/system_packages.sh lint
	scripts/lint.sh tidy-all

.PHONY: format
format:  ## let clang-format lay out the C++ sources
	@scripts/system_packages.sh lint
	scripts/lint.sh format

.PHONY: clean
clean:  ## remove build and .venv
	rm -rf build $(VENV)
