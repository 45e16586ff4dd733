# Everything a fresh machine with Python 3.11+ and make needs: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# `make demo` installs the core alone, `make test` everything else in one call of pip.
CORE := $(VENV)/.core
READY := $(VENV)/.ready
CORE_VENV := .venv-core
CORE_TESTS := $(CORE_VENV)/.ready
# The versions that CI uses. `make test CONSTRAINTS=` takes the newest ones instead.
CONSTRAINTS ?= .ci/constraints.txt
PIP_OPTIONS := --quiet --no-compile $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
INSTALL := $(BIN)/python -m pip install $(PIP_OPTIONS)
OTHERS := assistants shared inspector gateway[openai,anthropic] adapters[pydantic-ai] evals
EDITABLE := --editable './packages/scroll-context[models,mcp]' \
    $(foreach name,$(OTHERS),--editable './packages/scroll-$(name)')
ASSISTANT_TESTS := $(addprefix packages/scroll-assistants/tests/,\
    test_claude_code.py test_codex.py test_gemini.py test_real_histories.py)

.PHONY: help demo test lint types unit test-core test-assistants test-gateway test-gateway-kills \
    test-hosts test-long test-lowest dist docs browser screenshots bench bench-large bench-shared \
    bench-inspector compare turn tokens soak fuzz mutants constraints clean

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) \
	    | sed -E 's/^([a-z-]+):[^#]*## ?/  make \1\t/' | expand -t 26

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Scroll needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	    echo "python3 cannot create a virtual environment; on Debian: apt-get install python3-venv"; \
	    exit 1; }
	@touch $@

# A later `make test` brings everything, so the core is installed alone only where nothing else is.
$(CORE): packages/scroll-context/pyproject.toml $(wildcard $(CONSTRAINTS)) | $(VENV)/.made
	$(INSTALL) --editable ./packages/scroll-context
	@touch $@

