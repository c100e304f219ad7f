"""Topics as resources: made, grown, changed, refused, adopted and taken away (R24)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from tests.e2e.installation import CLUSTER, RESYNC_SECONDS, Installation, wait_until
from tests.e2e.kubectl import KubectlError
from tests.e2e.traffic import Traffic

AFTER_RESYNC = 3 * RESYNC_SECONDS
LATER = 1_000_000
"""From here on records are numbered that are sent after those that are looked for."""


@pytest.mark.parametrize(
    "fields",
    [{}, {"partitions": 3}, {"config": {"retention.ms": 3_600_000}}],
    ids=["name", "partitions", "config"],
)
def test_e3_a_topic_needs_only_what_differs_from_the_defaults(
    mainstem: Installation, name: str, fields: dict[str, Any]
) -> None:
    mainstem.apply("Topic", name, deletionPolicy="Delete", **fields)
    mainstem.until("topic", name, "Ready", reason="Synced")
    made = mainstem.topics()[name]
    assert len(made.partitions) == fields.get("partitions", 1)
    assert {len(partition.replicas) for partition in made.partitions.values()} == {3}
    if "config" in fields:
        assert setting(mainstem, name, "retention.ms") == "3600000"


def test_e6_the_replication_factor_goes_up_and_down_under_traffic(mainstem: Installation, name: str) -> None:
    mainstem.apply("Topic", name, partitions=3, replicas=2, deletionPolicy="Delete")
    mainstem.until("topic", name, "Ready")
    with Traffic(mainstem, name, longest_seconds=2.0):
        for replicas in (3, 2):
            mainstem.apply("Topic", name, partitions=3, replicas=replicas, deletionPolicy="Delete")
            wait_until(partial(has_replicas, mainstem, name, replicas), f"{replicas} replicas")
            mainstem.until("topic", name, "Reassigning", "False")
            mainstem.until("topic", name, "Ready")


def test_e9_a_change_by_others_is_reverted_unless_null_leaves_it_to_them(
    mainstem: Installation, name: str
) -> None:
    mainstem.apply(
        "Topic", name, config={"retention.ms": 3_600_000, "segment.bytes": None}, deletionPolicy="Delete"
    )
    mainstem.until("topic", name, "Ready")
    changes = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in (("retention.ms", "1000"), ("segment.bytes", "2097152"))
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=changes)
    mainstem.admin.incremental_alter_configs([resource])[resource].result()
    wait_until(lambda: setting(mainstem, name, "retention.ms") == "3600000", "it is put back", AFTER_RESYNC)
    assert setting(mainstem, name, "segment.bytes") == "2097152"


@pytest.mark.long
def test_e10_a_topic_deleted_by_others_is_made_again_and_reported(mainstem: Installation, topic: str) -> None:
    before = mainstem.status("topic", topic)["topicId"]
    mainstem.admin.delete_topics([topic])[topic].result()
    wait_until(
        lambda: mainstem.status("topic", topic)["topicId"] != before,
        "another topic of the name",
        AFTER_RESYNC,
    )
    mainstem.until("topic", topic, "Ready")
    events = mainstem.namespace.kubectl("get", "events", f"--field-selector=involvedObject.name={topic}")
    assert "Warning" in events, events


@pytest.mark.long
def test_e14_a_retained_topic_keeps_its_data_and_is_adopted(mainstem: Installation, name: str) -> None:
    mainstem.apply("Topic", name, partitions=2, replicas=3)
    mainstem.until("topic", name, "Ready")
    with Traffic(mainstem, name) as traffic:
        pass
    before = mainstem.status("topic", name)["topicId"]
    mainstem.delete("topic", name)
    assert name in mainstem.topics()
    mainstem.apply("Topic", name, partitions=2, replicas=3, deletionPolicy="Delete")
    mainstem.until("topic", name, "Ready")
    assert mainstem.status("topic", name)["topicId"] == before
    with Traffic(mainstem, name, first=LATER) as again:
        pass
    assert traffic.acknowledged <= again.consumed


def test_e15_a_protected_topic_is_not_deleted(mainstem: Installation, name: str) -> None:
    mainstem.apply("Topic", name, partitions=1, deletionProtection=True, deletionPolicy="Delete")
    mainstem.until("topic", name, "Ready")
    with pytest.raises(KubectlError, match="deletionProtection"):
        mainstem.delete("topic", name)
    mainstem.patch("topic", name, {"spec": {"deletionProtection": False}})
    mainstem.delete("topic", name)
    assert name not in mainstem.topics()


def test_a_protected_cluster_is_not_deleted(mainstem: Installation) -> None:
    """Only a dry run, because the other tests need the cluster."""
    delete = ("delete", "brokercluster.mainstem.dev", CLUSTER, "--dry-run=server")
    mainstem.patch_cluster({"deletionProtection": True})
    with pytest.raises(KubectlError, match="deletionProtection"):
        mainstem.namespace.kubectl(*delete)
    mainstem.patch_cluster({"deletionProtection": False})
    mainstem.namespace.kubectl(*delete)


def test_e17_a_paused_topic_is_left_alone_and_can_be_deleted(mainstem: Installation, name: str) -> None:
    mainstem.apply("Topic", name, partitions=2, deletionPolicy="Delete")
    mainstem.until("topic", name, "Ready")
    mainstem.annotate("topic", name, "pause-reconciliation", "true")
    mainstem.until("topic", name, "Paused")
    mainstem.apply("Topic", name, partitions=4, deletionPolicy="Delete")
    wait_until(lambda: not mainstem.behind(), "the edit is seen")
    assert len(mainstem.topics()[name].partitions) == 2
    mainstem.annotate("topic", name, "pause-reconciliation", None)
    wait_until(lambda: len(mainstem.topics()[name].partitions) == 4, "it goes on")
    mainstem.annotate("topic", name, "pause-reconciliation", "true")
    mainstem.until("topic", name, "Paused")
    mainstem.delete("topic", name)
    assert name not in mainstem.topics()


def setting(mainstem: Installation, topic: str, key: str) -> str:
    """A topic's setting as a stock client reads it."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    result = mainstem.admin.describe_configs([resource])[resource].result()
    return str(result[key].value)


def has_replicas(mainstem: Installation, topic: str, expected: int) -> bool:
    return all(len(part.replicas) == expected for part in mainstem.topics()[topic].partitions.values())
