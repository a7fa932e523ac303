# Slackwater. `make` or `make help` lists what can be made.
#
# Everything lands in two folders that `make clean` removes: .venv (Python, the installed package, the slackwater
# command) and build (one CMake tree for each kind of build). A finished step leaves a stamp, so a
# second run is quick.

PYTHON ?= python3
JOBS   ?= $(shell nproc)
TORCH  := 2.13.0

VENV   := .venv
BIN    := $(VENV)/bin
# The wheel that is installed into .venv, and the one for other machines (`make wheel`).
WHEELS    := build/dist
MANYLINUX := build/wheelhouse

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-builtin-rules
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
ifndef TOGETHER
.NOTPARALLEL:   # CMake and ctest run in parallel by themselves; `build` says what else does
endif

export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# Most tests wait for timers and disks, not for a processor: four at a time kept two processors busy for 65 % of it.
export CTEST_PARALLEL_LEVEL       := $(shell expr 3 \* $(JOBS))
# Under a sanitizer they compute more and wait less: two at a time kept two processors busy for 60 to 70 % of it.
SANITIZED_AT_ONCE                 := $(shell expr 2 \* $(JOBS))
export CMAKE_GENERATOR            := Ninja
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # hundreds of test processes would each compile torch's sources anew

# What the wheel is made of. Folders are listed too: their time changes when a file is added or removed.
SOURCES := CMakeLists.txt pyproject.toml $(wildcard README.md LICENSE) \
           $(shell find cmake include src python -name __pycache__ -prune -o -print)

section = printf '\n\033[1m== %s\033[0m\n' "$(1)"

.PHONY: help
help:
	@echo "Slackwater: checkpoints at every iteration"
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Settings: PYTHON=$(PYTHON) JOBS=$(JOBS)"

## Build --------------------------------------------------------------------------------------------------------------

# Three things at once: apt waits for its mirror, pip unpacks torch on one processor, the compiler takes what is left.
# What must wait for what is said below. --no-compile: Python compiles what is imported, a fraction of torch, and once.
.PHONY: build
build:  ## build and install into .venv: `import slackwater` and .venv/bin/slackwater
	@$(MAKE) --no-print-directory -j3 TOGETHER=yes build/.installed $(MEANWHILE)

.PHONY: packages
packages: python-package
	@scripts/system_packages.sh build $(PYTHON)

.PHONY: python-package
python-package:
	@scripts/system_packages.sh python $(PYTHON)

pip_install := $(BIN)/pip install --quiet --no-compile

$(VENV)/pyvenv.cfg: | python-package
	@$(call section,Python environment in $(VENV))
	scripts/setup_venv.sh $(VENV) $(PYTHON)

# What the compiler needs comes first. None of it depends on torch, so none of it can choose another build of it.
$(VENV)/.requirements: requirements-dev.txt $(VENV)/pyvenv.cfg
	$(pip_install) -r requirements-dev.txt
	@touch $@

$(VENV)/.torch-$(TORCH): $(VENV)/.requirements
	$(pip_install) torch==$(TORCH)
	@touch $@

# Without what they depend on: none of them may choose another torch.
$(VENV)/.libraries: requirements-libraries.txt $(VENV)/.torch-$(TORCH)
	$(pip_install) --no-deps -r requirements-libraries.txt
	@touch $@

$(VENV)/.tools: requirements-tools.txt $(VENV)/.requirements
	$(pip_install) -r requirements-tools.txt
	@touch $@

# As the libraries: without what they depend on.
$(VENV)/.object-stores: requirements-s3.txt $(VENV)/.torch-$(TORCH)
	$(pip_install) --no-deps -r requirements-s3.txt
	@touch $@

.PHONY: libraries
libraries: $(VENV)/.libraries $(VENV)/.object-stores  ## what the Python tests train with, and object stores

build/.wheel: $(SOURCES) scripts/build_wheel.py $(VENV)/.requirements | packages
	@$(call section,Wheel)
	$(BIN)/python scripts/build_wheel.py build/release $(WHEELS)
	@touch $@

build/.installed: build/.wheel $(VENV)/.torch-$(TORCH)
	$(BIN)/pip install --quiet --no-deps --force-reinstall $(WHEELS)/slackwater-*.whl
	@touch $@

