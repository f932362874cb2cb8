# Every target installs what it needs into .venv first, once. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPOSE ?= docker compose
PYTEST_ARGS ?=

# The version that CI tests comes first. ensurepip is missing where a distribution splits it off (python3-venv).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	"$$p" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

.PHONY: help install demo test test-all chaos bench lint types up down smoke clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(INSTALLED) ## install everything into .venv (what the other targets do by themselves)

$(INSTALLED): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python >= 3.11 with venv was found. Install python3.11 and python3.11-venv, or say: make PYTHON=/path/to/python" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11" >&2; exit 1; }
	@echo "Installing HadarE into $(VENV) with $(PYTHON), once; PyTorch is large, so this takes minutes" >&2
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(INSTALLED) ## train three jobs on five emulated unequal nodes, live, in under three minutes
	$(BIN)/hadare demo

test: $(INSTALLED) ## all tests but chaos and GPU; real NATS by Docker if it answers, else embedded
	$(BIN)/python -m pytest -m "not chaos and not gpu" $(PYTEST_ARGS)

test-all: $(INSTALLED) ## all tests that this machine can run
	$(BIN)/python -m pytest $(PYTEST_ARGS)

chaos: $(INSTALLED) ## the tests that kill real processes, then 200 faults on a real cluster (15 minutes)
	$(BIN)/python -m pytest -m chaos $(PYTEST_ARGS)
	$(BIN)/hadare bench chaos

bench: $(INSTALLED) ## measure what a decision, a consolidation and a round's boundary cost
	$(BIN)/hadare bench decide
	$(BIN)/hadare bench consolidate
	$(BIN)/hadare bench round

lint: $(INSTALLED) ## formatting, lint and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(INSTALLED) ## mypy --strict
	$(BIN)/mypy

up: ## build and start the deployment of docker-compose.yml
	$(COMPOSE) up -d --build

down: ## stop the deployment; its data stays (`docker compose down -v` deletes it)
	$(COMPOSE) down

smoke: $(INSTALLED) ## bring the deployment up, train one job in it, take it down
	COMPOSE="$(COMPOSE)" deploy/smoke/run

clean: ## remove .venv and every cache and build output; data of clusters stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
