"""Apache Kafka's DumpLogSegments reads every file that brokers leave after a mixed run (R6, R9).

The run has plain, idempotent and transactional batches of several codecs, committed, aborted and open
transactions, compaction and commits of offsets, on three replicas. Its files are read when all brokers were
killed, and when they have recovered, gone on and stopped.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.clusters import Cluster, RunCluster
from tests.support.command_line import mainstem_json
from tests.support.kafka_tools import run_tool
from tests.support.waiting import wait_until

from mainstem_broker.log.verification import verify_log

BROKERS: Final = (1, 2, 3)
SETTINGS: Final = {
    "log.cleaner.backoff.ms": "50",
    "log.flush.offset.checkpoint.interval.ms": "100",
    "log.index.interval.bytes": "1000",  # batches are small here: an index needs several entries
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "20000",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.segment.bytes": "20000",
}
SMALL_SEGMENTS: Final = {"internal.segment.bytes": "50000"}
TOPICS: Final = {
    "enriched": SMALL_SEGMENTS,
    "latest": {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"},
}
DECODERS: Final = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
}
"""The internal topics, and the option that decodes their records."""
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TRANSACTIONS_PER_PART: Final = 60
RECORDS: Final = 10
"""Of each transaction, in each topic."""

SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
COMPLAINTS: Final = re.compile(
    "mismatch|out of order|not found|invalid|exception|corrupt|ignoring", re.IGNORECASE
)
"""Parts of every sentence by which the tool reports that a file is wrong."""

Replica = tuple[int, str]
"""A broker's copy of the one partition of a topic."""


@dataclass(slots=True)
class Run:
    """What was written so far, and what is in the files then.

    - `markers`: those in `enriched`.
    - `open_id`: the transactional id whose transaction is open.
    - `dumps`: the lines that the tool prints of each file of a replica.
    - `gaps`: pairs of offsets that it reports as not consecutive.
    - `complaints`: lines that name a fault.
    - `problems`: what `mainstem log verify` reports.
    """

    markers: Counter[str]
    open_id: str
    dumps: dict[Replica, list[str]] = field(default_factory=lambda: defaultdict(list))
    gaps: dict[Replica, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    complaints: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def matches(self, replica: Replica, pattern: str) -> list[str]:
        """What the pattern's group matches in the lines of a replica."""
        return [result for line in self.dumps[replica] for result in re.findall(pattern, line)]


@pytest.fixture(scope="module")
def runs(run_cluster: RunCluster) -> Iterator[dict[str, Run]]:
    """The run when all brokers were killed, and when they were started again and stopped."""
    with run_cluster(3, SETTINGS) as cluster:
        admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        topics = [NewTopic(name, 1, 3, config=config) for name, config in TOPICS.items()]
        for created in admin.create_topics(topics, operation_timeout=60).values():
            created.result(60)

        killed = Run(Counter(), "open-at-the-kill")
        write_part(cluster, killed, 1)
        open_transaction(cluster, killed)
        wait_until(lambda: is_compacted(cluster), "each compacted topic is compacted", 60)
        for broker_id in BROKERS:
            cluster.kill_broker(broker_id)
        look_into_files(cluster, killed)

        for broker_id in BROKERS:
            cluster.start_broker(broker_id)
        stopped = Run(killed.markers.copy(), "open-at-the-end")
        transactional(cluster, killed.open_id).init_transactions(60)  # aborts what the kill left open
        stopped.markers["ABORT"] += 1
        write_part(cluster, stopped, 2)
        open_transaction(cluster, stopped)
        for broker_id in BROKERS:
            cluster.stop_broker(broker_id)
        look_into_files(cluster, stopped)
        yield {"killed": killed, "stopped": stopped}


@pytest.fixture(params=["killed", "stopped"])
def run(runs: dict[str, Run], request: pytest.FixtureRequest) -> Run:
    return runs[request.param]


def transactional(cluster: Cluster, transactional_id: str, codec: str = "none") -> Any:
    return Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": transactional_id,
            "compression.type": codec,
            "linger.ms": 1,
            "log_level": 0,
        }
    )


def write_part(cluster: Cluster, run: Run, part: int) -> None:
    """Transactions by a producer of each codec, with offsets of a group; each third is aborted."""
    servers = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
    plain: Any = Producer({**servers, "enable.idempotence": True})
    group: Any = Consumer({**servers, "group.id": "enrichers", "enable.auto.commit": False})
    ids = [f"{codec}-{part}" for codec in CODECS]
    producers = [transactional(cluster, name, codec) for name, codec in zip(ids, CODECS, strict=True)]
    for producer in producers:
        producer.init_transactions(60)
    for number in range(TRANSACTIONS_PER_PART):
        producer = producers[number % len(producers)]
        producer.begin_transaction()
        for record in range(RECORDS):
            key, value = f"key-{(number + record) % 23}", f"{part}-{number}-{record}-" + "x" * 400
            producer.produce("enriched", value, key, headers={"part": str(part)})
            producer.produce("latest", None if record == 7 else value, key)
        producer.send_offsets_to_transaction(
            [TopicPartition("enriched", 0, part * 1000 + number)], group.consumer_group_metadata(), 30
        )
        if number % 3 == 2:
            assert producer.flush(30) == 0  # an abort drops what was not sent yet
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
        run.markers["ABORT" if number % 3 == 2 else "COMMIT"] += 1
        for topic in TOPICS:
            plain.produce(topic, f"plain {number}", f"plain-{number % 5}")
        assert plain.flush(30) == 0
        group.commit(offsets=[TopicPartition("latest", 0, number)], asynchronous=False)
    # The answer to the end of a transaction comes before its markers are written.
    wait_until(lambda: all_are_complete(cluster, ids), "all transactions are complete", 30)
    group.close()


