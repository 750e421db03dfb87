# `make run` and `make test` are all a fresh machine needs: python3 (3.11 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VENV_STAMP := $(VENV)/.made
STAMP := $(VENV)/.installed
RUN_STAMP := $(VENV)/.installed-run
BENCH_STAMP := $(VENV)/.installed-bench
SEEDS ?= 1:100

.PHONY: run test check lint bench scale soak chaos proof clean help

help:
	@echo "make run    set up, start a PostgreSQL of your own, and run the daemon until Ctrl-C"
	@echo "make test   set up and run the tests"
	@echo "make check  ruff, mypy and the tests"
	@echo "make bench  compare speed with other stores, side by side"
	@echo "make scale  a thousand devices at once, long histories: how far one server goes"
	@echo "make soak   simulate devices, a replica and what goes wrong (SEEDS=first:count)"
	@echo "make proof  the tests with all their counts in full"
	@echo "make chaos  kill and starve real processes for ten minutes (SECONDS=60: one), then prove"

# Its stamp comes last: what was killed half-way, and has no pip that works, is made anew.
$(VENV_STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "syncd needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "This Python cannot make virtual environments. On Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --help >/dev/null 2>&1 || \
	  { echo "$(PYTHON) -m venv --clear $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@touch $@

# To run it takes less than to work on it.
$(RUN_STAMP): $(VENV_STAMP) pyproject.toml
	@echo "Installing syncd and what it needs into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded,mcp,ui]'
	@touch $@

$(STAMP): $(VENV_STAMP) pyproject.toml
	@echo "Installing syncd and what is needed to work on it into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(RUN_STAMP)

$(BENCH_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

# Looked at first: who reads how to begin does not look for an error below it.
run: $(RUN_STAMP)
	@$(BIN)/python -c 'from syncd import config, running; home = config.home(None); pid = running.pid(home); \
	  pid and exit(f"Error: the daemon of {home} is running already, as process {pid}\nRemedy: `$(BIN)/syncd status` shows what it does, `$(BIN)/syncd stop` ends it.")'
	@$(BIN)/syncd cloud try
	@echo; echo "Now: syncd run"
	@exec $(BIN)/syncd run

# Hundreds of processes: each would compile what it imports anew.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 4 --dist worksteal

test: $(STAMP)
	$(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

proof: $(STAMP)
	SYNCD_PROOF=1 $(PYTEST)
	$(MAKE) soak SEEDS=1:10000

soak: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m soak $(SEEDS)

# Not that of the shell, which counts.
SECONDS := 600
chaos: $(STAMP)
	$(BIN)/python -m chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

bench: $(BENCH_STAMP)
	$(BIN)/python -m bench

scale: $(BENCH_STAMP)
	$(BIN)/python -m scale

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache bench/results scale/results
