# Everything a fresh machine with Python 3.11+ and make needs: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EDITABLE := --editable './packages/scroll-context[models,mcp,meaning]' $(foreach name,assistants shared inspector evals,--editable ./packages/scroll-$(name))

.PHONY: help demo test lint types unit test-assistants test-long test-lowest browser screenshots bench bench-large bench-shared bench-inspector compare turn tokens soak fuzz mutants clean

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## ?/  make \1\t/' | expand -t 22

$(READY): pyproject.toml $(wildcard packages/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Scroll needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 cannot create a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --no-compile $(EDITABLE) --group dev
	@$(BIN)/python -m compileall -q -j 0 -x '/tests/' $(VENV)/lib packages > $(VENV)/compiled.txt || true  # on all cores
	@touch $@

demo: $(READY)   ## the main job, end to end, in a temporary folder
	@$(BIN)/scroll demo

test: $(READY)   ## lint, types and every test, side by side
	@$(MAKE) --no-print-directory -j 3 lint types unit

lint: $(READY)   ## ruff, rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy --strict on both packages, and on what must be a type error
	$(BIN)/mypy

unit: $(READY)   ## the tests, in four processes, since half of the time they wait
	$(BIN)/pytest -n 4

test-assistants: $(READY)  ## the tests with a real Claude Code, Codex and Gemini CLI, from PyPI and npm (400 MB)
	@$(BIN)/python -m pip install --quiet --group assistants || echo "Claude Code and Codex cannot be had"
	@npm install --silent --no-fund --no-audit --prefix $(VENV)/gemini @google/gemini-cli || echo "Gemini CLI cannot be had"
	SCROLL_GEMINI_CLI=$(CURDIR)/$(VENV)/gemini/node_modules/.bin/gemini $(BIN)/pytest -rs -n 3 --dist loadfile \
	    $(addprefix packages/scroll-assistants/tests/,test_claude_code.py test_codex.py test_gemini.py)

test-long: $(READY)  ## every test in its long form: more races, kills, cuts and examples; ARGS (for pytest) chooses
	SCROLL_LONG=1 $(BIN)/pytest -n 4 $(ARGS)

browser:         ## Debian's Chromium, in which the inspector is tested; without it those tests are skipped
	$(if $(filter 0,$(shell id -u)),,sudo )apt-get install --yes --no-install-recommends chromium

screenshots: $(READY)  ## the pictures of the inspector in docs/img, from a run of the demo
	$(BIN)/python benchmarks/screenshots.py

test-lowest:     ## the tests with every dependency at the floor that is promised; ARGS (for pytest) chooses a part
	$(PYTHON) benchmarks/lowest.py $(ARGS)

$(VENV)/.bench: $(READY)
	$(BIN)/python -m pip install --quiet --group bench
	@touch $@

bench: $(VENV)/.bench  ## every benchmark beside its peers; fills the README's numbers
	$(BIN)/python benchmarks/run.py $(if $(DATA),--data $(DATA))

bench-large: $(VENV)/.bench  ## the same, with search in up to a million messages
	$(BIN)/python benchmarks/run.py --large $(if $(DATA),--data $(DATA))

bench-shared: $(READY)  ## a shared store on Postgres beside one SQLite file; EVENTS (100000) of a new host; ARGS
	$(BIN)/python benchmarks/shared.py --events $(or $(EVENTS),100000) $(ARGS)

bench-inspector: $(READY)  ## the pages of the inspector at 100,000 events: first bytes, cold and warm, and memory
	$(BIN)/python benchmarks/inspector.py

compare: $(READY)  ## the same measurements on BASE (a revision) and on this checkout, in turns; fails when slower by 5 %
	$(BIN)/python benchmarks/compare.py --base $(or $(BASE),HEAD)

turn: $(READY)   ## the files and functions that one turn with a recall crosses; ARGS=--list names them
	$(BIN)/python benchmarks/turn.py $(ARGS)

tokens: $(READY)  ## what five questions about a long history of BEAM (DATA) cost in tokens
	$(BIN)/python benchmarks/tokens.py --data $(DATA)

soak: $(READY)   ## everything goes wrong for SOAK_MINUTES (10); SOAK_SEED repeats the order
	$(BIN)/python benchmarks/soak

fuzz: $(READY)   ## every property test tries new examples for FUZZ_MINUTES (1); FUZZ_ONLY chooses by name
	FUZZ_MINUTES=$(or $(FUZZ_MINUTES),1) $(BIN)/pytest -m fuzz -n 2 $(if $(FUZZ_ONLY),-k "$(FUZZ_ONLY)")

mutants: $(READY)  ## change the parts that must not be wrong, and see whether a test notices; AREA chooses
	@$(BIN)/python -m pip install --quiet --group mutants
	$(BIN)/python benchmarks/mutants.py $(AREA)

clean:           ## remove the virtual environments and caches
	rm -rf $(VENV) .venv-lowest .pytest_cache .mypy_cache .ruff_cache .hypothesis
