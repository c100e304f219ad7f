"""The steps with which every Kafka course begins, taken by `mainstem` or by Apache Kafka's own tools.

Both kinds of hands do the same and tell what they saw in the same values, so one test judges both.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from tests.support.clusters import ReachableCluster
from tests.support.command_line import mainstem, mainstem_here, mainstem_json_here
from tests.support.kafka_tools import run_tool

from mainstem.local.zookeeper_process import find_jars

TOPIC: Final = "clicks"
PARTITIONS: Final = 6
REPLICAS: Final = 3
_SHELL_SECONDS: Final = 30.0


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


class Hands(Protocol):
    """Who takes the steps. Groups' offsets are by partition: what is committed, the end, the lag."""

    def create_topic(self) -> None: ...

    def produce(self, lines: list[str]) -> None:
        """Lines of `key:value`."""
        ...

    def consume(self, group: str, records: int) -> list[Seen]:
        """From the beginning, in a group."""
        ...

    def groups(self) -> set[str]: ...

    def offsets(self, group: str) -> dict[int, tuple[int, int, int]]: ...

    def reset_to_earliest(self, group: str) -> None: ...

    def reset_to_time(self, group: str, time_ms: int) -> None: ...

    def places(self) -> dict[int, Place]: ...

    def set_min_in_sync(self, replicas: int) -> None: ...

    def settings(self) -> dict[str, str]:
        """Those of the topic itself."""
        ...

    def produce_fast(self, records: int) -> None:
        """By a producer with batch.size=16384, linger.ms=5 and lz4."""
        ...

    def consume_committing(self, group: str, records: int) -> None:
        """In a group that commits by hand: the Java consumer with the cooperative-sticky assignor."""
        ...


class Mainstem:
    """The command of this project."""

    def __init__(self, cluster: ReachableCluster) -> None:
        self._cluster = cluster

    def create_topic(self) -> None:
        mainstem_here("topic", "create", TOPIC, "-p", PARTITIONS, "-r", REPLICAS, cluster=self._cluster)

    def produce(self, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in lines).encode()
        mainstem_here("produce", TOPIC, "--key-separator", ":", cluster=self._cluster, stdin=text)

    def consume(self, group: str, records: int) -> list[Seen]:
        how = ("--group", group, "--from", "beginning", "-n", records, "--with", "timestamp,key")
        shown = mainstem("consume", TOPIC, *how, cluster=self._cluster).stdout.decode()
        results = []
        for line in shown.splitlines():
            time, key, value = line.split("\t")
            results.append(Seen(key, value, round(datetime.fromisoformat(time).timestamp() * 1000)))
        return results

    def groups(self) -> set[str]:
        return {row["group"] for row in mainstem_json_here("group", "list", cluster=self._cluster)}

    def offsets(self, group: str) -> dict[int, tuple[int, int, int]]:
        described = mainstem_json_here("group", "describe", group, cluster=self._cluster)
        return {
            row["partition"]: (row["committed"], row["end"], row["lag"]) for row in described["partitions"]
        }

    def reset_to_earliest(self, group: str) -> None:
        self._reset(group, "earliest")

    def reset_to_time(self, group: str, time_ms: int) -> None:
        self._reset(group, _text_of_time(time_ms))

    def _reset(self, group: str, to: str) -> None:
        how = ("--topic", TOPIC, "--to", to, "--execute")
        mainstem_here("group", "reset-offsets", group, *how, cluster=self._cluster)

    def places(self) -> dict[int, Place]:
        described = mainstem_json_here("topic", "describe", TOPIC, cluster=self._cluster)
        return {
            row["partition"]: Place(row["leader"], row["replicas"], set(row["in_sync_replicas"]))
            for row in described["partitions"]
        }

    def set_min_in_sync(self, replicas: int) -> None:
        change = ("--topic", TOPIC, f"min.insync.replicas={replicas}")
        mainstem_here("config", "set", *change, cluster=self._cluster)

    def settings(self) -> dict[str, str]:
        rows = mainstem_json_here("config", "get", "--topic", TOPIC, cluster=self._cluster)
        return {row["setting"]: row["value"] for row in rows if row["source"] == "topic"}

    def produce_fast(self, records: int) -> None:
        how = ("--batch-size", 16_384, "--linger-ms", 5, "--compression", "lz4")
        mainstem_here("bench", "produce", "--topic", TOPIC, "--records", records, *how, cluster=self._cluster)

    def consume_committing(self, group: str, records: int) -> None:
        shown = mainstem("consume", TOPIC, "--group", group, "--until-end", cluster=self._cluster).stdout
        assert shown.count(b"\n") == records


class ApacheKafka:
    """Apache Kafka's own command line tools and Java clients."""

    def __init__(self, cluster: ReachableCluster) -> None:
        self._servers = cluster.bootstrap_servers

    def _run(self, tool: str, *arguments: str | int, stdin: str = "") -> str:
        servers = ("--bootstrap-server", self._servers)
        return run_tool(tool, *servers, *map(str, arguments), stdin=stdin)

    def create_topic(self) -> None:
        size = ("--partitions", PARTITIONS, "--replication-factor", REPLICAS)
        assert "Created topic clicks." in self._run("TopicCommand", "--create", "--topic", TOPIC, *size)

    def produce(self, lines: list[str]) -> None:
        keys = ("--property", "parse.key=true", "--property", "key.separator=:")
        text = "".join(f"{line}\n" for line in lines)
        output = self._run("ConsoleProducer", "--topic", TOPIC, *keys, stdin=text)
        assert "ERROR" not in output, output

    def consume(self, group: str, records: int) -> list[Seen]:
        fields = ("--property", "print.key=true", "--property", "print.timestamp=true")
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
        rows = re.findall(r"^ +([a-z.]+)=(\S+) sensitive=false", self._configs("--describe"), re.MULTILINE)
        return dict(rows)

    def _configs(self, *arguments: str) -> str:
        entity = ("--entity-type", "topics", "--entity-name", TOPIC)
        return self._run("kafka.admin.ConfigCommand", *arguments, *entity)

    def produce_fast(self, records: int) -> None:
        settings = {"batch.size": 16_384, "linger.ms": 5, "compression.type": "lz4", "acks": "all"}
        reported = run_tool(
            "ProducerPerformance",
            *("--topic", TOPIC, "--num-records", str(records), "--record-size", "100", "--throughput", "-1"),
            *("--producer-props", f"bootstrap.servers={self._servers}"),
            *(f"{name}={value}" for name, value in settings.items()),
        )
        assert f"{records} records sent" in reported, reported

    def consume_committing(self, group: str, records: int) -> None:
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
