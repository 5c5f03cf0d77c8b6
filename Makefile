# One word per thing to do; `make help` lists them.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.installed
PACKAGES := lockstep collector analyzer planner api cli testbed benchmarks nccl_plugin tests
export LOCKSTEP_STATE_DIR ?= $(CURDIR)/.lockstep

.PHONY: help install up check check-python check-c test slow-test gpu-test plugin bench clean system-packages

help:  ## list these words
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: $(STAMP)  ## make the virtual environment and install everything into it

$(STAMP): pyproject.toml constraints.txt lockstep/__init__.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

up: install plugin  ## run the demo: a simulated cluster with a slow NIC, on http://127.0.0.1:8642
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

test: install system-packages check  ## check, then all tests but the long ones
	$(BIN)/pytest -m 'not slow' -n 2 --dist loadfile

slow-test: install system-packages  ## the long tests: kills, outages, whole systems
	$(BIN)/pytest -m slow

gpu-test: plugin  ## tests on a machine with a GPU; GPU_TEST='--help' lists what they can be told
	$(PYTHON) nccl_plugin/gpu/kit.py $(GPU_TEST)

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
