# make demo   set everything up and train on the bundled MovieLens ratings
# make test   set everything up and run all tests
# make TF=2.21.0 test   the same for another TensorFlow, in a venv of its own
PYTHON ?= python3.11
TF ?= 2.15.1
JOBS ?= 2
VENV ?= .venv-$(TF)
CORE_BUILD := build/core
ASAN_BUILD := build/core-asan
TSAN_BUILD := build/core-tsan
PY := $(VENV)/bin/python
BIN := $(abspath $(VENV))/bin
# Every later step finds cmake and ninja of the venv first.
export PATH := $(BIN):$(PATH)
export TF_CPP_MIN_LOG_LEVEL ?= 2

SOURCES := $(shell find mx_rec passes kernels -type f \( -name '*.py' -o -name '*.cc' -o -name '*.h' -o -name '*.inc' -o -name '*.txt' \)) CMakeLists.txt pyproject.toml

.PHONY: build test test-core test-sanitizers test-python demo lint format bench clean

$(VENV)/.ready: pyproject.toml tools/dev_requirements.py
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --upgrade pip
	$(PY) -m pip install -q "tensorflow-cpu==$(TF)" $$($(PY) tools/dev_requirements.py)
	touch $@

$(VENV)/.installed: $(VENV)/.ready $(SOURCES)
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(PY) -m pip install -q --no-build-isolation --no-deps --force-reinstall \
	  -C build-dir=build/ops-$(TF) .
	touch $@

build: $(VENV)/.installed

test: test-core test-sanitizers test-python

test-core: $(VENV)/.ready
	cmake -S kernels/core -B $(CORE_BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DMXREC_BUILD_TESTS=ON > /dev/null
	cmake --build $(CORE_BUILD) -j $(JOBS)
	$(CORE_BUILD)/core_tests

test-sanitizers: $(VENV)/.ready
	cmake -S kernels/core -B $(ASAN_BUILD) -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMXREC_BUILD_TESTS=ON -DMXREC_SANITIZE=address,undefined > /dev/null
	cmake --build $(ASAN_BUILD) -j $(JOBS)
	$(ASAN_BUILD)/core_tests
	$(ASAN_BUILD)/stress_table 10
	cmake -S kernels/core -B $(TSAN_BUILD) -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMXREC_BUILD_TESTS=ON -DMXREC_SANITIZE=thread > /dev/null
	cmake --build $(TSAN_BUILD) -j $(JOBS)
	$(TSAN_BUILD)/stress_table 10

test-python: build
	$(BIN)/pytest -n $(JOBS) $(PYTEST_ARGS) tests

demo: build
	$(PY) demo/movielens_deepfm.py

# The peers need a venv of their own: this TFRA is the last that loads beside TensorFlow 2.15, without its pins.
.venv-bench/.ready: $(VENV)/.installed
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install -q "tensorflow-cpu==2.15.1" networkx click rich typeguard==2.13.3 packaging
	.venv-bench/bin/python -m pip install -q --no-deps tensorflow-recommenders-addons==0.7.2
	touch $@

# PyTorch does not share a process, or a venv, with TensorFlow.
.venv-bench-torch/.ready:
	$(PYTHON) -m venv .venv-bench-torch
	.venv-bench-torch/bin/python -m pip install -q numpy torch==2.13.0 fbgemm-gpu-cpu==1.8.0
	touch $@

# Everything in docs/benchmarks.md. Run it on an otherwise idle machine.
bench: .venv-bench/.ready .venv-bench-torch/.ready build test-core
	cp -r $(VENV)/lib/python3*/site-packages/mx_rec .venv-bench/lib/python3*/site-packages/
	cd tools/bench && ../../.venv-bench/bin/python bench_store.py
	cd tools/bench && ../../.venv-bench/bin/python bench_optimizers.py --fbgemm ../../.venv-bench-torch/bin/python
	cd tools/bench && ../../.venv-bench/bin/python bench_memory.py
	cd tools/bench && ../../.venv-bench/bin/python bench_fuse.py --cpu
	cd tools/bench && ../../.venv-bench/bin/python bench_faae.py
	cd tools/bench && ../../.venv-bench/bin/python bench_checkpoint.py
	cd tools/bench && ../../.venv-bench/bin/python bench_repeats.py
	cd tools/bench && ../../.venv-bench/bin/python bench_prefetch.py
	cd tools/bench && ../../.venv-bench/bin/python bench_pool.py
	cd tools/bench && ../../.venv-bench/bin/python bench_rewrite.py --peers
	cd tools/bench && ../../.venv-bench/bin/python bench_scale.py
	$(CORE_BUILD)/bench_core

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(find kernels -name '*.cc' -o -name '*.h' -o -name '*.inc')

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find kernels -name '*.cc' -o -name '*.h' -o -name '*.inc')

clean:
	rm -rf build .venv .venv-* .mypy_cache .pytest_cache .ruff_cache
