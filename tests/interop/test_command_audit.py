"""`mainstem audit`: what producers counted, what brokers store and what the table holds (R32)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.command_line import mainstem, mainstem_json
from tests.support.topics import TopicFactory

from mainstem.audit.counts import WINDOW_MS
from mainstem.audit.producer import AuditedProducer
from mainstem_loader.load_topic import LoadSettings, load_topic
from mainstem_loader.spark.executors import InProcessExecutor

BEGIN_MS: Final = 1_767_225_600_000  # 2026-01-01
KEEP: Final = {"retention.ms": "-1"}
WINDOW: Final = "2026-01-01 00:10"


def audited(cluster: ReachableCluster, **settings: Any) -> AuditedProducer:
    return AuditedProducer(
        {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, **settings}, "test"
    )


def send(producer: AuditedProducer, topic: str, count: int, window: int = 0) -> None:
    for number in range(count):
        time_ms = BEGIN_MS + window * WINDOW_MS + number
        producer.produce(topic, b'{"n":%d}' % number, b"%d" % number, 0, timestamp=time_ms)
    assert producer.flush(30) == 0


def load(cluster: ReachableCluster, topic: str, warehouse: Path) -> None:
    load_topic(LoadSettings(cluster.bootstrap_servers, topic, warehouse), InProcessExecutor())


def audit(cluster: ReachableCluster, topic: str, warehouse: Path, exit_code: int = 0) -> Any:
    arguments = ["audit", topic, "--warehouse", str(warehouse), "--grace", "0s", "-o", "json"]
    return json.loads(mainstem(*arguments, cluster=cluster, exit_code=exit_code).stdout)


def test_windows_are_complete_and_late_or_repeated_counts_change_nothing(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic(config=KEEP)
    producer = audited(local_stack)
    send(producer, topic, 20, window=1)
    send(producer, topic, 30, window=2)
    send(producer, topic, 5, window=1)
    load(local_stack, topic, tmp_path)
    rows = audit(local_stack, topic, tmp_path)
    assert [(row["window"], row["state"], row["produced"], row["stored"], row["loaded"]) for row in rows] == [
        (WINDOW, "complete", 25, 25, 25),
        ("2026-01-01 00:20", "complete", 30, 30, 30),
    ]
    assert (rows[0]["late"], rows[0]["lateness_ms_max"]) == (5, WINDOW_MS + 29)
    assert rows[0]["completeness"] == 1.0
    producer._changed.update(producer._counts)
    assert producer.flush(30) == 0
    assert audit(local_stack, topic, tmp_path) == rows


def test_a_record_that_is_removed_between_topic_and_table_is_named(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic(config=KEEP)
    send(audited(local_stack), topic, 20, window=1)
    load(local_stack, topic, tmp_path)
    DeltaTable(str(tmp_path / topic)).delete('"_offset" = 7')
    ended = mainstem("audit", topic, "--warehouse", tmp_path, cluster=local_stack, exit_code=3)
    assert (
        f"Topic {topic}: 1 record is missing in 1 window. Window {WINDOW}: 1 record is missing in the table."
        in " ".join(ended.stderr.decode().split())
    )
    (row,) = audit(local_stack, topic, tmp_path, exit_code=3)
    assert (row["state"], row["missing_in_table"], row["missing_in_log"]) == ("missing", 1, 0)


DYING: Final = """
import os, sys
from mainstem.audit.producer import AuditedProducer
servers, topic, begin_ms = sys.argv[1:]
producer = AuditedProducer({"bootstrap.servers": servers, "linger.ms": 100_000}, "dying")
for number in range(50):
    producer.produce(topic, b"{}", timestamp=int(begin_ms) + number)
producer.post()
assert producer._poster.flush(30) == 0
os._exit(1)
"""


def test_a_producer_that_dies_before_flushing_is_named(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    """Its counts are posted although its records wait."""
    topic = new_topic(config=KEEP)
    time_ms = str(BEGIN_MS + WINDOW_MS)
    dying = [sys.executable, "-c", DYING, local_stack.bootstrap_servers, topic, time_ms]
    assert subprocess.run(dying, check=False, timeout=120).returncode == 1
    (row,) = audit(local_stack, topic, tmp_path, exit_code=3)
    assert (row["window"], row["missing_in_log"], row["unconfirmed"]) == (WINDOW, 50, 50)
    assert row["producers"][0].startswith("dying/")
    patient = mainstem("audit", topic, "-w", tmp_path, "--grace", "1h", cluster=local_stack)
    assert "open" in patient.stdout.decode()


def test_produce_counts_on_request_and_the_heat_map_has_a_character_for_each_window(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic(config=KEEP)
    lines = b'{"at":"2026-01-01T00:10:00Z"}\n{"at":"2026-01-01T05:55:00Z"}\n{"at":"2026-01-03T01:00:00Z"}\n'
    mainstem("produce", topic, "--audit", "--timestamp-field", "at", "-j", cluster=local_stack, stdin=lines)
    shown = mainstem("audit", topic, "-w", tmp_path, "--heat-map", cluster=local_stack).stdout.decode()
    assert shown.splitlines()[:2] == [
        "2026-01-01 00:00  ·=···· ······ ······ ······ ······ ·····=",
        "2026-01-03 00:00  ······ =····· ······ ······ ······ ······",
    ]
    rows = mainstem_json(
        "audit", topic, "-w", str(tmp_path), "--since", "2026-01-02T00:00:00Z", cluster=local_stack
    )
    assert [(row["window"], row["produced"], row["stored"]) for row in rows] == [("2026-01-03 01:00", 1, 1)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--since", "soon"], "--since is 'soon'"), (["--grace", "5"], "--grace is '5'")],
)
def test_a_time_that_is_none_is_refused(
    local_stack: SharedCluster, new_topic: TopicFactory, arguments: list[str], reason: str
) -> None:
    ended = mainstem("audit", new_topic(), *arguments, cluster=local_stack, exit_code=2)
    assert reason in ended.stderr.decode()
