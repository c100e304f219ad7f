# Each target sets up what it needs. `make demo` and `make test` are all a newcomer has to know.

.PHONY: help demo test lint types contracts unit interop faults groups soak bench format clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: ## Run the main job on real data: 336,776 flights through 3 brokers into a warehouse table
	@scripts/setup demo
	@.venv/bin/mainstem demo

test: ## Run everything that CI runs
	@scripts/setup test
	@$(MAKE) --no-print-directory lint types contracts
	.venv/bin/python -m pytest

lint:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types:
	.venv/bin/mypy

contracts:
	.venv/bin/lint-imports

unit: ## Run the tests that start no processes
	@scripts/setup test
	.venv/bin/python -m pytest tests/unit tests/paper

interop: ## Run the tests with real brokers, ZooKeeper, Spark and stock clients
	@scripts/setup test
	.venv/bin/python -m pytest tests/interop

soak: ## Live through 100,000 simulated histories of a cluster in trouble (SEEDS=n for another number)
	@scripts/setup test
	.venv/bin/python -m tests.cluster.soak --seeds $(or $(SEEDS),100000) --first $(or $(FIRST),0)

faults: ## Kill, stop, pause and cut off brokers under load; shows how long nothing was acknowledged
	@scripts/setup test
	.venv/bin/python -m pytest tests/faults

groups: ## Five minutes of members that join, leave, crash and return while brokers restart
	@scripts/setup test
	GROUPS_SECONDS=300 .venv/bin/python -m pytest tests/faults/test_group_changes.py --timeout 600

bench: ## Measure side by side with Apache Kafka (needs Maven for that half)
	@scripts/setup test
	.venv/bin/python -m bench

format: ## Format the code
	@scripts/setup test
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean: ## Remove what the targets above made
	rm -rf .venv data bench/.cache tests/.cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
