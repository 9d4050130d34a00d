# Every target makes .venv by itself. `make serve ARGS="--port 5673"`, `make test ARGS="-k settings"`.
PY := .venv/bin/python
ARGS ?=
# On all cores; a group of tests stays in one process (tests/conftest.py).
PARALLEL ?= -n logical --dist loadgroup
SECONDS ?= 60
ROUNDS ?= 100
CUTS ?= 30
RESULTS ?= reports
.DEFAULT_GOAL := help
# Tests start hundreds of Python processes; without bytecode on disk each compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup serve test test-all unit sim integration fault fmt lint types compile conformance referee compare bench docs requirements check clean

help: ## what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

.venv/base.stamp: requirements/base.txt tools/setup.sh
	@tools/setup.sh base
	@touch $@

.venv/dev.stamp: requirements/dev.txt requirements/java.txt tools/setup.sh
	@tools/setup.sh dev
	@touch .venv/base.stamp $@

.venv/docs.stamp: .venv/dev.stamp requirements/docs.txt
	@tools/setup.sh docs
	@touch $@

setup: .venv/dev.stamp ## make .venv with everything a developer needs

serve: .venv/base.stamp ## run the broker on 127.0.0.1:5672, data in ./vouchmq-data
	@exec $(PY) -m vouchmq serve $(ARGS)

# Many of them wait for a disk or a process: two for each processor.
test: PARALLEL = -n $(shell expr 2 \* $$(nproc)) --dist loadgroup
test: .venv/dev.stamp ## every test but those marked slow, on all cores
	@$(PY) -m pytest $(PARALLEL) -m "not slow" $(ARGS)

# Fewer than above: with these are the JVM's, which keep a processor busy.
test-all: PARALLEL = -n $(shell expr 3 \* $$(nproc) / 2) --dist loadgroup
test-all: .venv/dev.stamp ## every test
	@$(PY) -m pytest $(PARALLEL) $(ARGS)

unit: .venv/dev.stamp ## the quick tests
	@$(PY) -m pytest $(PARALLEL) tests/unit tests/property tests/test_house.py tests/test_docs.py tests/test_flow.py $(ARGS)

sim: .venv/dev.stamp ## crashes of the store and the broker from fresh seeds; SECONDS=60
	@$(PY) -m tests.simulation --seconds $(SECONDS) $(ARGS)

integration: .venv/dev.stamp ## real clients, kills and hostile peers against a real process
	@$(PY) -m pytest $(PARALLEL) tests/integration tests/fault tests/compatibility $(ARGS)

fault: .venv/dev.stamp ## kills, power cuts (as root) and failing disks; ROUNDS=100 CUTS=30 RESULTS=reports
	@$(PY) -m tests.fault.campaign sigkill --rounds $(ROUNDS) --out $(RESULTS)/sigkill.json
	@$(PY) -m tests.fault.campaign power --file-system ext4 --rounds $(CUTS) --out $(RESULTS)/power-ext4.json
	@$(PY) -m tests.fault.campaign power --file-system xfs --rounds $(CUTS) --out $(RESULTS)/power-xfs.json
	@$(PY) -m pytest tests/fault --campaign $(ARGS)

fmt: .venv/dev.stamp ## format the code
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix-only -q .

lint: .venv/dev.stamp ## format and rules, without changing anything
	@$(PY) -m ruff format --check -q .
	@$(PY) -m ruff check -q .

types: .venv/dev.stamp ## mypy --strict
	@$(PY) -m mypy

compile: .venv/dev.stamp ## a compiled copy in build/compiled: make -C build/compiled unit
	@$(PY) -m tools.compile $(ARGS)

conformance: .venv/dev.stamp ## every rule against a broker of ours
	@$(PY) tools/with_broker.py -- $(PY) -m vouchmq.conformance --url '{url}' \
		--restart-command '{restart}' --control-command '{control}' --tls '{tls_port}' '{tls_files}' $(ARGS)

referee: .venv/dev.stamp ## the rules that RabbitMQ keeps too, against Debian's rabbitmq-server
	@$(PY) tools/with_broker.py --referee -- $(PY) -m vouchmq.conformance --referee --url '{url}' \
		--restart-command '{restart}' --control-command '{control}' --tls '{tls_port}' '{tls_files}' $(ARGS)

compare: .venv/dev.stamp ## the last two side by side, as one page
	@mkdir -p $(RESULTS)
	-@$(MAKE) --no-print-directory conformance ARGS="--json $(RESULTS)/ours.json $(ARGS)" >/dev/null
	-@$(MAKE) --no-print-directory referee ARGS="--json $(RESULTS)/rabbitmq.json $(ARGS)" >/dev/null
	@$(PY) -m vouchmq.conformance compare $(RESULTS)/ours.json $(RESULTS)/rabbitmq.json --html $(RESULTS)/comparison.html

bench: .venv/dev.stamp ## throughput and latency; ARGS="--peer lavinmq" (bench/README.md)
	@$(PY) -m bench $(ARGS)

docs: .venv/docs.stamp ## write the tables that are made from the code, check the pages, build build/docs/html
	@$(PY) -m tools.write_configuration
	@$(PY) -m tools.write_http_routes
	@$(PY) -m tools.draw_flow
	@$(PY) -m pytest -q tests/test_docs.py tests/test_flow.py
	@$(PY) -m tools.site

# Needs uv. No index host may end up in the files, so no lock file: hashes pin as well.
requirements: ## pin the newest versions that pyproject.toml allows
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-header --no-emit-index-url pyproject.toml -o requirements/base.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-header --no-emit-index-url --extra dev pyproject.toml -o requirements/dev.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-header --no-emit-index-url -c requirements/dev.txt --extra docs pyproject.toml -o requirements/docs.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-header --no-emit-index-url requirements/nameko.in -o requirements/nameko.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-header --no-emit-index-url requirements/java.in -o requirements/java.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-header --no-emit-index-url requirements/schemathesis.in -o requirements/schemathesis.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-header --no-emit-index-url requirements/deploy.in -o requirements/deploy.txt

check: lint types test ## the gate

clean: ## remove what was made here, but no data
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis reports build dist *.egg-info
	@find . -name __pycache__ -prune -exec rm -rf {} +