$(READY): pyproject.toml $(wildcard packages/*/pyproject.toml $(CONSTRAINTS)) | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(INSTALL) $(EDITABLE) --group dev
	@# Compiled here and not by pip, because this uses all cores.
	@$(BIN)/python -m compileall -q -j 0 -x '/tests/' $(VENV)/lib packages \
	    > $(VENV)/compiled.txt || true
	@touch $(CORE) $@

demo: $(CORE)    ## the main job, end to end, in a temporary folder
	@$(BIN)/scroll demo

test: $(READY)   ## lint, types and every test, side by side
	@$(MAKE) --no-print-directory -j 3 lint types unit

lint: $(READY)   ## ruff, rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy --strict on every distribution, and on mistakes that must be type errors
	$(BIN)/mypy

# Four processes that collect at once would each compile every test, for thirteen seconds; here
# one does it for all of them, while mypy has the other core. The sources are compiled because the
# tests start many processes, and PYTHONDONTWRITEBYTECODE may forbid them to keep what they compile.
unit: $(READY)   ## the tests, in four processes, because they wait half of the time
	@$(BIN)/python -m compileall -q -j 0 packages/*/src testing benchmarks
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --collect-only -qq > $(VENV)/collected.txt \
	    || { cat $(VENV)/collected.txt; exit 1; }
	$(BIN)/pytest -n 4
	@echo "The adapter for pydantic-ai was tested here. \`make test-hosts\` tests all, each with its" \
	    "framework: $$($(BIN)/python benchmarks/hosts.py --list)"

# pip is renewed first: the one that Python 3.11 brings knows no dependency groups.
$(CORE_TESTS): pyproject.toml packages/scroll-context/pyproject.toml $(wildcard $(CONSTRAINTS))
	$(PYTHON) -m venv --clear $(CORE_VENV)
	$(CORE_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(CORE_VENV)/bin/python -m pip install $(PIP_OPTIONS) \
	    --editable ./packages/scroll-context --group core-tests
	@touch $@

test-core: $(CORE_TESTS)  ## the core's tests where nothing else of ours is installed; ARGS
	$(CORE_VENV)/bin/pytest -n 4 $(or $(ARGS),packages/scroll-context/tests)

test-assistants: $(READY)  ## the tests with six real assistants: Claude Code, Codex, … (1 GB)
	@$(BIN)/python -m pip install --quiet --group assistants \
	    || echo "Claude Code and Codex cannot be installed"
	@npm install --silent --no-fund --no-audit --prefix $(VENV)/gemini @google/gemini-cli \
	    || echo "Gemini CLI cannot be installed"
	@npm install --silent --no-fund --no-audit --prefix $(VENV)/histories \
	    @earendil-works/pi-coding-agent @qwen-code/qwen-code @github/copilot \
	    || echo "Pi, Qwen Code and Copilot CLI cannot be installed"
	SCROLL_GEMINI_CLI=$(CURDIR)/$(VENV)/gemini/node_modules/.bin/gemini \
	SCROLL_PI=$(CURDIR)/$(VENV)/histories/node_modules/.bin/pi \
	SCROLL_QWEN=$(CURDIR)/$(VENV)/histories/node_modules/.bin/qwen \
	SCROLL_COPILOT=$(CURDIR)/$(VENV)/histories/node_modules/.bin/copilot \
	    $(BIN)/pytest -rs -n 3 --dist loadfile $(ASSISTANT_TESTS)

test-hosts:      ## the adapters under their real frameworks, lowest and newest version; HOST=name
	$(PYTHON) benchmarks/hosts.py $(HOST)

test-gateway: $(READY)  ## 150 turns of real assistants through a gateway; TURNS, WINDOWS (1 GB)
	@$(BIN)/python -m pip install --quiet --group assistants \
	    || echo "Claude Code and Codex cannot be installed"
	@npm install --silent --no-fund --no-audit --prefix $(VENV)/opencode opencode-ai \
	    || echo "opencode cannot be installed"
	@# The newest Claude Code does not refuse to read a file again; this one does.
	@npm install --silent --no-fund --no-audit --prefix $(VENV)/older-claude \
	    @anthropic-ai/claude-code@2.1.197 || echo "the older Claude Code cannot be installed"
	SCROLL_GATEWAY_TURNS=$(or $(TURNS),150) SCROLL_GATEWAY_WINDOWS="$(or $(WINDOWS),30000 120000)" \
	SCROLL_GATEWAY_REPORTS=$(CURDIR)/$(VENV)/gateway \
	SCROLL_OPENCODE=$(CURDIR)/$(VENV)/opencode/node_modules/.bin/opencode \
	SCROLL_OLDER_CLAUDE=$(CURDIR)/$(VENV)/older-claude/node_modules/.bin/claude \
	    $(BIN)/pytest -rs packages/scroll-gateway/tests/test_real_assistants.py \
	        packages/scroll-gateway/tests/test_real_one_session.py \
	        packages/scroll-gateway/tests/test_assistant_scenes.py

# Real assistants are among the clients if `make test-gateway` has installed them.
test-gateway-kills: $(READY)  ## kills a gateway, its clients and connections; KILLS, SEED
	PYTHONPATH=testing $(BIN)/python testing/gateway_kills.py --kills $(or $(KILLS),200) \
	    $(if $(SEED),--seed $(SEED))
	SCROLL_GATEWAY_TURNS=1 SCROLL_GATEWAY_KILLS=$(or $(ASSISTANT_KILLS),24) \
	SCROLL_GATEWAY_SEED=$(SEED) \
	SCROLL_OPENCODE=$(CURDIR)/$(VENV)/opencode/node_modules/.bin/opencode \
	    $(BIN)/pytest -rsP packages/scroll-gateway/tests/test_assistant_scenes.py -k at_random

test-long: $(READY)  ## every test in its long form: more races, kills and examples; ARGS for pytest
	SCROLL_LONG=1 $(BIN)/pytest -n 4 $(ARGS)

browser:         ## Debian's Chromium; without it the tests of the inspector's page are skipped
	$(if $(filter 0,$(shell id -u)),,sudo )apt-get install --yes --no-install-recommends chromium

screenshots: $(READY)  ## the pictures of the inspector in docs/img, from a run of the demo
	$(BIN)/python benchmarks/screenshots.py

test-lowest:     ## the tests with every dependency at its declared floor; ARGS for pytest
	$(PYTHON) benchmarks/lowest.py $(ARGS)

dist:            ## build every distribution, look into it, install it in clean environments; ARGS
	$(PYTHON) benchmarks/dist.py $(ARGS)

docs: $(READY)   ## the documentation site in site/; a warning is an error
	$(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html in a browser."

$(VENV)/.bench: $(READY)
	$(BIN)/python -m pip install --quiet --group bench
	@touch $@

bench: $(VENV)/.bench  ## every benchmark beside its peers; fills docs/RESULTS.md
	$(BIN)/python benchmarks/run.py $(if $(DATA),--data $(DATA))

bench-large: $(VENV)/.bench  ## one store of up to ten million messages (half an hour); SIZES
	$(BIN)/python benchmarks/large.py $(if $(SIZES),--sizes $(SIZES))

bench-shared: $(READY)  ## a shared store on Postgres beside one SQLite file; EVENTS, ARGS
	$(BIN)/python benchmarks/shared.py --events $(or $(EVENTS),100000) $(ARGS)

bench-inspector: $(READY)  ## the pages of the inspector at 100,000 events: first bytes and memory
	$(BIN)/python benchmarks/inspector.py

compare: $(READY)  ## the same measurements on BASE (a revision) and here; fails if 5 % slower
	$(BIN)/python benchmarks/compare.py --base $(or $(BASE),HEAD)

turn: $(READY)   ## the files that one turn with a recall crosses; ARGS=--list names them
	$(BIN)/python benchmarks/turn.py $(ARGS)

tokens: $(READY)  ## what five questions about a long history of BEAM (DATA) cost in tokens
	$(BIN)/python benchmarks/tokens.py --data $(DATA)

soak: $(READY)   ## a stress test with faults for SOAK_MINUTES (10); SOAK_SEED repeats the order
	$(BIN)/python benchmarks/soak

fuzz: $(READY)   ## every property test tries new examples for FUZZ_MINUTES (1); FUZZ_ONLY
	FUZZ_MINUTES=$(or $(FUZZ_MINUTES),1) \
	    $(BIN)/pytest -m fuzz -n 2 $(if $(FUZZ_ONLY),-k "$(FUZZ_ONLY)")

mutants: $(READY)  ## break the critical parts on purpose, and see whether a test notices; AREA
	@$(BIN)/python -m pip install --quiet --group mutants
	$(BIN)/python benchmarks/mutants.py $(AREA)

constraints: $(READY)  ## write the installed versions to .ci/constraints.txt
	@{ grep '^#' .ci/constraints.txt; \
	    $(BIN)/python -m pip list --format freeze --exclude-editable \
	    | grep -viE '^(pip|setuptools|wheel|scroll-)' | LC_ALL=C sort -f; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt .ci/constraints.txt

clean:           ## remove the virtual environments and caches
	rm -rf $(VENV) $(CORE_VENV) .venv-lowest .venv-hosts dist site \
	    .pytest_cache .mypy_cache .ruff_cache .hypothesis
