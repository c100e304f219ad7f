"""A `__transaction_state` partition that Apache Kafka wrote is taken over by our coordinator (R9, R11).

The partition holds transactional ids of both protocols in every state that a coordinator can leave: never
used, open, committed, aborted, and decided while no marker was written. The last one comes from cutting off
what Apache Kafka wrote after the decision.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from bench.apache_kafka import ApacheKafka
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.apache_kafka_files import take_over
from tests.support.clusters import Cluster, StartCluster
from tests.support.kafka_tools import run_tool, tool_jars
from tests.support.load import read_to_end
from tests.support.waiting import PATIENCE_SECONDS, wait_until

from mainstem_broker.protocol.batches import read_records, split_batches
from mainstem_broker.txn.records import decode_key, decode_value, encode_key, encode_value
from mainstem_broker.txn.states import State
from mainstem_broker.txn.transaction import CLIENT_VERSION_2, Transaction

TOPIC: Final = "events"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SETTINGS: Final = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
NEVER_USED: Final = "never-used"
LEFT_OPEN: Final = "left-open"
JAVA: Final = "java"
"""Of Apache Kafka's own producer, which speaks the second protocol; the others are librdkafka's."""
RECORDS: Final = 10
JAVA_RECORDS: Final = 40
TIMEOUT_MS: Final = 600_000
"""Longer than all tests: the transaction that is left open must not time out between two of them."""
STATES: Final = {
    COMMITTED: "CompleteCommit",
    ABORTED: "CompleteAbort",
    NEVER_USED: "Empty",
    LEFT_OPEN: "Ongoing",
    JAVA: "CompleteCommit",
}


@dataclass(slots=True)
class Written:
    """Apache Kafka's directory, and what its own tool showed: producer id and state by transactional id."""

    directory: Path
    listed: dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"), tool_jars(), SETTINGS)
    kafka.start()
    try:
        servers = kafka.bootstrap_servers
        create_topic(servers)
        for name, commits in ((COMMITTED, True), (ABORTED, False)):
            producer = begin_transaction(servers, name)
            if commits:
                producer.commit_transaction(60)
            else:
                producer.abort_transaction(60)
        initialized(servers, NEVER_USED)
        begin_transaction(servers, LEFT_OPEN)
        run_java_producer(servers)
        wait_until(lambda: states(list_transactions(servers)) == STATES, "all markers are written", 30)
        listed = list_transactions(servers)
    finally:
        kafka.kill()
    yield Written(kafka.log_directory, listed)


def create_topic(servers: str) -> None:
    admin: Any = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for created in admin.create_topics([NewTopic(TOPIC, 1, 1)], operation_timeout=PATIENCE_SECONDS).values():
        created.result(PATIENCE_SECONDS)


def initialized(servers: str, transactional_id: str) -> Any:
    producer: Any = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TIMEOUT_MS,
            "linger.ms": 1,
            "log_level": 0,
        }
    )
    producer.init_transactions(60)
    return producer


def begin_transaction(servers: str, transactional_id: str) -> Any:
    producer = initialized(servers, transactional_id)
    producer.begin_transaction()
    for number in range(RECORDS):
        producer.produce(TOPIC, f"{transactional_id}-{number}")
    assert producer.flush(60) == 0
    return producer


def run_java_producer(servers: str) -> None:
    """Some transactions in a row; all are committed."""
    shown = run_tool(
        "ProducerPerformance",
        *("--topic", TOPIC, "--num-records", str(JAVA_RECORDS), "--record-size", "10", "--throughput", "200"),
        *("--transactional-id", JAVA, "--transaction-duration-ms", "50"),
        *("--producer-props", f"bootstrap.servers={servers}"),
    )
    assert f"{JAVA_RECORDS} records sent" in shown, shown


def list_transactions(servers: str) -> dict[str, tuple[str, str]]:
    shown = run_tool("TransactionsCommand", "--bootstrap-server", servers, "list")
    rows = [re.split(r"\s+", line.strip()) for line in shown.splitlines() if line.strip()]
    assert rows, shown
    assert rows[0] == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"], shown
    return {name: (producer_id, state) for name, _, producer_id, state in rows[1:]}


