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

# `make test KUBERNETES=1.30.14` runs on another Kubernetes than the newest, `SEED=random` in another order.
SUITE := $(BIN)/python tests/suite.py

.PHONY: test
test: $(READY) ## Lint and types, then all tests: unit, wire, integration, node; and which rights they used
	@$(SUITE)

.PHONY: check unit wire integration node
check: $(READY) ## Lint, types and layers
unit: $(READY) ## The tests that need nothing but Python
wire: $(READY) ## The tests of agents as processes, over gRPC and TLS
integration: $(READY) ## The tests on a real API server, with a stand-in for nodes
node: $(READY) ## The tests on a real node; as root
check unit wire integration node:
	@$(SUITE) $@

.PHONY: oldest
oldest: $(READY) ## What differs between versions of Kubernetes, on the oldest that is supported
	@KUBERNETES=1.30.14 MARK=versions $(SUITE) integration node

.PHONY: soak
soak: MINUTES ?= 60
soak: $(READY) ## Change, kill and delete for an hour, or MINUTES=...
	OUTHAUL_SOAK_MINUTES=$(MINUTES) $(BIN)/pytest -s tests/soak

.PHONY: bench
bench: $(READY) ## Measure Outhaul beside a Job that runs kubectl (docs/performance.md)
	@$(BIN)/python -m bench

.PHONY: bench-scale
bench-scale: $(READY) ## Measure the operator under load, on hollow agents (docs/performance.md)
	@$(BIN)/python -m bench.scale
