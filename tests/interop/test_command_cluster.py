"""`mainstem cluster` against running brokers (R36)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from tests.support.clusters import Cluster, RunCluster
from tests.support.command_line import mainstem_fails_here, mainstem_here, mainstem_json_here
from tests.support.moved import Replicas
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(run_cluster: RunCluster, reference: bool) -> Iterator[Cluster]:
    """Three brokers without racks; plans over racks are tested with the planner."""
    if reference:
        pytest.skip("Apache Kafka is one broker here")
    with run_cluster(3, {"auto.leader.rebalance.enable": "false"}) as running:
        yield running


@pytest.fixture
def replicas(cluster: Cluster) -> Replicas:
    return Replicas(cluster)


@pytest.fixture
def topic(replicas: Replicas) -> Iterator[str]:
    """Two partitions on brokers 1 and 2."""
    name = f"command-{uuid4().hex[:8]}"
    replicas.create(name, [1, 2], [2, 1])
    yield name
    replicas.delete(name)


def status(cluster: Cluster, exit_code: int = 0) -> Any:
    ended = mainstem_here("cluster", "status", "--output", "json", cluster=cluster, exit_code=exit_code)
    return json.loads(ended.stdout)


def test_status_tells_brokers_controller_and_that_all_is_well(
    cluster: Cluster, replicas: Replicas, topic: str
) -> None:
    output = status(cluster)
    assert (output["healthy"], output["controller"]) == (True, replicas.controller())
    assert [broker["state"] for broker in output["brokers"]] == ["up"] * 3
    assert [broker["address"] for broker in output["brokers"]] == list(cluster.brokers.values())
    assert [(broker["leads"], broker["replicas"]) for broker in output["brokers"]] == [(1, 2), (1, 2), (0, 0)]
    shown = mainstem_here("cluster", "status", cluster=cluster).stdout.decode()
    assert "State       ok" in shown


def test_a_plan_is_shown_and_not_executed_by_default(
    cluster: Cluster, replicas: Replicas, topic: str
) -> None:
    planned = mainstem_json_here("cluster", "reassign", topic, "--brokers", "1,3", cluster=cluster)
    assert [row["from"] for row in planned] == [[1, 2], [2, 1]]
    assert all(set(row["to"]) == {1, 3} and row["copies_to"] == [3] for row in planned)
    ended = mainstem_here("cluster", "reassign", topic, "--brokers", "1,3", cluster=cluster)
    assert b"Nothing was changed: add --execute" in ended.stderr
    assert replicas.replicas(topic, 0) == [1, 2]


def test_a_plan_is_carried_out_and_followed_to_its_end(
    cluster: Cluster, replicas: Replicas, topic: str
) -> None:
    mainstem_here("produce", topic, cluster=cluster, stdin=b"a\nb\nc\n")
    ended = mainstem_here(
        *("cluster", "reassign", topic, "--brokers", "1,3", "--execute", "--throttle", "10M", "--follow"),
        cluster=cluster,
    )
    assert b"2 partitions began to move" in ended.stderr
    for partition in (0, 1):
        assert set(replicas.replicas(topic, partition)) == {1, 3}
    described = mainstem_json_here("topic", "describe", topic, cluster=cluster)
    assert (described["state"], described["records"]) == ("ok", 3)
    assert described["settings"] == {}, "the limits are lifted again"
    again = mainstem_here("cluster", "reassign", topic, "--brokers", "1,3", "--execute", cluster=cluster)
    assert b"Nothing has to move" in again.stderr


def test_the_number_of_replicas_is_changed(cluster: Cluster, replicas: Replicas, topic: str) -> None:
    mainstem_here("cluster", "reassign", topic, "-r", "3", "--execute", "--follow", cluster=cluster)
    assert {len(replicas.replicas(topic, partition)) for partition in (0, 1)} == {3}


def test_moves_are_shown_and_taken_back(cluster: Cluster, replicas: Replicas, topic: str) -> None:
    mainstem_here("produce", topic, cluster=cluster, stdin=b"\n".join([b"x" * 1_000] * 3_000))
    arguments = ("cluster", "reassign", topic, "--brokers", "1,3", "--execute", "--throttle", "100")
    mainstem_here(*arguments, cluster=cluster)
    output = status(cluster)
    moving = [move for move in output["moves"] if move["topic"] == topic]
    assert output["healthy"], "new replicas may take their time"
    assert moving
    assert all(move["waits_for"] == [3] for move in moving)
    ended = mainstem_here("cluster", "reassign", "--cancel", cluster=cluster)
    assert f"{len(moving)} move".encode() in ended.stderr
    wait_until(lambda: not status(cluster)["moves"], "no move is under way")
    assert mainstem_json_here("topic", "describe", topic, cluster=cluster)["settings"] == {}
    assert (
        b"No replicas are being moved"
        in mainstem_here("cluster", "reassign", "--cancel", cluster=cluster).stderr
    )


def test_preferred_leaders_are_elected(cluster: Cluster, replicas: Replicas, topic: str) -> None:
    replicas.wish(topic, {0: [2, 1]})
    elected = mainstem_json_here("cluster", "elect", topic, cluster=cluster)
    assert elected == {"elected": [{"topic": topic, "partition": 0}], "failed": []}
    assert (
        b"Every partition is led by its preferred leader"
        in mainstem_here("cluster", "elect", topic, cluster=cluster).stderr
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--brokers", "1,x"], "such as 1,2,3, not '1,x'"),
        (["--brokers", "1,1"], "each once"),
        (["--brokers", "1,9"], "There is no live broker 9: the live ones are 1, 2, 3."),
        (["-r", "4"], "4 replicas of a partition need as many brokers, and there are 3"),
        (["--cancel", "--execute"], "--cancel stands alone"),
        (["--throttle", "1M"], "--throttle limits moves that begin with --execute"),
        (["--throttle", "fast", "--execute"], "such as 500K or 20M, not 'fast'"),
        (["no-such-topic"], "There is no topic no-such-topic"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_arguments_are_refused_before_anything_is_done(
    arguments: list[str], message: str, cluster: Cluster
) -> None:
    assert message in mainstem_fails_here("cluster", "reassign", *arguments, cluster=cluster, exit_code=2)


def test_status_exits_with_3_when_replicas_are_missing(run_cluster: RunCluster, reference: bool) -> None:
    if reference:
        pytest.skip("Apache Kafka is one broker here")
    with run_cluster(2) as cluster:
        replicas = Replicas(cluster)
        replicas.create("t", [1, 2], [2, 1])
        replicas.wish("t", {1: [2]})
        replicas.wait_moved("t", 1, [2])
        cluster.kill_broker(2)
        wait_until(lambda: replicas.leader("t", 1) == -1 and replicas.in_sync("t") == {1}, "2 is gone")
        output = status(cluster, exit_code=3)
        assert [broker["state"] for broker in output["brokers"]] == ["up", "down"]
        assert [row["partition"] for row in output["offline"]] == [1]
        assert [row["partition"] for row in output["under_replicated"]] == [0]
        shown = mainstem_here("cluster", "status", cluster=cluster, exit_code=3).stdout.decode()
        assert "1 partition offline, 1 under-replicated" in shown
        sentence = mainstem_fails_here("cluster", "elect", cluster=cluster)
        assert "did not get the preferred leader" in sentence
        described = mainstem_json_here("topic", "describe", "t", cluster=cluster)
        assert described["state"] == "1 without leader"