def states(listed: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {name: state for name, (_, state) in listed.items()}


def records_of(directory: Path) -> list[tuple[str, bytes]]:
    """Transactional id and value of every record in the partition."""
    records = []
    for log in sorted((directory / f"{TRANSACTIONS_TOPIC}-0").glob("*.log")):
        for header, batch in split_batches(log.read_bytes()):
            for record in read_records(header, batch):
                name = decode_key(record.key or b"")
                assert name is not None
                assert encode_key(name) == record.key
                assert record.value is not None
                records.append((name, record.value))
    return records


def start(own_stack: StartCluster, directory: Path) -> Cluster:
    """A broker of ours that has found Apache Kafka's files."""
    cluster = own_stack(1, SETTINGS)
    create_topic(cluster.bootstrap_servers)
    initialized(cluster.bootstrap_servers, "creates-the-internal-topic")
    take_over(cluster, directory, (TOPIC, TRANSACTIONS_TOPIC))
    return cluster


def read(servers: str) -> list[str]:
    """Committed values up to the last stable offset."""
    return [record.value().decode() for record in read_to_end(servers, TOPIC, is_committed=True)]


def test_every_record_is_read_and_would_be_written_as_it_is(written: Written) -> None:
    met: dict[str, list[Transaction]] = {}
    for name, value in records_of(written.directory):
        transaction = decode_value(value)
        assert encode_value(transaction) == value
        met.setdefault(name, []).append(transaction)
    assert met.keys() == STATES.keys()
    assert {one.state for transactions in met.values() for one in transactions} == {
        State.EMPTY,
        State.ONGOING,
        State.PREPARE_COMMIT,
        State.PREPARE_ABORT,
        State.COMPLETE_COMMIT,
        State.COMPLETE_ABORT,
    }
    decided = [one for one in met[JAVA] if one.state.is_prepared]
    assert len(decided) > 1
    assert {one.client_version for one in decided} == {CLIENT_VERSION_2}
    # A decision of the second protocol has the epoch of the next transaction already.
    assert [one.epoch for one in decided] == list(range(decided[0].epoch, decided[0].epoch + len(decided)))


def test_ids_keep_their_states_and_go_on(own_stack: StartCluster, written: Written) -> None:
    cluster = start(own_stack, written.directory)
    servers = cluster.bootstrap_servers
    assert list_transactions(servers) == written.listed
    assert read(servers) == [f"{COMMITTED}-{number}" for number in range(RECORDS)]
    initialized(servers, LEFT_OPEN)  # aborts what was open
    assert len(read(servers)) == RECORDS + JAVA_RECORDS
    for name in (COMMITTED, ABORTED, NEVER_USED, LEFT_OPEN):
        begin_transaction(servers, name).commit_transaction(60)
    run_java_producer(servers)
    wait_until(
        lambda: set(states(list_transactions(servers)).values()) == {"CompleteCommit"},
        "all are committed",
        30,
    )
    after = {name: producer_id for name, (producer_id, _) in list_transactions(servers).items()}
    assert after == {name: producer_id for name, (producer_id, _) in written.listed.items()}
    assert len(read(servers)) == 5 * RECORDS + 2 * JAVA_RECORDS


def test_what_was_decided_is_carried_out(own_stack: StartCluster, written: Written, tmp_path: Path) -> None:
    """The last transaction's commit is recorded, and neither its marker nor its end."""
    directory = tmp_path / "cut"
    shutil.copytree(written.directory, directory)
    name, value = records_of(directory)[-1]
    assert (name, decode_value(value).state) == (JAVA, State.COMPLETE_COMMIT)
    for topic in (TOPIC, TRANSACTIONS_TOPIC):
        cut_last_batch(directory / f"{topic}-0")
    name, value = records_of(directory)[-1]
    assert (name, decode_value(value).state) == (JAVA, State.PREPARE_COMMIT)
    cluster = start(own_stack, directory)
    servers = cluster.bootstrap_servers
    wait_until(lambda: list_transactions(servers) == written.listed, "the commit is complete", 30)
    initialized(servers, LEFT_OPEN)
    assert len(read(servers)) == RECORDS + JAVA_RECORDS


def cut_last_batch(directory: Path) -> None:
    """As if the broker had been killed before it wrote the last batch; indexes are lost with it."""
    (log,) = directory.glob("*.log")
    content = log.read_bytes()
    header, _ = split_batches(content)[-1]
    log.write_bytes(content[: -header.size_bytes])
    for path in directory.iterdir():
        if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
            path.unlink()
