# One word per thing to do; `make help` lists them.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
PINNED_BY := pyproject.toml constraints.txt lockstep/__init__.py
# Whole systems, each of which can use all cores, and whose clocks are real: nothing runs beside them.
SYSTEMS := tests/e2e tests/deploy tests/planner/controllers tests/testbed_checks
PACKAGES := lockstep collector importers simulator analyzer planner api cli benchmarks nccl_plugin tests
# The option --constraint does not hold for what builds a wheel, this does.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
# Tests start python a thousand times: what was compiled once is kept, also on a machine that asks for the opposite.
unexport PYTHONDONTWRITEBYTECODE
export LOCKSTEP_STATE_DIR ?= $(CURDIR)/.lockstep

.PHONY: help install up check check-python check-c test fast-test slow-test long-test mutation gpu-test gpu-live gpu-record plugin bench sbom lock clean system-packages

help:  ## list these words
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: $(STAMP)  ## make the virtual environment and install everything into it

# Everything includes what the demo needs; the demo alone needs neither torch nor a browser nor a compiler. Modules are
# compiled when they are first imported: most of 1 GB never is, and compiling all of it was two fifths of the work.
$(STAMP): $(PINNED_BY)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --editable '.[dev]'
	touch $(DEMO_STAMP) $@

$(DEMO_STAMP): $(PINNED_BY)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --editable '.[api,analyzer,planner,collector,sim]'
	touch $@

up: $(DEMO_STAMP)  ## run the demo: a simulated cluster with a slow NIC, on http://127.0.0.1:8642
	$(BIN)/lockstep store migrate
	exec $(BIN)/lockstep up --demo

plugin:  ## build the NCCL profiler plugin and the path shim
	$(MAKE) --no-print-directory -C nccl_plugin all
	$(MAKE) --no-print-directory -C path_shim all

check: install  ## format, lint, types, import rules, C tests
	@$(MAKE) --no-print-directory -j2 --output-sync=target check-python check-c

check-python:
	$(BIN)/ruff format --check $(PACKAGES)
	$(BIN)/ruff check $(PACKAGES)
	$(BIN)/mypy
	$(BIN)/lint-imports

check-c:
	$(MAKE) --no-print-directory -C nccl_plugin test
	$(MAKE) --no-print-directory -C path_shim test

test:  ## check, and the fast tests beside it
	@$(MAKE) --no-print-directory -j2 install system-packages
	@$(MAKE) --no-print-directory -j3 check-python check-c fast-test

# On a clean clone half of the time that a worker takes to import all tests goes into rewriting their assertions, so
# only what failed is imported so, once more, to show the values that were compared.
fast-test:
	$(BIN)/pytest -m 'not slow' -n 2 --dist loadfile --assert=plain -p no:schemathesis \
		|| { $(BIN)/pytest -m 'not slow' --last-failed --last-failed-no-failures none; exit 1; }

slow-test: install system-packages  ## kills, outages, whole systems
	$(BIN)/pytest -m 'slow and not long' -n 2 --dist loadfile --durations=30 $(addprefix --ignore=,$(SYSTEMS))
	$(BIN)/pytest -m 'slow and not long' --durations=30 $(SYSTEMS)

long-test: install system-packages  ## exhaustive variants and many seeds, before a release
	$(BIN)/pytest -m long -n 2 --dist loadfile $(addprefix --ignore=,$(SYSTEMS))
	$(BIN)/pytest -m long $(SYSTEMS)
	$(BIN)/pytest -m 'hypothesis and not slow' -n 2 --dist loadfile --hypothesis-profile=many

mutation: install  ## coverage by package, and how many of 200 seeded changes the fast tests notice
	$(BIN)/pytest -m 'not slow' -n 2 --dist loadfile -q --cov --cov-branch --cov-context=test --cov-report=
	@for package in $(filter-out nccl_plugin tests,$(PACKAGES)); do \
		echo "$$package $$($(BIN)/coverage report --include="$$package/*" --format=total) %"; done
	$(BIN)/python -m tests.mutation --packages analyzer planner api/ingest collector lockstep/store

gpu-test: plugin  ## tests on a machine with a GPU; GPU_TEST='--help' lists what they can be told
	$(PYTHON) nccl_plugin/gpu/kit.py $(GPU_TEST)

gpu-live: plugin  ## Lockstep beside real training on a GPU; GPU_LIVE='--help' lists what it can be told
	$(PYTHON) nccl_plugin/gpu/live.py $(GPU_LIVE)

gpu-record: plugin  ## records real training with faults on a GPU; GPU_RECORD='--seed 1' draws what
	$(PYTHON) nccl_plugin/gpu/record.py $(GPU_RECORD)

sbom: install  ## write what an installation of the services consists of to dist/sbom.cdx.json
	mkdir -p dist
	$(BIN)/python deploy/sbom.py api,analyzer,planner,collector > dist/sbom.cdx.json

lock: install  ## write deploy/locks: what services and collectors are made of, with hashes; after a change of constraints.txt
	$(BIN)/python deploy/lock.py

bench: install  ## measure every claim; `lockstep bench NAME --quick` for one
	$(BIN)/lockstep bench store
	$(BIN)/lockstep bench plugin
	$(BIN)/lockstep bench ingest
	$(BIN)/lockstep bench fleet

system-packages:
	@tests/install-system-packages

clean:  ## remove what the other words made
	$(MAKE) --no-print-directory -C nccl_plugin clean
	$(MAKE) --no-print-directory -C path_shim clean
	rm -rf $(VENV) .lockstep build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
