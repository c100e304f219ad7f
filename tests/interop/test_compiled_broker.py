"""A broker's process runs compiled modules where they were made, which `make test` does first."""

from __future__ import annotations

from pathlib import Path

from tests.support.clusters import SharedCluster

from mainstem_broker.compiled import are_made


def test_a_broker_loads_what_was_compiled_of_its_sources(local_stack: SharedCluster) -> None:
    broker_id = next(iter(local_stack.brokers))
    mapped = Path(f"/proc/{local_stack.broker_pid(broker_id)}/maps").read_text()
    assert ("__mypyc" in mapped) is are_made()
