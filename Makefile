# `make run`: a hub on this machine. `make test`: the suite. Everything lives in .venv and var/, beside this file.

.DEFAULT_GOAL := help
.PHONY: help run demo test lint mutants conformance

PYTHON ?=
PORT ?=
ARGS ?=
PY := .venv/bin/python

help: ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: .venv/runtime ## a hub on http://127.0.0.1:8000 (the first time with another PORT=...)
	@$(PY) -m config.first_start $(if $(PORT),--port $(PORT))
	@$(PY) manage.py setup
	@exec $(PY) manage.py serve $(ARGS)

demo: .venv/runtime ## scripted agents against a hub, with the published figures beside ours (ARGS=--quick)
	@$(PY) -m config.first_start
	@$(PY) manage.py demo $(ARGS)

test: .venv/dev ## the suite on SQLite, then on PostgreSQL where one answers (ARGS="-k word")
	@$(PY) -m tests.run $(ARGS)

lint: ## the cheap checks of .ci/run
	@bash .ci/run lint

mutants: .venv/dev ## each one-line patch that stands beside a test must turn that test red
	@$(PY) -m tests.mutants $(ARGS)

conformance: .venv/dev ## the MCP conformance suite (needs npm)
	@$(PY) -m tests.conformance.run $(ARGS)

# --- The virtual environment, kept until the requirements change ------------------------------------------------------

.venv/bin/python:
	@for python in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
	    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        echo "Making .venv with $$("$$python" --version)."; \
	        exec "$$python" -m venv .venv; \
	    fi; \
	done; \
	echo "Parley needs Python 3.11 or newer with its venv module, and found only: $$(python3 --version 2>&1)." >&2; \
	echo "On Debian or Ubuntu: apt-get install python3-venv. Elsewhere: make PYTHON=/path/to/python3.12 ..." >&2; \
	exit 1

.venv/runtime: requirements.txt | .venv/bin/python
	@echo "Installing what the hub needs (once; about half a minute)."
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/dev: requirements-dev.txt requirements.txt | .venv/bin/python
	@echo "Installing what tests and checks need (once; about a minute)."
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch .venv/runtime $@
