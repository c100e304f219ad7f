"""The walk-through that every Kafka course begins with, by Apache Kafka's own tools.

R13, R14, R15, R18, R36: topics, console produce and consume, groups and their offsets, in-sync replicas,
settings, the look-ups in ZooKeeper, a producer and a consumer as applications configure them. The
tutorial, which `test_documentation.py` runs, takes such steps with `mainstem`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.clusters import Cluster, MainstemCluster, ReachableCluster, RunCluster
from tests.support.command_line import mainstem
from tests.support.kafka_tools import run_tool
from tests.support.waiting import wait_until

from mainstem.local.zookeeper_process import find_jars
from mainstem.records.partitioner import partition_of

TOPIC: Final = "clicks"
PARTITIONS: Final = 6
REPLICAS: Final = 3
_SHELL_SECONDS: Final = 30.0
USERS = ("ann", "bob", "cho", "dee", "eve")
FAST_RECORDS = 20_000
GROUP, COMMITTING_GROUP = "clicks-readers", "clicks-committers"
LZ4 = "lz4"


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a consumer showed it."""

    key: str
    value: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a partition's replicas are."""

    leader: int
    replicas: list[int]
    in_sync: set[int]


class Tools:
    """Apache Kafka's own command line tools and Java clients.

    Groups' offsets are by partition: what is committed, the end, the lag.
    """

    def __init__(self, cluster: ReachableCluster) -> None:
        self._servers = cluster.bootstrap_servers

    def _run(self, tool: str, *arguments: str | int, stdin: str = "") -> str:
        servers = ("--bootstrap-server", self._servers)
        return run_tool(tool, *servers, *map(str, arguments), stdin=stdin)

    def create_topic(self) -> None:
        size = ("--partitions", PARTITIONS, "--replication-factor", REPLICAS)
        assert "Created topic clicks." in self._run("TopicCommand", "--create", "--topic", TOPIC, *size)

    def produce(self, lines: list[str]) -> None:
        """Lines of `key:value`."""
        keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
        text = "".join(f"{line}\n" for line in lines)
        output = self._run("ConsoleProducer", "--topic", TOPIC, *keys, stdin=text)
        assert "ERROR" not in output, output

    def consume(self, group: str, records: int) -> list[Seen]:
        """From the beginning, in a group."""
        fields = ("--formatter-property", "print.key=true", "--formatter-property", "print.timestamp=true")
        how = ("--group", group, "--from-beginning", "--max-messages", records, *fields)
        shown = self._run("consumer.ConsoleConsumer", "--topic", TOPIC, *how)
        result = re.findall(r"^CreateTime:(\d+)\t(.*)\t(.*)$", shown, re.MULTILINE)
        return [Seen(key, value, int(time)) for time, key, value in result]

    def groups(self) -> set[str]:
        return set(self._groups("--list").splitlines())

    def offsets(self, group: str) -> dict[int, tuple[int, int, int]]:
        rows = re.findall(
            rf"^{group} +{TOPIC} +(\d+) +(\d+) +(\d+) +(\d+) ",
            self._groups("--describe", "--group", group),
            re.MULTILINE,
        )
        return {
            int(partition): (int(committed), int(end), int(lag)) for partition, committed, end, lag in rows
        }

    def reset_to_earliest(self, group: str) -> None:
        self._reset(group, "--to-earliest")

    def reset_to_time(self, group: str, time_ms: int) -> None:
        self._reset(group, "--to-datetime", _text_of_time(time_ms))

    def _reset(self, group: str, *to: str) -> None:
        reported = self._groups("--reset-offsets", "--group", group, "--topic", TOPIC, *to, "--execute")
        assert "Error" not in reported, reported

    def _groups(self, *arguments: str) -> str:
        return self._run("consumer.group.ConsumerGroupCommand", *arguments)

    def places(self) -> dict[int, Place]:
        rows = re.findall(
            r"Partition: (\d+)\tLeader: (\d+)\tReplicas: ([\d,]+)\tIsr: ([\d,]+)",
            self._run("TopicCommand", "--describe", "--topic", TOPIC),
        )
        return {
            int(partition): Place(
                int(leader), list(map(int, replicas.split(","))), set(map(int, in_sync.split(",")))
            )
            for partition, leader, replicas, in_sync in rows
        }

    def set_min_in_sync(self, replicas: int) -> None:
        reported = self._configs("--alter", "--add-config", f"min.insync.replicas={replicas}")
        assert "Completed updating config" in reported, reported

    def settings(self) -> dict[str, str]:
        """Those of the topic itself."""
        rows = re.findall(r"^ +([a-z.]+)=(\S+) sensitive=false", self._configs("--describe"), re.MULTILINE)
        return dict(rows)

    def _configs(self, *arguments: str) -> str:
        entity = ("--entity-type", "topics", "--entity-name", TOPIC)
        return self._run("ConfigCommand", *arguments, *entity)

    def produce_fast(self, records: int) -> None:
        """By a producer with batch.size=16384, linger.ms=5 and lz4."""
        settings = {"batch.size": 16_384, "linger.ms": 5, "compression.type": "lz4", "acks": "all"}
        reported = run_tool(
            "ProducerPerformance",
            *("--topic", TOPIC, "--num-records", str(records), "--record-size", "100", "--throughput", "-1"),
            *("--producer-props", f"bootstrap.servers={self._servers}"),
            *(f"{name}={value}" for name, value in settings.items()),
        )
        assert f"{records} records sent" in reported, reported

    def consume_committing(self, group: str, records: int) -> None:
        """In a group that commits by hand, with the cooperative-sticky assignor."""
        output = self._run(
            "VerifiableConsumer",
            *("--topic", TOPIC, "--group-id", group, "--max-messages", records, "--reset-policy", "earliest"),
            *("--assignment-strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"),
        )
        events: list[dict[str, Any]] = [
            json.loads(line) for line in output.splitlines() if line.startswith("{")
        ]
        consumed = [event["count"] for event in events if event["name"] == "records_consumed"]
        commits = [event for event in events if event["name"] == "offsets_committed"]
        assert sum(consumed) == records, output
        assert commits, output
        assert all(event["success"] for event in commits), output