def all_are_complete(cluster: Cluster, transactional_ids: list[str]) -> bool:
    listed = mainstem_json("transaction", "list", cluster=cluster)
    states = {row["transactional_id"]: row["state"] for row in listed}
    return all(states[name].startswith("Complete") for name in transactional_ids)


def open_transaction(cluster: Cluster, run: Run) -> None:
    producer = transactional(cluster, run.open_id)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("enriched", "of an open transaction")
    assert producer.flush(30) == 0


def is_compacted(cluster: Cluster) -> bool:
    """Whether each broker has compacted a part of each topic that is compacted."""
    for broker_id in BROKERS:
        checkpoint = data_directory(cluster, broker_id) / "cleaner-offset-checkpoint"
        lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        compacted = {line.split()[0] for line in lines[2:] if not line.endswith(" 0")}
        if not compacted >= {"latest", *DECODERS}:
            return False
    return True


def data_directory(cluster: Cluster, broker_id: int) -> Path:
    return cluster.data_directory / f"broker-{broker_id}" / "data"


def look_into_files(cluster: Cluster, run: Run) -> None:
    """Let Apache Kafka's tool and our own verification read each file of each replica."""
    files: dict[Replica, list[str]] = {}
    for broker_id in BROKERS:
        for topic in (*TOPICS, *DECODERS):
            directory = data_directory(cluster, broker_id) / f"{topic}-0"
            files[broker_id, topic] = sorted(
                str(path) for path in directory.iterdir() if path.suffix in SUFFIXES
            )
            run.problems += map(str, verify_log(directory).problems)
    for topics, decoder in (
        (tuple(TOPICS), "--print-data-log"),
        *(((one,), DECODERS[one]) for one in DECODERS),
    ):
        paths = [path for broker_id in BROKERS for topic in topics for path in files[broker_id, topic]]
        sort_lines(run, dump_log_segments("--deep-iteration", decoder, "--files", ",".join(paths)))

    indexes = [path for paths in files.values() for path in paths if path.endswith((".index", ".timeindex"))]
    checked = dump_log_segments("--index-sanity-check", "--files", ",".join(indexes))
    passed = re.findall(r"^(\S+) (?:passed sanity check|is empty)\.$", checked, re.MULTILINE)
    assert sorted(passed) == sorted(indexes)


def dump_log_segments(*arguments: str) -> str:
    return run_tool("DumpLogSegments", *arguments)


def sort_lines(run: Run, text: str) -> None:
    """Note what the tool printed of each replica."""
    replica = 0, ""
    for line in text.splitlines():
        if heading := re.match(r"(?:Dumping|Non-consecutive offsets in) .*/broker-(\d)/data/(\w+)-0/", line):
            replica = int(heading[1]), heading[2]
        elif gap := re.match(r"\s+(\d+) is followed by (\d+)$", line):
            run.gaps[replica].append((int(gap[1]), int(gap[2])))
        else:
            run.dumps[replica].append(line)
            if COMPLAINTS.search(line):
                run.complaints.append(line)


def test_neither_program_finds_anything_wrong(run: Run) -> None:
    assert run.complaints == []
    assert run.problems == []
    for broker_id in BROKERS:
        for topic in (*TOPICS, *DECODERS):
            validity = run.matches((broker_id, topic), r"isvalid: (\w+)")
            assert set(validity) == {"true"}


def test_offsets_have_gaps_only_where_compaction_made_them(run: Run) -> None:
    for broker_id in BROKERS:
        assert run.gaps[broker_id, "enriched"] == []
        for topic in ("latest", *DECODERS):
            assert run.gaps[broker_id, topic] != []
            assert all(later > earlier for earlier, later in run.gaps[broker_id, topic])


def test_every_marker_and_every_codec_is_shown(run: Run) -> None:
    for broker_id in BROKERS:
        replica = broker_id, "enriched"
        assert Counter(run.matches(replica, r"endTxnMarker: (\w+)")) == run.markers
        assert set(run.matches(replica, r"compresscodec: (\w+)")) == set(CODECS)


def test_replicas_hold_the_same_records(run: Run) -> None:
    first, *others = (
        [line for line in run.dumps[broker_id, "enriched"] if line.startswith(("baseOffset", "|"))]
        for broker_id in BROKERS
    )
    assert all(other == first for other in others)


def test_aborted_transactions_are_those_with_abort_markers(run: Run) -> None:
    for broker_id in BROKERS:
        replica = broker_id, "enriched"
        indexed = run.matches(replica, r"version: 0 producerId: \d+ firstOffset: \d+ lastOffset: (\d+)")
        markers = run.matches(replica, r"^\| offset: (\d+) .*endTxnMarker: ABORT")
        assert indexed == markers


def test_a_snapshot_shows_the_open_transaction(runs: dict[str, Run]) -> None:
    """Written on a clean stop."""
    for broker_id in BROKERS:
        assert runs["stopped"].matches(
            (broker_id, "enriched"), r"currentTxnFirstOffset: OptionalLong\[(\d+)\]"
        )


def test_offsets_and_transactions_are_decoded(run: Run) -> None:
    for broker_id in BROKERS:
        committed = run.matches(
            (broker_id, "__consumer_offsets"), r'"group":"enrichers","topic":"(\w+)".*"data":{"offset":\d+'
        )
        assert set(committed) == {"enriched", "latest"}
        states = dict(
            re.findall(
                r'"transactionalId":"([^"]+)".*"transactionStatus":"(\w+)"',
                "\n".join(run.dumps[broker_id, "__transaction_state"]),
            )
        )
        assert states[run.open_id] == "Ongoing"
        for codec in CODECS:
            assert states[f"{codec}-1"] in ("CompleteCommit", "CompleteAbort")
