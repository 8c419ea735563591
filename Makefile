# `make` lists what there is. Everything runs in an environment of its own, .venv, which is made at first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(READY) ## Make the Python environment, or bring it up to date

$(READY): pyproject.toml constraints.txt
	@.ci/venv $(VENV) $(PYTHON)

.PHONY: check
check: $(READY) ## Lint, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

.PHONY: format
format: $(READY) ## Format the code, and mend what the linter can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: generate
generate: crds proto ## Generate everything that is generated and committed

.PHONY: crds
crds: $(READY) ## Generate crds/ from the models
	$(BIN)/python -m outhaul_api.crds crds

.PHONY: proto
proto: $(READY) ## Generate the gRPC code from the protos
	$(BIN)/python agent/grpc/generate.py

.PHONY: constraints
constraints: ## Write constraints.txt: the newest of everything that is needed, from a fresh environment
	.ci/constraints $(PYTHON)

# The cluster of the demo and the tests, which is no part of the distribution. `exec`: make ends what it has started itself,
# and no shell between the two keeps a signal to itself.
CLUSTER := exec env PYTHONPATH=tests $(BIN)/python -m cluster

.PHONY: demo
demo: $(READY) ## Install samples/terraform on a cluster of its own, show it, and clean up
	@$(CLUSTER) demo

.PHONY: up
up: $(READY) ## Start a cluster and the operator in the background, or what of it is not running
	@$(CLUSTER) up

.PHONY: down
down: $(READY) ## Stop what `make up` has started, and remove it
	@$(CLUSTER) down

.PHONY: test
test: export OUTHAUL_PRIVILEGES := $(CURDIR)/build/privileges
test: check ## Lint and types, then all tests: unit, wire, integration and end to end; and which rights they used
	@$(CLUSTER) prepare
	@rm -rf $(OUTHAUL_PRIVILEGES)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder tests/unit tests/wire tests/integration
	$(BIN)/pytest tests/e2e
	$(BIN)/pytest tests/privileges

.PHONY: bench
bench: $(READY) ## Measure Outhaul beside a Job that runs kubectl (docs/performance.md)
	@$(BIN)/python -m bench

.PHONY: bench-scale
bench-scale: $(READY) ## Measure the operator under load, on hollow agents (docs/performance.md)
	@$(BIN)/python -m bench.scale
