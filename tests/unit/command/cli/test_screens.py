"""The screens of the first hour at 80 and 120 columns: no line is too long, and no column is lost."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from mainstem.cli.cluster_status import status_tables, topic_rows, unhealthy_partitions
from mainstem.cli.demo import Batch, account_table
from mainstem.cli.log_dump import batch_lines, producer_lines
from mainstem.cli.main import app
from mainstem.cli.stack_commands import checks_table
from mainstem.cli.up import stack_tables
from mainstem.kafka.client import Partition, Topic
from mainstem.local.diagnosis import Check, CheckState
from mainstem_broker.log.dump import BatchDump, ProducerDump

WIDTHS = [80, 120]


def lines_of(width: int, *shown: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    for renderable in shown:
        console.print(renderable, markup=False, highlight=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def assert_fits(lines: list[str], width: int) -> None:
    assert [line for line in lines if cell_len(line) > width] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_summary_of_the_demo(width: int) -> None:
    year = Batch(
        "year 2013", 336_776, 336_776, 336_776, 336_776, 0, 366, {"send": 16.7, "load": 41.1, "ask": 0.7}
    )
    day = Batch("one more day", 847, 847, 337_623, 842, 5, 2, {"send": 0.1, "load": 4.7})
    lines = lines_of(width, account_table([year, day]))
    assert_fits(lines, width)
    assert any(line.split() == ["year", "2013", "one", "more", "day"] for line in lines)
    for row in ("Events", "Sent", "Stored", "Loaded", "Rejected", "Days", "Seconds to send"):
        assert sum(line.startswith(row) for line in lines) == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_the_status_of_a_cluster_with_a_broker_down_shows_brokers_first_and_one_line_per_topic(
    width: int,
) -> None:
    """R36: sixty-six partitions without a replica are three lines."""
    topics = {
        name: Topic(name, [Partition(number, 1, [1, 2, 3], [1]) for number in range(count)])
        for name, count in (("__consumer_offsets", 50), ("clicks", 6), ("payments.eu-central.completed", 10))
    }
    unhealthy = unhealthy_partitions(topics.values(), {})
    rows = topic_rows(topics, unhealthy, {"__consumer_offsets": 1, "clicks": 2})
    assert [row["topic"] for row in rows] == ["clicks", "__consumer_offsets", "payments.eu-central.completed"]
    assert [row["below_minimum"] for row in rows] == [6, 0, None]
    value = {
        "cluster_id": "6aL88tQ_T5ebkP4k3TaitA",
        "controller": 1,
        "zookeeper_outage": None,
        "brokers": [
            {
                "broker": broker,
                "state": "up" if broker == 1 else "down",
                "address": f"events-broker-{broker}.example.internal:9092" if broker == 1 else None,
                "rack": "eu-central-1a",
                "leads": 66,
                "replicas": 66,
                "in_sync": 66,
            }
            for broker in (1, 2, 3)
        ],
        "topics": rows,
        "offline": [],
        "under_replicated": [result.row() for result in unhealthy],
        "moves": [],
    }
    lines = lines_of(width, *status_tables(value))
    assert_fits(lines, width)
    text = "\n".join(lines)
    assert "66 under-replicated, 6 below min.insync.replicas" in text
    for name in ("Broker", "Address", "Rack", "Leads", "In sync", *topics):
        assert name in text
    assert len(lines) < 40
    assert text.index("events-broker-1") < text.index("clicks")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_addresses_of_a_stack(width: int) -> None:
    state = {
        "cluster_id": "6aL88tQ_T5ebkP4k3TaitA",
        "data_directory": "/home/someone/projects/analytics/experiments/2026/november/data/local",
        "zookeeper": {"pid": 1, "port": 2181},
        "brokers": [{"id": broker, "pid": None, "port": 9091 + broker} for broker in (1, 2, 3)],
    }
    lines = lines_of(width, *stack_tables(state, {1: "up", 2: "down", 3: "no answer"}))
    assert_fits(lines, width)
    assert any(line.split() == ["3", "127.0.0.1:9094", "-", "no", "answer"] for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_checks_of_the_doctor(width: int) -> None:
    checks = [
        Check("Java", CheckState.OK, "Java 17 at /usr/lib/jvm/java-17-openjdk-amd64/bin/java."),
        Check(
            "Packages",
            CheckState.FAILED,
            "Missing: confluent_kafka (for every command that talks to brokers); pyspark (for up, load).",
            "pip install 'mainstem[all]'",
        ),
        Check("Brokers", CheckState.IDLE, "No local stack is running.", "mainstem up --detach"),
    ]
    lines = lines_of(width, checks_table(checks))
    assert_fits(lines, width)
    assert [line[0] for line in lines if not line.startswith(" ")] == ["✓", "✗", "-"]
    assert any("Type: pip install 'mainstem[all]'" in line for line in lines)


BATCH = BatchDump(
    position=1_073_000_000,
    size_bytes=1_048_588,
    base_offset=1_234_567_890,
    last_offset=1_234_567_999,
    record_count=110,
    partition_leader_epoch=17,
    codec="snappy",
    crc=0,
    crc_valid=False,
    base_timestamp=1_767_225_600_000,
    max_timestamp=1_767_225_600_000,
    timestamp_type="LogAppendTime",
    producer_id=4_001,
    producer_epoch=0,
    base_sequence=0,
    is_transactional=True,
    is_control=False,
    has_delete_horizon=False,
    marker=None,
    coordinator_epoch=-1,
    records=None,
)
PRODUCER = ProducerDump(
    producer_id=4_001,
    producer_epoch=3,
    first_sequence=2_147_000_000,
    last_sequence=2_147_000_100,
    last_offset=1_234_567_999,
    offset_delta=100,
    last_timestamp=1_767_225_600_000,
    coordinator_epoch=0,
    transaction_first_offset=1_234_567_000,
)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_batch_in_a_log(width: int) -> None:
    lines = batch_lines(BATCH, width).splitlines()
    assert_fits(lines, width)
    for shown in (
        "1234567890",
        "1234567999",
        "1073000000",
        "110",
        "1048588",
        "snappy",
        "17",
        "2026-01-01T00:00",
    ):
        assert shown in "\n".join(lines)
    assert "WRONG CRC, transactional, LogAppendTime, producer 4001" in "\n".join(lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_producer_in_a_snapshot(width: int) -> None:
    lines = producer_lines(PRODUCER, width).splitlines()
    assert_fits(lines, width)
    for shown in ("4001", "3", "2147000000", "2147000100", "1234567999", "2026-01-01T00:00"):
        assert shown in "\n".join(lines)
    assert "transaction open since offset 1234567000" in "\n".join(lines)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


@pytest.mark.parametrize("path", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_a_help_text(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=80)  # the width on wider terminals too
    assert shown.exit_code == 0
    assert_fits(shown.output.splitlines(), 80)


def test_the_overview_has_each_command_below_its_heading_in_a_full_sentence() -> None:
    shown = " ".join(CliRunner().invoke(app, ["--help"], terminal_width=80).output.split())
    root = typer.main.get_command(app)
    for name, command in getattr(root, "commands", {}).items():
        assert f"{name} {' '.join(command.get_short_help_str(10_000).split())}" in shown
    headings = ("On this machine:", "The cluster:", "Topics and records:", "Trials:", "Warehouse:")
    assert all(heading in shown for heading in headings)
