"""`mainstem bench` and `mainstem verify` against running brokers (R36); they leave nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from tests.support.clusters import ReachableCluster, SharedCluster, StartCluster
from tests.support.command_line import (
    MAINSTEM,
    environment,
    mainstem_fails_here,
    mainstem_here,
    mainstem_json_here,
)
from tests.support.topics import TopicFactory
from tests.support.waiting import wait_until


def topics(cluster: ReachableCluster) -> set[str]:
    return set(TopicFactory(cluster).admin.list_topics(timeout=60).topics)


def stored(cluster: ReachableCluster) -> int:
    """How many records the topic of a running `verify` has."""
    admin = TopicFactory(cluster).admin
    results = [
        topic for name, topic in admin.list_topics(timeout=60).topics.items() if name.startswith("verify-")
    ]
    request = {
        TopicPartition(topic.topic, number): OffsetSpec.latest()
        for topic in results
        for number in topic.partitions
    }
    return sum(answer.result().offset for answer in admin.list_offsets(request).values()) if request else 0


@pytest.fixture
def nothing_left(local_stack: SharedCluster) -> Iterator[None]:
    before = topics(local_stack)
    yield
    wait_until(
        lambda: not {name for name in topics(local_stack) - before if name.startswith(("bench", "verify"))},
        "its topic is gone",
    )


@pytest.mark.usefixtures("nothing_left")
def test_a_producer_is_measured(local_stack: SharedCluster) -> None:
    how = ("--records", 5_000, "--size", 50, "--acks", "1", "--compression", "lz4", "--batch-size", 8_000)
    output = mainstem_json_here("bench", "produce", *how, cluster=local_stack)
    assert (output["records"], output["size_bytes"], output["acks"], output["compression"]) == (
        5_000,
        50,
        "1",
        "lz4",
    )
    assert output["bytes_per_second"] == pytest.approx(output["records_per_second"] * 50, rel=0.01)
    times = output["acknowledged_after"]
    assert times["samples"] == 5_000
    assert 0 < times["p50_ms"] <= times["p99_ms"] <= times["max_ms"]


@pytest.mark.usefixtures("nothing_left")
def test_a_consumer_is_measured_on_a_topic_of_its_own_and_on_another(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    output = mainstem_json_here("bench", "consume", "--records", 5_000, "--size", 10, cluster=local_stack)
    assert output["records"] == 5_000
    topic = new_topic(3)
    empty = mainstem_fails_here("bench", "consume", "--topic", topic, cluster=local_stack, exit_code=2)
    assert empty == f"Topic {topic} is empty: fill it first, or leave --topic out."
    mainstem_here("bench", "produce", "--records", 3_000, "--topic", topic, cluster=local_stack)
    assert mainstem_json_here("bench", "consume", "--topic", topic, cluster=local_stack)["records"] == 3_000


@pytest.mark.usefixtures("nothing_left")
def test_latency_is_measured_to_the_acknowledgement_and_to_the_consumer(local_stack: SharedCluster) -> None:
    output = mainstem_json_here("bench", "latency", "--records", 50, cluster=local_stack)
    for times in (output["acknowledged_after"], output["consumed_after"]):
        assert times["samples"] == 50
        assert 0 < times["p50_ms"] <= times["max_ms"]
    shown = mainstem_here("bench", "latency", "--records", 10, cluster=local_stack).stdout.decode()
    assert "Consumed after" in shown


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", [["--records", "5000"], ["--duration", "1s", "--rate", "2000"]], ids=" ".join)
def test_a_faithful_cluster_is_reported_as_flawless(how: list[str], local_stack: SharedCluster) -> None:
    output = mainstem_json_here("verify", *how, cluster=local_stack)
    assert output["flawless"]
    assert (output["lost"], output["duplicate"], output["reordered"]) == (0, 0, 0)
    if "--records" in how:
        assert output["acknowledged"] == 5_000
    else:
        assert 0 < output["acknowledged"] <= 2_100  # the rate holds, and the time


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--records", "1", "--duration", "1s"], "--records and --duration exclude each other"),
        (["--duration", "soon"], "--duration takes a time such as 30s, 10m or 1h30m, not 'soon'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, local_stack: SharedCluster) -> None:
    assert message in mainstem_fails_here("verify", *arguments, cluster=local_stack, exit_code=2)


def test_records_survive_a_broker_that_is_killed_meanwhile_and_its_outage_is_reported(
    own_stack: StartCluster,
) -> None:
    """R11, R22: nothing acknowledged is lost or duplicate. R36."""
    cluster = own_stack(3)
    command = [*MAINSTEM, "verify", "--duration", "5m", "--rate", "2000", "-o", "json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(cluster)
    ) as run:
        wait_until(lambda: stored(cluster) > 0, "it has begun")
        cluster.kill_broker(2)
        cluster.start_broker(2)
        run.send_signal(signal.SIGINT)  # ends the sending, and verifies what was sent
        output, complaint = run.communicate(timeout=90)
    assert run.returncode == 0, (output + complaint).decode()
    command_output = json.loads(output)
    assert command_output["flawless"]
    assert command_output["acknowledged"] > 0
    (outage,) = command_output["outages"]
    assert outage["broker"] == 2
    assert outage["seconds"] > 0
    assert not any(name.startswith("verify-") for name in topics(cluster))
