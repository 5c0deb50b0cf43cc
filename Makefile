# Everything happens in .venv inside the checkout, which is made on first use and made again when pyproject.toml or
# constraints.txt change. Needs make, git and a Python >= 3.11 with venv.
#
#   make PYTHON=/path/to/python3.12
#   make TORCH_INDEX_URL=URL    URL of PyTorch's package index for CPU builds (it is on PyTorch's install page).
#                               torch alone is taken from there, which on Linux saves the CUDA libraries (gigabytes).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
TORCH_INDEX_URL ?=
ATTACK_MINUTES ?= 5
ATTACK_SEED ?= 0

# A Python that was asked for is used or refused; the default one gives way to a newer one by name.
ifeq ($(origin PYTHON),file)
PYTHON_CANDIDATES := $(PYTHON) python3.13 python3.12 python3.11
else
PYTHON_CANDIDATES := $(PYTHON)
endif

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
READY := .venv/.ready
DEV := .venv/.dev
TORCH_PIN := $(shell grep '^torch==' constraints.txt)
RELEASES := $(shell sed -e 's/#.*//' fixtures/releases.txt)
ALL_RELEASES := $(shell sed -e 's/#.*//' specsim/engines/sglang/releases.txt)
VLLM_FEW := 0.26.0 0.33.0
VLLM_RELEASES := 0.11.0 $(VLLM_FEW)

# Every file of tests that reads the list of releases, or opens a release by its version.
RELEASE_TESTS := $(shell grep -rlwE --include='test_*.py' 'Release|RELEASES' property_tests)
GPU_TESTS := property_tests/gpu property_tests/kernels property_tests/contracts/test_bulk_generators.py \
	property_tests/reference/test_reference_agrees_with_the_naive_implementation.py

.PHONY: help setup run test test-releases test-package test-sm90 test-gpu sanitize-gpu attack nightly docs pages lint clean \
	stale fixtures expected

help: ## what can be made
	@sed -n -e 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

setup: $(DEV) ## the virtual environment alone, with what tests and linters need

run: $(READY) ## specsim check, on the built-in engine
	@$(BIN)/specsim check --cases 10 --schedules 100
	@printf '%s\n' '' 'That was specsim on its own kernels. Next, a release of SGLang, which is fetched once:' \
		'  . .venv/bin/activate' '  specsim check sglang==0.5.12 --only scheduler'

test: $(DEV) ## every test; fetches a few releases once: those of fixtures/releases.txt, and two of vLLM
	@$(BIN)/specsim targets $(foreach target,$(RELEASES:%=sglang==%) $(VLLM_FEW:%=vllm==%),--fetch $(target)) \
		|| echo 'make test: not every release is there (see above); the tests that need them are skipped' >&2
	$(BIN)/python -m pytest -n auto --dist worksteal

test-releases: $(DEV) ## the tests of every known release; fetches them once
	@$(BIN)/specsim targets $(foreach target,$(ALL_RELEASES:%=sglang==%) $(VLLM_RELEASES:%=vllm==%),--fetch $(target)) \
		|| echo 'make test-releases: not every release is there (see above); its tests are skipped' >&2
	$(BIN)/python -m pytest -n auto --all-releases $(RELEASE_TESTS)

test-package: $(DEV) ## a wheel, and what it does where there is no checkout: a minute
	rm -rf build/package && mkdir -p build/package/elsewhere
	$(PIP) wheel --quiet --no-deps --wheel-dir build/package .
	$(BIN)/python -m venv --system-site-packages build/package/venv
	$(BIN)/python -c 'import site; print("\n".join(site.getsitepackages()))' \
		> "$$(build/package/venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/needs.pth"
	build/package/venv/bin/python -m pip install --quiet --no-deps --force-reinstall --disable-pip-version-check build/package/*.whl
	cd build/package/elsewhere && ../venv/bin/python $(CURDIR)/property_tests/support/installed.py sglang==$(word 3,$(RELEASES))

stale: $(READY) ## lists the fixtures, and with them the replays of docs/upstream, that are out of date
	$(BIN)/python fixtures/remake.py fixtures/replays

fixtures: $(READY) ## makes them anew; commit what it changed
	$(BIN)/python fixtures/remake.py --write fixtures/replays

expected: $(DEV) ## what the tests expect of the releases VERSIONS, into fixtures/*.expected.json: minutes each
	TRITON_INTERPRET=1 $(BIN)/python -m property_tests.support.release_expectations $(VERSIONS)

test-sm90: $(DEV) ## every kernel compiled for sm_90, without a GPU: spills and vector widths
	SPECSIM_COMPILE=all $(BIN)/python -m pytest property_tests/kernels/test_compiled_kernels.py

test-gpu: $(DEV) ## what only a GPU can show of the kernels: minutes on one
	$(BIN)/python -m pytest -n 4 --dist loadgroup $(GPU_TESTS)

sanitize-gpu: $(DEV) ## every kernel on small cases under compute-sanitizer, where that is installed
	@if ! command -v compute-sanitizer >/dev/null; then \
		echo 'make sanitize-gpu: not run: compute-sanitizer is not on PATH (it comes with the CUDA toolkit)' >&2; exit 0; \
	fi; \
	for tool in memcheck racecheck initcheck; do \
		echo "== $$tool"; \
		PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $$tool --error-exitcode 99 --print-limit 20 \
			$(BIN)/python property_tests/support/sanitizer_run.py; \
	done

attack: $(DEV) ## hostile inputs of every kind for ATTACK_MINUTES (5), with ATTACK_SEED (0): must print 0
	$(BIN)/python -m property_tests.support.attack --minutes $(ATTACK_MINUTES) --seed $(ATTACK_SEED)

nightly: $(DEV) ## every test with fifty times the examples, and half an hour of attacks: hours
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n auto
	$(BIN)/python -m property_tests.support.attack --minutes 30 --seed $$(git rev-list --count HEAD)

docs: $(READY) ## the documentation as a site, in build/site; installs MkDocs on first use
	@$(BIN)/python -c 'import material, mkdocstrings_handlers.python' 2>/dev/null || $(PIP) install -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'build/site/index.html'

pages: $(DEV) ## what a program writes of the pages: docs/{bugs,commands,distances,operations}.md, rules, property_tests/PROMISES.md
	TERMINAL_WIDTH=100 $(BIN)/python -m typer specsim.cli utils docs --name specsim --title Commands --output docs/commands.md
	$(BIN)/python -m specsim.contracts > docs/operations.md
	$(BIN)/python -m property_tests.support.bugs_page > docs/bugs.md
	TRITON_INTERPRET=1 $(BIN)/python -m property_tests.support.distances_page > docs/distances.md
	$(BIN)/python -m property_tests.support.rules_page
	$(BIN)/python -m property_tests.support.promises

lint: $(DEV) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

clean: ## remove what make and the tools made
	rm -rf .venv build dist specsim_llm.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@for python in $(PYTHON_CANDIDATES); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
		echo 'specsim needs Python 3.11 or newer; none of these is: $(PYTHON_CANDIDATES). Try make PYTHON=PATH' >&2; exit 1; \
	fi; \
	"$$found" -m venv --clear .venv || { \
		echo "$$found cannot make a virtual environment; on Debian and Ubuntu install its package python3-venv" >&2; exit 1; }
ifneq ($(strip $(TORCH_INDEX_URL)),)
	$(PIP) install --quiet --no-deps --index-url '$(TORCH_INDEX_URL)' '$(TORCH_PIN)'
endif
	$(PIP) install --quiet -c constraints.txt '$(TORCH_PIN)'
	$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(DEV): $(READY)
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@