def zookeeper_shell(port: int, *commands: str) -> list[str]:
    """What the shell of ZooKeeper answers to each of the commands, by one shell."""
    jars = Path(find_jars().split(os.pathsep)[0]).parent
    more = [str(jar) for name in ("commons-cli", "netty") for jar in jars.glob(f"{name}-*.jar")]
    ended = subprocess.run(
        [
            *("java", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join([find_jars(), *more])),
            *("org.apache.zookeeper.ZooKeeperMain", "-server", f"127.0.0.1:{port}"),
        ],
        input="".join(f"{command}\n" for command in commands),
        capture_output=True,
        text=True,
        timeout=_SHELL_SECONDS,
        check=False,
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("[", "{"))]
    assert len(lines) == len(commands), ended.stdout + ended.stderr
    return lines


def _text_of_time(time_ms: int) -> str:
    return (
        datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


@pytest.fixture
def cluster(run_cluster: RunCluster, reference: bool) -> Iterator[MainstemCluster]:
    if reference:
        pytest.skip("Apache Kafka is one broker here, without ZooKeeper")
    with run_cluster(3, {"group.initial.rebalance.delay.ms": "0"}) as running:
        assert isinstance(running, MainstemCluster)
        yield running


@pytest.fixture
def tools(cluster: MainstemCluster) -> Tools:
    return Tools(cluster)


def clicks(first: int, last: int) -> list[str]:
    """Lines of `user:page`."""
    return [f"{USERS[number % len(USERS)]}:/page/{number}" for number in range(first, last)]


def per_partition(lines: list[str]) -> dict[int, int]:
    """How many of these lines belong in each partition, by the hash that all clients share (R10)."""
    counts = dict.fromkeys(range(PARTITIONS), 0)
    for line in lines:
        counts[partition_of(line.partition(":")[0].encode(), PARTITIONS)] += 1
    return counts


def test_the_course(tools: Tools, cluster: MainstemCluster) -> None:
    tools.create_topic()
    places = tools.places()
    assert sorted(places) == list(range(PARTITIONS))
    assert all(place == Place(place.replicas[0], place.replicas, {1, 2, 3}) for place in places.values())

    # Keyed lines, in two lots; what lies between them is a time that a group can go back to.
    morning, evening = clicks(0, 30), clicks(30, 50)
    began_ms = _now_ms()
    tools.produce(morning)
    noon_ms = _now_ms() + 1
    wait_until(lambda: _now_ms() > noon_ms, "it is later")
    tools.produce(evening)

    # A group reads all from the beginning, with keys and times.
    seen = tools.consume(GROUP, len(morning) + len(evening))
    assert sorted(f"{record.key}:{record.value}" for record in seen) == sorted(morning + evening)
    for user in USERS:  # R17: in order within a partition
        assert _pages_of(user, seen) == [line for line in morning + evening if line.startswith(f"{user}:")]
    assert all(began_ms <= record.timestamp_ms <= _now_ms() for record in seen)
    late = {f"{record.key}:{record.value}" for record in seen if record.timestamp_ms >= noon_ms}
    assert late == set(evening)

    # It is listed and described: everything is committed, nothing is left.
    ends, before_noon = per_partition(morning + evening), per_partition(morning)
    held = {partition for partition, end in ends.items() if end}
    assert GROUP in tools.groups()
    assert _committed(tools, held) == {partition: (ends[partition], ends[partition], 0) for partition in held}

    # It goes back to the beginning, and to noon.
    tools.reset_to_earliest(GROUP)
    assert _committed(tools, held) == {partition: (0, ends[partition], ends[partition]) for partition in held}
    tools.reset_to_time(GROUP, noon_ms)
    assert _committed(tools, held) == {
        partition: (before_noon[partition], ends[partition], ends[partition] - before_noon[partition])
        for partition in held
    }
    assert {f"{one.key}:{one.value}" for one in tools.consume(GROUP, len(evening))} == set(evening)

    # The topic asks for two in-sync replicas from now on.
    tools.set_min_in_sync(2)
    # The client chooses the broker, and each learns of it for itself.
    wait_until(lambda: tools.settings() == {"min.insync.replicas": "2"}, "the brokers know the setting")

    # The look-ups that people of ZooKeeper know.
    ids, first, controller, partitions = zookeeper_shell(
        cluster.zookeeper_port,
        *("ls /brokers/ids", "get /brokers/ids/1", "get /controller"),
        f"ls /brokers/topics/{TOPIC}/partitions",
    )
    registration = json.loads(first)
    assert json.loads(ids) == [1, 2, 3]
    assert f"{registration['host']}:{registration['port']}" == cluster.brokers[1]
    assert json.loads(controller)["brokerid"] in cluster.brokers
    assert json.loads(partitions) == list(range(PARTITIONS))

    # A producer as applications set it up, and a consumer that commits by hand.
    tools.produce_fast(FAST_RECORDS)
    assert _codecs(cluster) == {"none", LZ4}
    tools.consume_committing(COMMITTING_GROUP, len(seen) + FAST_RECORDS)
    left = tools.offsets(COMMITTING_GROUP)
    assert sum(committed for committed, _, _ in left.values()) == len(seen) + FAST_RECORDS
    assert {lag for _, _, lag in left.values()} == {0}


def _now_ms() -> int:
    return int(time.time() * 1000)


def _pages_of(user: str, seen: list[Seen]) -> list[str]:
    return [f"{record.key}:{record.value}" for record in seen if record.key == user]


def _committed(tools: Tools, partitions: set[int]) -> dict[int, tuple[int, int, int]]:
    """Of these partitions: of empty ones some tools commit nothing."""
    return {number: reported for number, reported in tools.offsets(GROUP).items() if number in partitions}


def _codecs(cluster: Cluster) -> set[str]:
    """How the batches of the topic are compressed in the files of the first broker."""
    logs: list[Any] = list((cluster.data_directory / "broker-1").rglob(f"{TOPIC}-?"))
    lines = mainstem("log", "dump", *logs, "--output", "json").stdout.splitlines()
    return {json.loads(line)["codec"] for line in lines}