# auditwheel gives the wheel the tag of the oldest glibc that can run it, and refuses where there is none.
.PHONY: wheel
wheel: build $(VENV)/.tools  ## the wheel for other machines (manylinux), into build/wheelhouse
	@$(call section,Wheel for other machines)
	rm -rf $(MANYLINUX)
	PATH=$(CURDIR)/$(BIN):$$PATH auditwheel repair --wheel-dir $(MANYLINUX) $(WHEELS)/slackwater-*.whl
	$(BIN)/python scripts/check_wheel.py $(MANYLINUX) --manylinux

.PHONY: wheel-smoke
wheel-smoke: wheel  ## install and use that wheel in a bare Debian (debootstrap, root; a minute, later seconds)
	@$(call section,The wheel in a bare system)
	@scripts/system_packages.sh chroot
	scripts/wheel_chroot.sh $(MANYLINUX) build/chroot

## Test ---------------------------------------------------------------------------------------------------------------

.PHONY: test
test: MEANWHILE := $(VENV)/.libraries $(VENV)/.object-stores compile-tests
test: build test-cpp test-python test-wheel  ## C++ tests of the release build, Python tests, the wheel
	@$(call section,All tests passed)

.PHONY: test-sanitizers
test-sanitizers: test-asan test-tsan test-fuzz  ## the C++ tests once more under asan, ubsan and tsan, and short fuzzing
	@$(call section,All tests passed under the sanitizers)

# The compiler goes on with the tests while pip still unpacks torch.
.PHONY: compile-tests
compile-tests: build/.wheel
	@$(call section,Compiling the C++ tests)
	cmake --build build/release --target all_tests

.PHONY: test-cpp
test-cpp: build  ## C++ tests, release build
	@$(call section,C++ tests)
	cmake --build build/release --target all_tests
	ctest --test-dir build/release --output-on-failure --no-tests=error

.PHONY: test-asan
test-asan: packages  ## C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(call section,C++ tests under asan and ubsan)
	cmake --preset asan >/dev/null
	cmake --build --preset asan --target all_tests
	ctest --preset asan -j $(SANITIZED_AT_ONCE)

.PHONY: test-tsan
test-tsan: packages  ## tests of concurrency under ThreadSanitizer
	@$(call section,Tests of concurrency under tsan)
	cmake --preset tsan >/dev/null
	cmake --build --preset tsan --target threads_tests
	scripts/without_aslr.sh ctest --preset tsan -j $(SANITIZED_AT_ONCE)

.PHONY: test-fuzz
test-fuzz: packages  ## replay the fuzzing corpora, then fuzz each parser for a few seconds
	@$(call section,Fuzzing)
	@scripts/system_packages.sh fuzz || true
	$(PYTHON) scripts/fuzz.py --seconds 12 --optional

.PHONY: test-python
test-python: build libraries  ## Python tests, against the installed package and the simulated CUDA driver
	@$(call section,Python tests)
	cmake --build build/release --target slackwater_sim_cuda
	SLACKWATER_SIM_CUDA=$(CURDIR)/build/release/sim/libslackwater_sim_cuda.so $(BIN)/python -m pytest tests/python \
	  -n $$(( $(JOBS) + 1 )) --dist worksteal  # many tests wait; whoever is done takes over some of the others

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
soak: build libraries  ## long tests: power cuts, kills, corruptions, mutations, MINUTES of load (30 minutes more)
	@$(call section,Soak)
	cmake --build build/release --target all_tests
	$(BIN)/python scripts/soak.py build/release --minutes $(MINUTES) $(ARGS)

.PHONY: mutate
mutate: build libraries  ## check that tests notice each mutation of tests/mutations (up to an hour); ARGS="--only slab"
	@$(call section,Mutations)
	cmake --build build/release --target slackwater_sim_cuda
	SLACKWATER_SIM_CUDA=$(CURDIR)/build/release/sim/libslackwater_sim_cuda.so $(BIN)/python scripts/mutate.py $(ARGS)

## Show ---------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: build  ## two minutes: train, kill, resume bit for bit, compare with torch.save and async_save
	$(BIN)/python examples/demo.py

.PHONY: bench
bench: build  ## a quarter of an hour: the figures of docs/benchmarks.md; ARGS="--quick": a short version
	cmake --build build/release --target slackwater_bench slackwater_micro
	$(BIN)/python bench/run.py $(ARGS)

