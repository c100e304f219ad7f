"""Manifests as values: what is read, what is said of those that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mainstem_operator.api.clusters import ClusterSpec, cluster_of
from mainstem_operator.api.fields import InvalidSpec, Object
from mainstem_operator.api.groups import GroupSpec, group_of
from mainstem_operator.api.objects import adopted_secrets
from mainstem_operator.api.quantities import quantity
from mainstem_operator.api.topics import TopicSpec, topic_of
from mainstem_operator.api.users import UserSpec, user_of

REPOSITORY = Path(__file__).parents[4]
Read = Callable[[Object], ClusterSpec | TopicSpec | GroupSpec | UserSpec]
READERS: dict[str, Read] = {
    "BrokerCluster": cluster_of,
    "Topic": topic_of,
    "ConsumerGroup": group_of,
    "User": user_of,
}


def named(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def brokers(**settings: Any) -> dict[str, Any]:
    return named("events", brokers={"replicas": 3, **settings})


def with_three(**spec: Any) -> dict[str, Any]:
    return named("events", brokers={"replicas": 3}, **spec)


def topic(**spec: Any) -> dict[str, Any]:
    return named("clicks", clusterRef={"name": "events"}, **spec)


def group(**spec: Any) -> dict[str, Any]:
    return named("billing", clusterRef={"name": "events"}, **spec)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_read(path: Path) -> None:
    manifest = yaml.safe_load(path.read_text())
    assert READERS[manifest["kind"]](manifest).identity.name == manifest["metadata"]["name"]


def test_a_cluster_has_the_defaults_of_its_schema() -> None:
    cluster = cluster_of(named("events", brokers={"replicas": 3}))
    assert cluster.zookeeper.replicas == 3
    assert cluster.brokers.storage.type == "persistent"
    assert cluster.brokers.storage.keep
    assert cluster.network_policy
    assert cluster.external is None
    assert cluster.move_bytes_per_second is None


def test_a_topic_is_kept_unless_its_manifest_says_otherwise() -> None:
    assert not topic_of(topic()).delete_topic
    assert topic_of(topic(deletionPolicy="Delete")).delete_topic


def test_settings_are_read_as_brokers_read_them_and_null_leaves_them_to_others() -> None:
    config = {"retention.ms": 1000, "preallocate": True, "min.cleanable.dirty.ratio": 0.5, "segment.ms": None}
    assert topic_of(topic(config=config)).config == {
        "min.cleanable.dirty.ratio": "0.5",
        "preallocate": "true",
        "retention.ms": "1000",
        "segment.ms": None,
    }


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        (named("events"), "spec.brokers.replicas is missing"),
        (named("events", brokers={"replicas": 0}), "spec.brokers.replicas must be from 1 to 100, not 0"),
        (named("events", brokers={"replicas": "3"}), "spec.brokers.replicas must be an integer"),
        (named("events", brokers={"replicas": True}), "spec.brokers.replicas must be an integer"),
        (named("Events", brokers={"replicas": 3}), "lower-case letters"),
        (named("e" * 41, brokers={"replicas": 3}), "at most 40 characters"),
        (
            named("events", brokers={"replicas": 3, "config": {"broker.id": 1}}),
            "broker.id is set by the operator",
        ),
        (
            named("events", brokers={"replicas": 3, "config": {"a": ["b"]}}),
            "spec.brokers.config.a must be a number",
        ),
        (brokers(config={"a": "b\nc=d"}), "a string of one line"),
        (
            named("events", brokers={"replicas": 3, "storage": {"type": "tape"}}),
            "persistent, local, ephemeral",
        ),
        (brokers(storage={"size": "ten"}), "not a quantity"),
        (with_three(zookeeper={"replicas": 2}), "1, 3 or 5, not 2"),
        (named("events", brokers=[3]), "spec.brokers must be an object"),
        (
            with_three(rolling={"moveBytesPerSecond": 0}),
            "spec.rolling.moveBytesPerSecond must be from 1024 to",
        ),
        (with_three(rolling={"moveBytesPerSecond": -5}), "from 1024 to"),
        (with_three(rolling={"moveBytesPerSecond": "20M"}), "must be an integer, not '20M'"),
        (
            named(
                "events",
                brokers={"replicas": 3, "config": {"leader.replication.throttled.rate": 5000}},
                rolling={"moveBytesPerSecond": 5000},
            ),
            "spec.brokers.config.leader.replication.throttled.rate and spec.rolling.moveBytesPerSecond set",
        ),
        (with_three(warehouse={"location": "/tables"}), "a path needs volumeClaim"),
    ],
)
def test_a_wrong_cluster_is_reported_by_field(manifest: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        cluster_of(manifest)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        (named("clicks"), "spec.clusterRef.name is missing"),
        (topic(topicName="a b"), "can't be a topic's name"),
        (topic(topicName=".."), "can't be a topic's name"),
        (topic(partitions=0), "spec.partitions must be from 1 to 10000"),
        (topic(replicas=-1), "spec.replicas must be from 1 to 100"),
        (topic(config={"retention.ms": {}}), "spec.config.retention.ms must be a number"),
        (topic(deletionPolicy="Maybe"), "Retain, Delete"),
        (topic(warehouse={}), "spec.warehouse.schedule is missing"),
        (topic(warehouse={"schedule": "@hourly", "executors": "many"}), "0 to 1000, or auto"),
        (topic(warehouse={"schedule": "@hourly", "format": "xml"}), "json, avro, protobuf, json-schema, raw"),
        (topic(warehouse={"schedule": "@hourly", "format": "avro"}), "schemaRegistry is missing"),
    ],
)
def test_a_wrong_topic_is_reported_by_field(manifest: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        topic_of(manifest)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("reset", "sentence"),
    [
        ({"to": "earliest"}, "spec.reset.requestId is missing"),
        ({"requestId": "1", "to": "offset"}, "to: offset needs offset"),
        ({"requestId": "1", "to": "latest", "offset": 3}, "spec.reset.offset goes with to: offset only"),
        ({"requestId": "1", "to": "datetime", "datetime": "yesterday"}, "2026-11-21T09:30:00Z"),
        ({"requestId": "1", "to": "datetime", "datetime": "2026-11-21T09:30:00"}, "2026-11-21T09:30:00Z"),
        ({"requestId": "1", "to": "undo", "topics": ["a"]}, "leave out topics"),
        ({"requestId": "1", "to": "middle"}, "one of earliest"),
    ],
)
def test_a_wrong_reset_is_reported_by_field(reset: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        group_of(group(reset=reset))
    assert sentence in str(refused.value)


def test_a_moment_is_read_in_its_time_zone() -> None:
    result = group_of(
        group(reset={"requestId": "1", "to": "datetime", "datetime": "1970-01-01T01:00:01+01:00"})
    )
    assert result.reset is not None
    assert result.reset.timestamp_ms == 1000


@pytest.mark.parametrize(
    ("text", "number"), [("10Gi", 10 * 2**30), ("500m", 0.5), ("3", 3), ("1.5k", 1500), ("2E", 2 * 10**18)]
)
def test_quantities_are_kubernetes(text: str, number: float) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("1000m", "1"), ("1Gi", "1024Mi"), ("1.0", "1"), ("1.", "1"), (".5", "500m"), ("1.5Gi", "1536Mi"),
        ("5e9", "5G"), ("5E3", "5k"), ("5E", "5000P"), ("700m", "0.7"), ("1100m", "1.1"), ("100u", "0.1m"),
    ],
)  # fmt: skip
def test_quantities_are_exact_in_all_their_spellings(text: str, same: str) -> None:
    """Claims that were restored from a backup may have any of them."""
    assert quantity(text) == quantity(same)


@pytest.mark.parametrize("text", ["False", "FALSE", " false"])
def test_a_topic_that_is_not_managed_may_say_so_in_any_case(text: str) -> None:
    """Else its topic would be deleted with it."""
    manifest = topic(deletionPolicy="Delete")
    manifest["metadata"]["annotations"] = {"mainstem.dev/managed": text}
    assert not topic_of(manifest).managed


@pytest.mark.parametrize("kind", ["BrokerCluster", "Topic", "ConsumerGroup", "User"])
def test_an_annotation_that_is_neither_true_nor_false_is_reported(kind: str) -> None:
    """Who writes `yes` takes the object for paused; nothing is done to an object that is not valid."""
    spec = {"brokers": {"replicas": 3}} if kind == "BrokerCluster" else {"clusterRef": {"name": "events"}}
    manifest = named("events", **spec)
    manifest["metadata"]["annotations"] = {"mainstem.dev/pause-reconciliation": "yes"}
    with pytest.raises(InvalidSpec, match="pause-reconciliation is 'yes': write true or false"):
        READERS[kind](manifest)


def test_a_restart_that_is_taken_back_by_false_is_none() -> None:
    manifest = brokers()
    manifest["metadata"]["annotations"] = {"mainstem.dev/restart": "false"}
    assert cluster_of(manifest).restart_request == ""


@pytest.mark.parametrize("values", [7, "x", {"a": 1}, True, [7]])
def test_what_is_no_list_is_reported(values: Any) -> None:
    for read, manifest in (
        (group_of, group(reset={"requestId": "r", "to": "earliest", "topics": values})),
        (user_of, named("alice", clusterRef={"name": "events"}, acls=values)),
    ):
        with pytest.raises(InvalidSpec, match="must be a list of"):
            read(manifest)


@pytest.mark.parametrize("text", ["true", "events-ca", "0-1;2"])
def test_an_adoption_that_names_no_uid_is_refused(text: str) -> None:
    """`true` would be a consent to whatever is there by then."""
    manifest = {"metadata": {"annotations": {"mainstem.dev/adopt-secrets": text}}}
    with pytest.raises(InvalidSpec, match=r"write the metadata\.uid of each Secret"):
        adopted_secrets(manifest)
