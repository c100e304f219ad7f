# Each target sets up what it needs. `make demo` and `make test` are all a newcomer has to know.

.PHONY: help demo test lint types contracts unit interop bench format clean

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

bench: ## Measure side by side with Apache Kafka (needs Maven for that half)
	@scripts/setup test
	.venv/bin/python -m bench

format: ## Format the code
	@scripts/setup test
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean: ## Remove what the targets above made
	rm -rf .venv data bench/.cache tests/.cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
