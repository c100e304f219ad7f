# Each target sets up what it needs. `make demo` and `make test` are all a newcomer has to know.

.PHONY: help demo test trials lint types contracts compile unit interop faults groups streams exactly-once kills soak bench images e2e e2e-all e2e-up \
	e2e-environment e2e-down e2e-clean kind-image docs format clean

# Tests start many processes of Mainstem. Without cached bytecode each of them compiles its modules again: 1.0 s of CPU
# for a broker, 2.4 s for an operator.
unexport PYTHONDONTWRITEBYTECODE

# Most tests wait for other processes, so four of them side by side keep two cores busy. Modules begin in the order of the command
# line: the long ones in tests/interop come first, and the short ones in tests/unit fill the end. Those in tests/faults measure how
# long clients stand still, and those in tests/cluster use all cores: they have the machine to themselves.
SIDE_BY_SIDE := -n 4 --dist loadscope --no-loadscope-reorder --durations 20 --durations-min 5

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: ## Run the main job on real data: 336,776 flights through 3 brokers into a warehouse table
	@scripts/setup demo
	@.venv/bin/mainstem demo

# Never on a cluster that a shell happens to name: the tests make one of their own.
test: ## Run what CI runs: checks, unit tests, and a scenario for each promise (PART="unit interop" runs only those)
	@scripts/setup test
	@env -u KUBECONFIG .venv/bin/python -m scripts.testing gate $(PART)

trials: ## Search for rare failures: all tests, new random examples, kill loops, bounds on time (TRIAL=faults, SEED=n)
	@scripts/setup test
	@env -u KUBECONFIG .venv/bin/python -m scripts.testing trials $(TRIAL) $(if $(SEED),--seed $(SEED))

lint:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types:
	.venv/bin/python -m scripts.check_types

contracts:
	.venv/bin/lint-imports

compile: ## Compile the broker's modules that each batch goes through (with a C compiler; without, they are plain Python)
	@scripts/setup test
	@.venv/bin/python -m scripts.compile

unit: ## Run the tests that start no processes
	@scripts/setup test
	.venv/bin/python -m pytest $(SIDE_BY_SIDE) tests/unit

interop: ## Run the tests with real brokers, ZooKeeper, Spark and stock clients
	@scripts/setup test
	.venv/bin/python -m pytest $(SIDE_BY_SIDE) tests/interop

soak: ## Live through 100,000 simulated histories of a cluster in trouble (SEEDS=n for another number)
	@scripts/setup test
	.venv/bin/python -m tests.cluster.soak --seeds $(or $(SEEDS),100000) --first $(or $(FIRST),0)

faults: ## Kill, stop, pause and cut off brokers under load; shows how long nothing was acknowledged
	@scripts/setup test
	.venv/bin/python -m pytest tests/faults

groups: ## Five minutes of members that join, leave, crash and return while brokers restart
	@scripts/setup test
	GROUPS_SECONDS=300 .venv/bin/python -m pytest tests/faults/test_group_changes.py --timeout 600

streams: ## Five minutes of a Kafka Streams application with exactly_once_v2 while it and its brokers are killed (needs Maven)
	@scripts/setup test
	STREAMS_SECONDS=300 .venv/bin/python -m pytest tests/interop/test_kafka_streams.py --timeout 900

exactly-once: ## Five minutes for each client of orders enriched in transactions while it and its brokers are killed (needs Maven for Java)
	@scripts/setup test
	LOOP_SECONDS=300 .venv/bin/python -m pytest tests/interop/test_exactly_once_loop.py --timeout 900

kills: ## Kill 200 loaders of each table format at random moments, with two at once
	@scripts/setup test
	LOADER_KILLS=200 .venv/bin/python -m pytest -o faulthandler_timeout=5000 tests/interop/test_loader_kill.py

bench: ## Measure side by side with Apache Kafka (needs Maven for that half)
	@$(MAKE) --no-print-directory compile
	.venv/bin/python -m bench

images: ## Build the container images (broker, ZooKeeper, operator, registry, Spark) as mainstem/NAME:dev
	@scripts/setup test
	@.venv/bin/python -m tests.e2e.machine images

# Three processes: one for the tests that share a release, two for all others. What takes long also takes nodes away, so it runs alone.
E2E_TESTS = -n 3 --timeout 600 -m 'not long' tests/e2e

# With KUBECONFIG the tests run on that cluster, whose nodes must hold the images; else on one that is made here.
e2e: ## Test on a real Kubernetes: KUBECONFIG's, or one of kind that this makes from whatever the machine has
ifdef KUBECONFIG
	@scripts/setup test
	.venv/bin/python -m pytest $(E2E_TESTS)
else
	@scripts/setup test .venv/bin/python -m tests.e2e.machine.tools
	@.venv/bin/python -m tests.e2e.machine test -- $(E2E_TESTS)
endif

e2e-all: ## The same, with all the tests that take long: machines lost, rolls interrupted, hundreds of Topics
	@$(MAKE) --no-print-directory e2e E2E_TESTS='--timeout 600 tests/e2e'

e2e-up: ## Make that cluster and leave it; eval "$(make -s e2e-environment)" lets kubectl and helm find it
	@scripts/setup test .venv/bin/python -m tests.e2e.machine.tools
	@.venv/bin/python -m tests.e2e.machine up

e2e-environment:
	@.venv/bin/python -m tests.e2e.machine environment

e2e-down: ## Remove that cluster and the Docker engine, if it was started for it; caches stay
	@.venv/bin/python -m tests.e2e.machine down

e2e-clean: ## The same, and remove the caches (images and programs)
	@.venv/bin/python -m tests.e2e.machine clean

kind-image: ## Make the image of a kind node, from source where the official one cannot be pulled
	@scripts/setup test
	@.venv/bin/python -m tests.e2e.machine node-image

docs: ## Build the documentation's site into build/site; warnings are errors
	@scripts/setup test
	@.venv/bin/python -m scripts.documentation

format: ## Format the code
	@scripts/setup test
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean: ## Remove what the targets above made
	rm -rf .venv data build bench/.cache tests/.cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
