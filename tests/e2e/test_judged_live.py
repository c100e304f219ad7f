"""What no schema can know of a manifest: by field, the condition that tells it and the test of that (R24).

An image that is nowhere, a time zone that there is not, more replicas than brokers: each field that takes
many values is listed with the reason of its condition. What is refused at once: `test_bad_manifests.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from tests.e2e.api_server import ApiServer, path_of
from tests.e2e.definitions import KINDS, schema_of
from tests.e2e.wrong_manifests import Part, parts_of

from mainstem_operator.api.resources import Images, cluster_of
from mainstem_operator.cluster.broker_manifests import Placement, broker_manifests, broker_services
from mainstem_operator.kubernetes.client import Refused

REPOSITORY: Final = Path(__file__).resolve().parents[2]

_LIVE: Final = "tests/unit/operator/cluster/test_judged_live.py::"
_REFUSED: Final = ("Refused", _LIVE + "test_what_kubernetes_refuses_of_a_cluster_is_told_and_nothing_is_done")
_NO_PORT: Final = ("Refused", _LIVE + "test_a_node_port_that_can_not_be_had_is_told_before_brokers_are_made")
_NO_PODS: Final = ("NoBrokers", _LIVE + "test_pods_that_kubernetes_does_not_make_are_told")
_NO_PLACE: Final = ("NoBrokers", _LIVE + "test_a_pod_that_fits_nowhere_is_told")
_NO_IMAGE: Final = ("NoBrokers", _LIVE + "test_an_image_that_is_nowhere_is_told")
_LAST_WORDS: Final = ("NoBrokers", _LIVE + "test_the_last_words_of_a_broker_that_ends_are_told")
_NO_GROWTH: Final = ("StorageUnresizable", _LIVE + "test_volumes_that_can_not_have_their_new_size_are_told")
_NO_RACK: Final = ("RackUnknown", _LIVE + "test_a_rack_label_that_no_node_has_is_told")
_LOAD_WAITS: Final = ("LoadCannotStart", _LIVE + "test_a_load_whose_pod_can_not_start_is_told")
_LOAD_REFUSED: Final = ("CannotLoad", _LIVE + "test_a_load_that_kubernetes_refuses_holds_up_no_other_topic")
_LOAD_FAILED: Final = (
    "LoadFailed",
    "tests/unit/operator/topics/loads/test_plan.py::test_a_run_that_failed_is_told_in_its_own_words",
)
_UPKEEP_REFUSED: Final = (
    "CannotMaintain",
    "tests/unit/operator/topics/loads/test_maintenance.py::test_a_cron_job_that_kubernetes_refuses_is_reported",
)
_NO_CLUSTER: Final = (
    "ClusterNotFound",
    "tests/interop/test_operator_topics.py::test_a_topic_waits_for_its_cluster",
)
_GROUP_CLUSTER: Final = ("ClusterNotFound", _LIVE + "test_a_group_of_a_cluster_that_is_not_there_says_so")
_CLAIMED: Final = (
    "ResourceConflict",
    "tests/e2e/test_topics.py::test_e12_of_two_topics_that_claim_one_the_oldest_has_it",
)
_FEWER: Final = (
    "NotSupported",
    "tests/e2e/test_topics.py::test_e5_fewer_partitions_are_refused_and_the_topic_recovers",
)
_MORE: Final = (
    "NotEnoughBrokers",
    "tests/interop/test_operator_topics.py::test_a_refusal_of_brokers_is_reported_with_its_reason",
)
_SETTING: Final = (
    "InvalidConfig",
    "tests/e2e/test_topics.py::test_e8_an_unknown_or_invalid_setting_is_named",
)
_NO_GROUP: Final = (
    "NoSuchGroup",
    "tests/unit/operator/groups/test_plan.py::test_a_group_that_nobody_has_joined_yet_is_no_failure",
)
_NO_OFFSETS: Final = (
    "Failed",
    "tests/unit/operator/groups/test_plan.py::test_a_group_without_offsets_has_nothing_to_reset",
)
_NO_EVENT_DAY: Final = (
    "InvalidSpec",
    "tests/unit/operator/topics/loads/test_plan.py::test_days_of_events_that_make_no_sense_are_told",
)
_NO_DAY: Final = ("InvalidSpec", _LIVE + "test_a_day_that_the_month_does_not_have_is_told")
_NO_LOADED_DAY: Final = (
    "InvalidSpec",
    "tests/unit/operator/topics/loads/test_requests.py::test_a_request_that_makes_no_sense_is_told",
)
_NO_CERTIFICATE: Final = (
    "SecretNotUsable",
    "tests/unit/operator/cluster/test_secured.py::test_a_certificate_that_is_not_there_is_waited_for",
)
_USERS: Final = "tests/unit/operator/users/test_reconcile.py::"
_USER_CLUSTER: Final = (
    "ClusterNotFound",
    _USERS + "test_a_user_of_a_cluster_that_is_not_there_says_so_and_goes",
)
_NO_PASSWORD: Final = ("InvalidSpec", _USERS + "test_a_password_that_is_not_there_is_told")
_REFUSED_BY_BROKERS: Final = ("KafkaError", _USERS + "test_what_brokers_refuse_of_one_user_holds_up_no_other")
_ALWAYS_RIGHT: Final = ("", "")
"""Whatever the schema takes makes sense, or only clients can tell."""


def _of_both(fields: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    return {f"spec.{part}.{field}": how for part in ("brokers", "zookeeper") for field, how in fields.items()}


JUDGED_LIVE: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "BrokerCluster": {
        **_of_both(
            {
                "image": _NO_IMAGE,
                "storage.size": _NO_GROWTH,
                "storage.storageClassName": _NO_PLACE,
                "resources.requests.*": _NO_PLACE,
                "resources.limits.*": _LAST_WORDS,
                "pod.labels.*": _REFUSED,  # keys that are too long, or Kubernetes' own
                "pod.annotations.*": _REFUSED,
                "pod.nodeSelector.*": _NO_PLACE,
                "pod.tolerations[]": _REFUSED,
                "pod.affinity": _REFUSED,
                "pod.priorityClassName": _NO_PODS,
                "pod.serviceAccountName": _NO_PODS,
                "pod.imagePullSecrets[].name": _NO_IMAGE,
            }
        ),
        "spec.brokers.replicas": _NO_PLACE,
        "spec.brokers.config.*": _LAST_WORDS,  # and SettingsRefused, of those that need no restart
        "spec.brokers.rack.nodeLabel": _NO_RACK,
        "spec.listeners.external.host": _ALWAYS_RIGHT,
        "spec.listeners.external.nodePortFirst": _NO_PORT,
        "spec.listeners.clients[].name": _ALWAYS_RIGHT,
        "spec.listeners.clients[].port": _ALWAYS_RIGHT,
        "spec.listeners.clients[].host": _ALWAYS_RIGHT,
        "spec.listeners.clients[].nodePortFirst": _NO_PORT,
        "spec.tls.secretName": _NO_CERTIFICATE,
        "spec.authorization.superUsers[]": _ALWAYS_RIGHT,
        "spec.rolling.stuckAfterSeconds": _ALWAYS_RIGHT,
        "spec.rolling.moveBytesPerSecond": _ALWAYS_RIGHT,
        "spec.warehouse.location": _LOAD_FAILED,
        "spec.warehouse.endpoint": _LOAD_FAILED,
        "spec.warehouse.region": _LOAD_FAILED,
        "spec.warehouse.credentialsSecret": _LOAD_WAITS,
        "spec.warehouse.volumeClaim": _LOAD_WAITS,
        "spec.warehouse.catalog.uri": _LOAD_FAILED,
        "spec.warehouse.catalog.namespace": _LOAD_FAILED,
        "spec.warehouse.residentLoader.resources.requests.*": _LOAD_WAITS,
        "spec.warehouse.residentLoader.resources.limits.*": _LOAD_WAITS,
    },
    "Topic": {
        "spec.clusterRef.name": _NO_CLUSTER,
        "spec.topicName": _CLAIMED,
        "spec.partitions": _FEWER,
        "spec.replicas": _MORE,
        "spec.config.*": _SETTING,
        "spec.warehouse.table": _LOAD_FAILED,
        "spec.warehouse.schedule": _LOAD_REFUSED,  # 5-1 * * * *
        "spec.warehouse.timeZone": _LOAD_REFUSED,
        "spec.warehouse.schemaRegistry": _LOAD_FAILED,
        "spec.warehouse.columns.*": _LOAD_FAILED,
        "spec.warehouse.eventTime": _LOAD_FAILED,
        "spec.warehouse.eventDayMin": _NO_EVENT_DAY,
        "spec.warehouse.eventDayMax": _NO_EVENT_DAY,
        "spec.warehouse.deadLetter.table": _LOAD_FAILED,
        "spec.warehouse.executors": _LOAD_WAITS,
        "spec.warehouse.maxRecords": _ALWAYS_RIGHT,
        "spec.warehouse.freshness": _ALWAYS_RIGHT,
        "spec.warehouse.backfill.requestId": _ALWAYS_RIGHT,
        "spec.warehouse.backfill.days[]": _NO_LOADED_DAY,
        "spec.warehouse.backfill.from": _ALWAYS_RIGHT,
        "spec.warehouse.backfill.to": _ALWAYS_RIGHT,
        "spec.warehouse.rewind.requestId": _ALWAYS_RIGHT,
        "spec.warehouse.rewind.to": _ALWAYS_RIGHT,
        "spec.warehouse.replayDeadLetters.requestId": _ALWAYS_RIGHT,
        "spec.warehouse.retentionLimit": _ALWAYS_RIGHT,
        "spec.warehouse.maintenance.schedule": _UPKEEP_REFUSED,
        "spec.warehouse.maintenance.keepFilesHours": _ALWAYS_RIGHT,
        "spec.warehouse.freshWithinSeconds": _ALWAYS_RIGHT,
        "spec.warehouse.maxRejectedPercent": _ALWAYS_RIGHT,
        "spec.warehouse.transform.sql": _LOAD_FAILED,
        "spec.warehouse.transform.configMap.name": _LOAD_WAITS,
        "spec.warehouse.transform.configMap.*": _LOAD_WAITS,  # the field `key`
        "spec.warehouse.transform.function": _LOAD_FAILED,
        "spec.warehouse.transform.image": _LOAD_WAITS,
        "spec.warehouse.transform.inputs.*.table": _LOAD_FAILED,
        "spec.warehouse.transform.inputs.*.topic": _LOAD_FAILED,
        "spec.warehouse.transform.inputs.*.columns.*": _LOAD_FAILED,
        "spec.warehouse.transform.deadlineSeconds": _ALWAYS_RIGHT,
        "spec.warehouse.resources.requests.*": _LOAD_WAITS,
        "spec.warehouse.resources.limits.*": _LOAD_FAILED,
    },
    "ConsumerGroup": {
        "spec.clusterRef.name": _GROUP_CLUSTER,
        "spec.groupId": _NO_GROUP,
        "spec.maxLag": _ALWAYS_RIGHT,
        "spec.maxLagSeconds": _ALWAYS_RIGHT,
        "spec.reset.requestId": _ALWAYS_RIGHT,
        "spec.reset.datetime": _NO_DAY,
        "spec.reset.offset": _ALWAYS_RIGHT,  # put within the log
        "spec.reset.shiftBy": _ALWAYS_RIGHT,
        "spec.reset.topics[]": _NO_OFFSETS,
    },
    "User": {
        "spec.clusterRef.name": _USER_CLUSTER,
        "spec.authentication.passwordFrom.name": _NO_PASSWORD,
        "spec.authentication.passwordFrom.*": _NO_PASSWORD,  # the field `key`
        "spec.acls[].name": _ALWAYS_RIGHT,  # an ACL may be there before what it is about
        "spec.acls[].host": _REFUSED_BY_BROKERS,
        "spec.quotas.producerByteRate": _ALWAYS_RIGHT,
        "spec.quotas.consumerByteRate": _ALWAYS_RIGHT,
        "spec.quotas.requestPercentage": _ALWAYS_RIGHT,
        "spec.quotas.controllerMutationRate": _ALWAYS_RIGHT,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_of_every_field_that_takes_many_values_it_is_known_who_judges_them(kind: str) -> None:
    """A new field that is no choice and no truth has to be listed above: which condition tells nonsense?"""
    assert set(JUDGED_LIVE[kind]) == {_in_the_schema(part) for part in _open_parts(kind)}


def _open_parts(kind: str) -> Iterator[Part]:
    for part in parts_of(schema_of(kind), {}):
        inside = {"properties", "additionalProperties", "items"} & part.schema.keys()
        if not inside and "enum" not in part.schema and part.type != "boolean":
            yield part


def _in_the_schema(part: Part) -> str:
    """`spec.brokers.config.*`, `spec.reset.topics[]`."""
    return ".".join("[]" if step == 0 else "*" if step == "key" else str(step) for step in part.path).replace(
        ".[]", "[]"
    )


def test_each_judgement_of_the_live_cluster_has_its_reason_in_the_operator_and_its_test() -> None:
    source = "".join(
        path.read_text() for path in (REPOSITORY / "operator" / "mainstem_operator").rglob("*.py")
    )
    for reason, test in {how for fields in JUDGED_LIVE.values() for how in fields.values()} - {_ALWAYS_RIGHT}:
        path, _, name = test.partition("::")
        tree = ast.parse((REPOSITORY / path).read_text())
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert name in {node.name for node in tree.body if isinstance(node, functions)}, test
        assert f'"{reason}"' in source, reason


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"tolerations": [{"operator": "Perhaps"}]}, "tolerations[0].operator"),
        ({"tolerations": [{"kye": "dedicated"}]}, "kye"),
        ({"affinity": {"nodeAfinity": {}}}, "nodeAfinity"),
        ({"annotations": {f"{'a' * 254}/team": "a"}}, "annotations"),
        ({"labels": {"-.example.com/team": "a"}}, "labels"),
    ],
    ids=["choice", "name-in-a-list", "name", "annotation", "label"],
)
def test_what_kubernetes_refuses_of_a_cluster_is_known_to_be_the_manifests_fault(
    pod: dict[str, Any], words: str
) -> None:
    """The operator tells that from what passes by itself, such as an API server that is starting."""
    spec = {"brokers": {"replicas": 1, "pod": pod}}
    cluster = cluster_of({"metadata": {"name": "events", "namespace": "default", "uid": "1"}, "spec": spec})
    expected = broker_manifests(cluster, Images(), 1, Placement({}), None, 1)
    server = ApiServer()
    try:
        answers = [server.apply(path_of(item), item, dry=True) for item in expected]
    finally:
        server.close()
    (refused,) = [Refused(answer.status, answer.message) for answer in answers if answer.refused]
    assert refused.by_content
    assert words in str(refused)


def test_a_node_port_out_of_range_is_known_to_be_the_manifests_fault() -> None:
    spec = {
        "brokers": {"replicas": 1},
        "listeners": {"external": {"type": "NodePort", "nodePortFirst": 1024}},
    }
    metadata = {"name": f"refused-{uuid4().hex[:8]}", "namespace": "default", "uid": "1"}
    *_, outside = broker_services(cluster_of({"metadata": metadata, "spec": spec}), 1)
    server = ApiServer()
    try:
        answer = server.apply(path_of(outside), outside)  # in earnest: a dry run gives out no ports
        if not answer.refused:
            server.delete(path_of(outside))
    finally:
        server.close()
    assert Refused(answer.status, answer.message).by_content
    assert "nodePort" in answer.message