.PHONY: bench-lazy
bench-lazy: build  ## lazy copies on a simulated GPU beside the paper's figures (nine minutes); ARGS="--quick"
	cmake --build build/release --target slackwater_bench slackwater_sim_cuda
	mkdir -p bench/results
	build/release/bench/slackwater_bench lazy --dir build --json bench/results/lazy.json $(ARGS)
	$(PYTHON) bench/lazy_plots.py bench/results/lazy.json bench/results

.PHONY: bench-backlog
bench-backlog: build  ## how long the trainer's small copies wait while a state leaves (four minutes); ARGS="--quick"
	cmake --build build/release --target slackwater_bench slackwater_sim_cuda
	mkdir -p bench/results
	build/release/bench/slackwater_bench backlog --dir build --json bench/results/backlog.json $(ARGS)

.PHONY: bench-tiers
bench-tiers: build $(VENV)/.object-stores  ## training while a lower tier dies and is slow; ARGS="--quick --tier s3"
	mkdir -p bench/results
	$(BIN)/python bench/tiers_stall.py --json bench/results/tiers.json $(ARGS)

.PHONY: bench-s3
bench-s3: build $(VENV)/.object-stores  ## upload and restore through an object store; ARGS="--size 256"
	mkdir -p bench/results
	$(BIN)/python bench/s3_transfer.py --dir build --json bench/results/s3.json $(ARGS)

.PHONY: bench-dcp
bench-dcp: build  ## checkpoints through torch.distributed.checkpoint beside its own writer (minutes); ARGS="--quick"
	$(BIN)/python bench/dcp_blocked.py --json bench/results/dcp.json $(ARGS)

.PHONY: bench-memory
bench-memory: build  ## a minute or two: from SIGKILL to the next step with a memory tier; ARGS="--rounds 3"
	cmake --build build/release --target slackwater_bench sw_cli
	mkdir -p bench/results
	$(BIN)/python bench/memory_restart.py --directory build --json bench/results/memory_restart.json $(ARGS)

.PHONY: bench-commit
bench-commit: build  ## minutes: what a commit of 8 to 16,384 ranks costs; ARGS="--quick": a short version
	cmake --build build/release --target slackwater_bench
	mkdir -p bench/results
	build/release/bench/slackwater_bench commit --dir build --json bench/results/commit.json $(ARGS)

.PHONY: bench-deepspeed
bench-deepspeed: build libraries  ## stall per checkpoint beside DeepSpeed's own engines (four minutes); ARGS="--quick"
	mkdir -p bench/results
	$(BIN)/python bench/deepspeed_stall.py --dir build --json bench/results/deepspeed.json $(ARGS)

# In a folder of its own: DLIO pins packages that nothing else here needs.
build/dlio/.installed: requirements-dlio.txt $(VENV)/.requirements
	rm -rf build/dlio
	$(pip_install) --no-deps --target build/dlio -r requirements-dlio.txt
	@touch $@

.PHONY: bench-dlio
bench-dlio: build libraries build/dlio/.installed  ## DLIO on 2 MPI ranks: ours beside its own; ARGS="--quick"
	mkdir -p bench/results
	$(BIN)/python bench/dlio_run.py --dlio build/dlio --dir build --json bench/results/dlio.json $(ARGS)

## Care ---------------------------------------------------------------------------------------------------------------

# The folders of source files changed since this commit are checked by clang-tidy in `make lint`.
LINT_BASE ?= $(shell git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)

.PHONY: lint
lint: build $(VENV)/.tools  ## folders, columns, sizes, clang-format, ruff; clang-tidy on what changed since LINT_BASE
	@scripts/system_packages.sh lint
	$(PYTHON) scripts/check_folders.py
	$(PYTHON) scripts/check_columns.py
	$(PYTHON) scripts/check_sizes.py
	scripts/lint.sh format-check $(BIN)
	scripts/lint.sh ruff $(BIN)
	scripts/lint.sh tidy-changed $(LINT_BASE)

.PHONY: tidy
tidy: build  ## clang-tidy on everything (minutes)
	@scripts/system_packages.sh lint
	scripts/lint.sh tidy-all

.PHONY: format
format: $(VENV)/.tools  ## let clang-format lay out the C++ sources, and ruff the Python ones
	@scripts/system_packages.sh lint
	scripts/lint.sh format $(BIN)

.PHONY: clean
clean:  ## remove build and .venv
	rm -rf build $(VENV)
