"""Wrong manifests are refused when they are applied, by field and in a sentence; good ones are taken (R24).

All by the real API server and the definitions in `crds/`, under a group of their own, mostly as dry runs.
What no schema can know: `test_judged_live.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.e2e.api_server import Answer, ApiServer, path_of
from tests.e2e.chart import rendered_chart
from tests.e2e.definitions import CRDS, DEFINITIONS_PATH, KINDS, MINIMAL, Definitions, Manifest, schema_of
from tests.e2e.installation import CHART
from tests.e2e.whole_manifests import WHOLE
from tests.e2e.wrong_manifests import (
    RULES,
    Wrong,
    changed,
    is_of_changes,
    parts_of,
    plain,
    wrong_manifests,
)

from mainstem_operator.api.clusters import cluster_of
from mainstem_operator.api.groups import group_of
from mainstem_operator.api.objects import Identity
from mainstem_operator.api.topics import topic_of
from mainstem_operator.api.users import user_of

REPOSITORY: Final = Path(__file__).resolve().parents[2]
FEWEST: Final = {"BrokerCluster": 350, "Topic": 150, "ConsumerGroup": 80, "User": 100}
"""Wrong manifests of each kind, at least: fewer would mean that the schema was not walked."""


@pytest.fixture(scope="module")
def definitions(cluster: None) -> Iterator[Definitions]:
    server = ApiServer()
    result = Definitions(server)
    try:
        result.create()
        yield result
    finally:
        result.delete()
        server.close()


# --- Refused: one field wrong ---


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_that_is_wrong_is_refused_by_its_name_with_what_is_wanted(
    definitions: Definitions, kind: str
) -> None:
    wrong = list(wrong_manifests(schema_of(kind), WHOLE[kind]))
    assert len(wrong) >= FEWEST[kind]
    faults = [fault for item in wrong if (fault := _fault(item, definitions.create_dry(item.manifest)))]
    assert not faults, "\n".join(faults)


def _fault(item: Wrong, answer: Answer) -> str:
    """What is wrong with an answer to a wrong manifest; nothing if it is refused as it should be."""
    if not answer.refused:
        return f"{item} is taken"
    named = {plain(field) for field in answer.fields} | set(
        re.findall(r'unknown field "([^"]+)"', answer.message)
    )
    fields = {plain(field) for field in named}
    if not any(f"{field}.".startswith(f"{item.field}.") for field in fields):
        return f"{item} is not named: {answer.message}"
    if not any(words in answer.message for words in item.wanted):
        return f"{item}: {item.wanted} is not said: {answer.message}"
    return ""


# --- Refused: what rules say ---

_LOCATION: Final = "spec.warehouse.location"
_SCHEDULE: Final = "spec.warehouse.schedule"
_RESET: Final = {"requestId": "1"}

_ACL: Final = {"resource": "topic", "name": "clicks", "operations": ["read"]}
_WITHOUT_NAME: Final = {"resource": "topic", "operations": ["read"]}
_TLS: Final = {"name": "tls", "port": 9093}
_INTERNAL: Final = {"name": "internal", "port": 9092, "tls": False, "authentication": "none"}


def _clients(*listeners: Mapping[str, Any]) -> dict[str, Any]:
    return {"clients": list(listeners)}


BY_RULE: Final[tuple[tuple[str, str, Any, str], ...]] = (
    # kind, field, value, words of the refusal
    ("BrokerCluster", "metadata.name", "1st", "beginning with a letter"),
    ("BrokerCluster", "metadata.name", "e" * 41, "at most 40 characters"),
    ("BrokerCluster", "spec.brokers.image", "Our Image", "such as registry.example.com"),
    ("BrokerCluster", "spec.brokers.storage.size", "ten", "a number with its unit"),
    ("BrokerCluster", "spec.brokers.storage.size", "10", "at least 64Mi"),
    ("BrokerCluster", "spec.brokers.storage.size", "-1Gi", "a number with its unit"),
    ("BrokerCluster", "spec.brokers.storage.size", "500m", "a number with its unit"),
    ("BrokerCluster", "spec.zookeeper.storage.size", "0Gi", "at least 64Mi"),
    ("BrokerCluster", "spec.zookeeper.storage.type", "ephemeral", "a ZooKeeper that keeps its own"),
    ("BrokerCluster", "spec.brokers.storage.storageClassName", "Fast SSD", "lower-case letters"),
    ("BrokerCluster", "spec.brokers.config[broker.id]", 7, "set by the operator: leave them out"),
    ("BrokerCluster", "spec.brokers.config[num partitions]", 7, "as in num.partitions"),
    ("BrokerCluster", "spec.brokers.config[num.partitions]", "7\nbroker.id=1", "a text of one line"),
    ("BrokerCluster", "spec.brokers.rack.nodeLabel", "zone!", "a label of nodes"),
    ("BrokerCluster", "spec.brokers.resources.requests[cpu]", -1, "such as 2, 500m or 4Gi"),
    ("BrokerCluster", "spec.brokers.resources.requests[cpu]", "much", "such as 2, 500m or 4Gi"),
    ("BrokerCluster", "spec.brokers.resources.requests[cpus]", 1, "a resource is cpu, memory"),
    ("BrokerCluster", "spec.brokers.resources.requests[cpu]", "2001m", "lower requests, or raise limits"),
    ("BrokerCluster", "spec.brokers.resources.limits[memory]", "1000Mi", "lower requests, or raise limits"),
    ("BrokerCluster", "spec.brokers.pod.labels[team]", "not a label", "a label's value has at most 63"),
    ("BrokerCluster", "spec.brokers.pod.labels[a team]", "a", "a key has at most 63"),
    ("BrokerCluster", "spec.brokers.pod.annotations[a note]", "a", "a key has at most 63"),
    ("BrokerCluster", "spec.brokers.pod.annotations[mainstem.dev/restart]", "1", "the operator's own"),
    ("BrokerCluster", "spec.brokers.pod.nodeSelector[disk]", "-", "a label's value has at most 63"),
    ("BrokerCluster", "spec.brokers.pod.priorityClassName", "", "lower-case letters"),
    ("BrokerCluster", "spec.brokers.pod.serviceAccountName", "Someone", "lower-case letters"),
    ("BrokerCluster", "spec.listeners.external.host", "kafka.example.org:9094", "without a port"),
    ("BrokerCluster", "spec.listeners.external.host", "[2001:db8::1]", "without a port"),
    (
        "BrokerCluster",
        "spec.listeners.external.nodePortFirst",
        65_533,
        "begin lower, or leave nodePortFirst out",
    ),
    ("BrokerCluster", "spec.listeners", _clients({**_TLS, "name": "Tls"}), "is not brokers, http or loads"),
    ("BrokerCluster", "spec.listeners", _clients({**_TLS, "name": "loads"}), "is not brokers, http or loads"),
    ("BrokerCluster", "spec.listeners", _clients({**_TLS, "port": 9090}), "take another one"),
    ("BrokerCluster", "spec.listeners", _clients({**_TLS, "port": 9404}), "take another one"),
    (
        "BrokerCluster",
        "spec.listeners",
        _clients({**_TLS, "type": "nodeport", "host": "a:1"}),
        "without a port",
    ),
    (
        "BrokerCluster",
        "spec.listeners",
        _clients({**_TLS, "tls": False, "authentication": "tls"}),
        "needs tls: true",
    ),
    ("BrokerCluster", "spec.listeners", _clients({**_TLS, "host": "a"}), "go with type: nodeport only"),
    (
        "BrokerCluster",
        "spec.listeners",
        _clients(_TLS, {"name": "more", "port": 9093}),
        "two listeners cannot have the same port",
    ),
    (
        "BrokerCluster",
        "spec.listeners",
        _clients({**_TLS, "type": "nodeport"}, {"name": "more", "port": 9095, "type": "nodeport"}),
        "only one listener can have type: nodeport",
    ),
    ("BrokerCluster", "spec.listeners.clients", [_TLS], "external goes without clients"),
    ("BrokerCluster", "spec.tls", {"secretName": "mine"}, "need listeners.clients"),
    ("BrokerCluster", "spec.tls", {"secretName": "Mine"}, "lower-case letters"),
    ("BrokerCluster", "spec.authorization", {"type": "acl"}, "need listeners.clients"),
    (
        "BrokerCluster",
        "spec.authorization",
        {"type": "acl", "superUsers": ["User:ANONYMOUS"]},
        "everybody that does not log in",
    ),
    (
        "BrokerCluster",
        "spec",
        {
            "brokers": {"replicas": 1, "config": {"super.users": "User:a"}},
            "listeners": _clients(_TLS),
            "authorization": {"type": "acl"},
        },
        "set the same as authorization",
    ),
    (
        "BrokerCluster",
        "spec.brokers.config[leader.replication.throttled.rate]",
        9_999,
        "remove one of them",
    ),
    ("BrokerCluster", _LOCATION, "lake/events", "s3://bucket/prefix"),
    ("BrokerCluster", _LOCATION, "/lake/a%20b", "cannot use a path with"),
    ("BrokerCluster", _LOCATION, "/lake/a[1]", "cannot use a path with"),
    ("BrokerCluster", _LOCATION, "/lake/a\\b", "cannot use a path with"),
    ("BrokerCluster", _LOCATION, "/", "an absolute path"),
    ("BrokerCluster", _LOCATION, "/warehouse", "a path needs volumeClaim"),
    ("BrokerCluster", "spec.warehouse.volumeClaim", "tables", "one in s3:// goes without it"),
    ("BrokerCluster", "spec.warehouse.endpoint", "s3.example.com", "by its URL"),
    ("BrokerCluster", "spec.warehouse.region", "eu central", "such as eu-central-1"),
    ("BrokerCluster", "spec.warehouse.catalog", {"uri": "catalog:8181"}, "a catalog is named by its URL"),
    (
        "BrokerCluster",
        "spec.warehouse.catalog",
        {"uri": "http://catalog:8181", "namespace": "lake..events"},
        "a . between its parts",
    ),
    ("Topic", "metadata.name", "a" * 250, "give a shorter one in spec.topicName"),
    ("Topic", "spec.clusterRef.name", "Events", "lower-case letters"),
    ("Topic", "spec.topicName", "clicks of today", "letters, digits"),
    ("Topic", "spec.topicName", "..", "is not . or .."),
    ("Topic", "spec.config[retention.ms]", "1\n", "a text of one line"),
    ("Topic", "spec.config[retention ms]", 1, "as in retention.ms"),
    ("Topic", "spec.warehouse.table", ".clicks", "does not begin with"),
    ("Topic", "spec.warehouse.deadLetter.table", "a/b", "a table's name has letters"),
    ("Topic", _SCHEDULE, "often", "a schedule has five fields"),
    ("Topic", _SCHEDULE, "* * * *", "a schedule has five fields"),
    ("Topic", _SCHEDULE, "@every 5m", "a schedule has five fields"),
    ("Topic", _SCHEDULE, "TZ=UTC * * * *", "a schedule has five fields"),
    ("Topic", _SCHEDULE, " 0 * * * *", "a schedule has five fields"),
    ("Topic", _SCHEDULE, "60 * * * *", "the minute"),
    ("Topic", _SCHEDULE, "*/0 * * * *", "the minute"),
    ("Topic", _SCHEDULE, "1,,2 * * * *", "the minute"),
    ("Topic", _SCHEDULE, "0 24 * * *", "the hour"),
    ("Topic", _SCHEDULE, "0 0 0 * *", "the day of the month"),
    ("Topic", _SCHEDULE, "0 0 1 13 *", "the month"),
    ("Topic", _SCHEDULE, "0 0 * * 7", "the day of the week"),
    ("Topic", _SCHEDULE, "0 0 * * monday", "the day of the week"),
    ("Topic", "spec.warehouse.schemaRegistry", "registry:8081", "a schema registry is named by its URL"),
    ("Topic", "spec.warehouse.schemaRegistry", "http://ann:pw@registry:8081", "by its URL without a login"),
    ("Topic", "spec.warehouse.timeZone", "Local", "the IANA database"),
    ("Topic", "spec.warehouse.timeZone", "+01:00", "the IANA database"),
    ("Topic", "spec.warehouse.columns[price]", "money", "a column's type is"),
    ("Topic", "spec.warehouse.columns[a=b]", "long", "has no ="),
    ("Topic", "spec.warehouse.freshness", "60s", "by schedule, or kept fresh"),
    ("Topic", "spec.warehouse.freshness", "1s", "a duration from 10s to 24h"),
    ("Topic", "spec.warehouse.maintenance.schedule", "0 24 * * *", "the hour"),
    ("Topic", "spec.warehouse.retention", "topic", "untilLoaded needs a retentionLimit"),
    ("Topic", "spec.warehouse.retentionLimit", "much", "such as 50Gi"),
    ("Topic", "spec.warehouse.transform.sql", "SELECT 1", "exactly one of sql, configMap and function"),
    ("Topic", "spec.warehouse.transform.function", "clean", "module:function"),
    ("Topic", "spec.warehouse.transform", {"sql": "SELECT 1", "image": "a"}, "image goes with function only"),
    (
        "Topic",
        "spec.warehouse.transform",
        {"configMap": {"name": "Statements", "key": "clean.sql"}},
        "a ConfigMap's name has lower-case letters",
    ),
    (
        "Topic",
        "spec.warehouse.transform",
        {"configMap": {"name": "statements", "key": "clean/sql"}},
        "a key has letters, digits",
    ),
    (
        "Topic",
        "spec.warehouse.transform.inputs[shops]",
        {"table": "shops", "format": "json"},
        "go with topic only",
    ),
    ("Topic", "spec.warehouse.transform.inputs[records]", {"table": "shops"}, "is not records"),
    ("Topic", "spec.warehouse.transform.inputs[users]", {}, "either a table or a topic"),
    ("Topic", "spec.warehouse.eventDayMin", "1.1.2020", "a day is written as 2026-11-21"),
    ("Topic", "spec.warehouse.eventDayMax", "2026-13-01", "a day is written as 2026-11-21"),
    ("Topic", "spec.warehouse.eventDayMax", "2019-12-31", "eventDayMax is not before eventDayMin"),
    ("Topic", "spec.warehouse.backfill.days", ["21.11.2026"], "a day is written as 2026-11-21"),
    ("Topic", "spec.warehouse.backfill.from", "2026-11-21T09:30:00Z", "by days, or by from and to"),
    ("Topic", "spec.warehouse.backfill.to", "2026-11-21", "its date and its zone"),
    ("Topic", "spec.warehouse.rewind.to", "yesterday", "to earliest, or to a time"),
    ("Topic", "spec.warehouse.executors", "many", "a number from 0 to 1000, or auto"),
    ("Topic", "spec.warehouse.executors", 1001, "a number from 0 to 1000, or auto"),
    ("Topic", "spec.warehouse.resources.requests[cpu]", "1 core", "such as 2, 500m or 4Gi"),
    ("Topic", "spec.warehouse.resources.limits[disk]", 1, "a resource is cpu, memory"),
    ("Topic", "spec.warehouse.resources.requests[memory]", "3Gi", "lower requests, or raise limits"),
    ("ConsumerGroup", "spec.clusterRef.name", "events.", "lower-case letters"),
    ("ConsumerGroup", "spec.reset.datetime", "yesterday", "its date and its zone"),
    ("ConsumerGroup", "spec.reset.datetime", "2026-11-21T09:30:00", "its date and its zone"),
    ("ConsumerGroup", "spec.reset.datetime", "2026-13-01T00:00:00Z", "its date and its zone"),
    ("ConsumerGroup", "spec.reset", _RESET | {"to": "datetime"}, "datetime is needed with to: datetime"),
    ("ConsumerGroup", "spec.reset", _RESET | {"to": "offset"}, "offset is needed with to: offset"),
    (
        "ConsumerGroup",
        "spec.reset",
        _RESET | {"to": "shift", "offset": 1},
        "shiftBy is needed with to: shift",
    ),
    ("ConsumerGroup", "spec.reset", _RESET | {"to": "latest", "shiftBy": 1}, "left out with all else"),
    ("ConsumerGroup", "spec.reset", _RESET | {"to": "undo", "topics": ["a"]}, "leave out topics"),
    ("ConsumerGroup", "spec.reset.topics", ["a b"], "a topic's name has letters"),
    ("User", "metadata.name", "mainstem-operator", "which are taken"),
    ("User", "metadata.name", "a" * 64, "at most 63 characters"),
    ("User", "spec.clusterRef.name", "events.", "lower-case letters"),
    ("User", "spec.authentication.passwordFrom.name", "My Secret", "lower-case letters"),
    ("User", "spec.authentication.passwordFrom.key", "a/b", "a key in a Secret"),
    ("User", "spec.authentication.type", "tls", "passwordFrom goes with type: scram-sha-512 only"),
    ("User", "spec.acls", [{**_ACL, "name": "a\nb"}], "a text of one line"),
    ("User", "spec.acls", [{**_ACL, "host": "everywhere"}], "an IP address"),
    ("User", "spec.acls", [{**_ACL, "resource": "cluster"}], "left out for the cluster"),
    ("User", "spec.acls", [_WITHOUT_NAME], "name is needed for a topic"),
    (
        "User",
        "spec.acls",
        [{"resource": "cluster", "patternType": "prefix", "operations": ["alter"]}],
        "which the cluster does not have",
    ),
)


def _refused_by_rules(definitions: Definitions) -> Iterator[tuple[str, str, str, Answer]]:
    """Kind, field, the words wanted and the answer, for each of the manifests above."""
    for kind, field, value, words in BY_RULE:
        manifest = changed(WHOLE[kind], field, value)
        if field == "metadata.name":
            manifest["spec"].pop("topicName", None)
        yield kind, field, words, definitions.create_dry(manifest)


def test_every_rule_refuses_what_it_is_there_for_and_says_what_to_do(definitions: Definitions) -> None:
    faults, said = [], ""
    for kind, field, words, answer in _refused_by_rules(definitions):
        said += answer.message
        if not answer.refused or words not in answer.message or not _is_named(field, answer):
            faults.append(f"{kind} {field}: {words!r} is not said: {answer.message}")
    assert not faults, "\n".join(faults)
    of_states = [rule["message"] for kind in KINDS for rule in _rules(kind) if not is_of_changes(rule)]
    untried = [message for message in of_states if message not in said]
    assert not untried, f"no manifest above is refused by these rules: {untried}"


def _is_named(field: str, answer: Answer) -> bool:
    """Whether a refusal names the field, what it lies in, or one beside it that contradicts it."""
    whole, beside = plain(field), plain(field).rpartition(".")[0]
    named = {plain(item) for item in answer.fields} - {"", "<nil>"}
    return field == "metadata.name" or any(
        f"{whole}.".startswith(f"{item}.") or item.startswith(beside) for item in named
    )


def _rules(kind: str) -> Iterator[dict[str, Any]]:
    yield from schema_of(kind).get(RULES, ())
    for part in parts_of(schema_of(kind), WHOLE[kind]):
        yield from part.rules


# --- Refused: what is immutable ---

_FOR_LIFE: Final[tuple[tuple[str, str, Any, str], ...]] = (
    ("BrokerCluster", "spec.brokers.storage.type", "local", "the storage type is immutable"),
    ("BrokerCluster", "spec.brokers.storage.type", None, ""),  # the default is what it was
    ("BrokerCluster", "spec.zookeeper.storage.type", "ephemeral", "the storage type is immutable"),
    ("BrokerCluster", "spec.brokers.storage.storageClassName", "slow", "the storage class is immutable"),
    ("BrokerCluster", "spec.brokers.storage.storageClassName", None, "the storage class is immutable"),
    ("BrokerCluster", "spec.zookeeper.replicas", 3, "the number of ZooKeeper servers is immutable"),
    ("BrokerCluster", "spec.listeners.clients", [_TLS], "let {name: internal, port: 9092"),
    ("BrokerCluster", "spec.brokers.replicas", 4, ""),
    ("BrokerCluster", "spec.brokers.storage.size", "2Ti", ""),
    ("Topic", "spec.clusterRef.name", "others", "clusterRef is immutable: delete this"),
    ("Topic", "spec.topicName", "clicks", "topics can't be renamed: make a new Topic"),
    ("Topic", "spec.topicName", None, "topicName cannot be added or removed"),
    ("Topic", "spec.partitions", 5, "can only grow"),
    ("Topic", "spec.partitions", None, "can only grow"),
    ("Topic", "spec.partitions", 7, ""),
    ("Topic", "spec.warehouse", None, ""),
    ("ConsumerGroup", "spec.clusterRef.name", "others", "clusterRef is immutable: delete this"),
    ("ConsumerGroup", "spec.groupId", "others", "groupId is immutable: restore"),
    ("ConsumerGroup", "spec.groupId", None, "cannot be added or removed"),
    ("ConsumerGroup", "spec.reset", None, ""),
    ("User", "spec.clusterRef.name", "others", "clusterRef is immutable: delete this"),
    ("User", "spec.acls", [], ""),
)
_ADDED_LATE: Final[tuple[tuple[str, str, Any, str], ...]] = (
    ("BrokerCluster", "spec.brokers.storage.storageClassName", "slow", "the storage class is immutable"),
    ("BrokerCluster", "spec.zookeeper.replicas", 5, "the number of ZooKeeper servers is immutable"),
    ("BrokerCluster", "spec.listeners.clients", [_TLS], "let {name: internal, port: 9092"),
    ("BrokerCluster", "spec.listeners.clients", [_TLS, _INTERNAL], ""),
    ("BrokerCluster", "spec.authorization", {"type": "acl"}, "add authorization once the BrokerCluster"),
    ("Topic", "spec.topicName", "clicks", "topicName cannot be added or removed"),
    ("Topic", "spec.partitions", 1, ""),
    ("ConsumerGroup", "spec.groupId", "billing", "cannot be added or removed"),
    ("ConsumerGroup", "spec.maxLag", 5, ""),
)
_OF_SECURED: Final[tuple[tuple[str, str, Any, str], ...]] = (
    ("BrokerCluster", "spec.listeners.clients", None, "clients would have no listener to move to"),
    ("BrokerCluster", "spec.authorization", {"type": "acl"}, ""),
)
_NEVER_SEEN: Final = (
    "zookeeper cannot be added or removed: make a new BrokerCluster",
)  # its default puts it there


def test_what_is_for_life_can_not_be_changed_by_any_way_of_applying(definitions: Definitions) -> None:
    said = ""
    faults = []
    secured = {
        **MINIMAL,
        "BrokerCluster": changed(MINIMAL["BrokerCluster"], "spec.listeners", _clients(_TLS)),
    }
    for name, originals, changes in (
        ("whole", WHOLE, _FOR_LIFE),
        ("minimal", MINIMAL, _ADDED_LATE),
        ("secured", secured, _OF_SECURED),
    ):
        stored = {
            kind: definitions.create_real(originals[kind] | {"metadata": {"name": name}}) for kind in KINDS
        }
        for kind, field, value, words in changes:
            other = changed(stored[kind], field, value)
            path = definitions.path(kind, name)
            applied = {part: item for part, item in other.items() if part != "metadata"}
            answers = [
                definitions.server.replace(path, other, dry=True),
                definitions.server.merge(path, _patch(field, value), dry=True),
            ]
            if value is not None:  # a manifest without it leaves it as others have set it
                applied["metadata"] = {"name": name}
                answers.append(definitions.server.apply(path, applied, dry=True))
            for answer in answers:
                said += answer.message
                if answer.refused != bool(words) or words not in answer.message:
                    faults.append(f"{kind} {field} to {value!r}: {words!r} is not said: {answer.message}")
    assert not faults, "\n".join(faults)
    of_changes = [rule["message"] for kind in KINDS for rule in _rules(kind) if is_of_changes(rule)]
    assert not [text for text in of_changes if text not in said and text not in _NEVER_SEEN]


def _patch(field: str, value: Any) -> dict[str, Any]:
    for step in reversed(field.split(".")):
        value = {step: value}
    results: dict[str, Any] = value
    return results


# --- Taken ---


def _examples() -> Iterator[Manifest]:
    """Every manifest of ours that people are shown."""
    for path in sorted((REPOSITORY / "examples").glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())
    for page in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))):
        for block in re.findall(r"```ya?ml\n(.*?)```", page.read_text(), re.DOTALL):
            yield from (item for item in yaml.safe_load_all(block) if item.get("kind") in KINDS)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    yield {"kind": "BrokerCluster", "metadata": {"name": "of-the-chart"}, "spec": values["cluster"]["spec"]}


def test_every_manifest_that_people_are_shown_is_taken(definitions: Definitions) -> None:
    shown = [*_examples(), *WHOLE.values(), *MINIMAL.values()]
    assert {item["kind"] for item in shown} == set(KINDS)
    for manifest in shown:
        definitions.create_dry(manifest).accepted()
        definitions.apply_dry(manifest).accepted()


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("BrokerCluster", "spec.brokers.image", "localhost:5000/Team/broker"),
        ("BrokerCluster", "spec.brokers.storage.size", "64Mi"),
        ("BrokerCluster", "spec.brokers.config[log.retention.hours]", -1),
        ("BrokerCluster", "spec.brokers.pod.labels[team]", ""),
        ("BrokerCluster", "spec.brokers.resources.limits[nvidia.com/gpu]", 1),
        ("BrokerCluster", "spec.listeners.external.nodePortFirst", 65_531),
        ("BrokerCluster", "spec.listeners.external.host", "10.0.0.1"),
        ("Topic", "spec.config[retention.ms]", "-1"),
        ("Topic", _SCHEDULE, "@hourly"),
        ("Topic", _SCHEDULE, "*/10 * * * *"),
        ("Topic", _SCHEDULE, "5  0 * 8 *"),
        ("Topic", _SCHEDULE, "59 23 31 12 6"),
        ("Topic", _SCHEDULE, "0-59/15 0 1,15 JAN-dec/2 ?"),
        ("Topic", "spec.warehouse.executors", "auto"),
        ("Topic", "spec.warehouse.timeZone", "Etc/GMT+1"),
        ("ConsumerGroup", "spec.reset.datetime", "2026-11-21T09:30Z"),
        ("ConsumerGroup", "spec.reset", {"requestId": "1", "to": "shift", "shiftBy": -5}),
        ("User", "spec.acls", [{"resource": "cluster", "operations": ["all"]}]),
        ("User", "spec.acls", [{"resource": "group", "name": "*", "operations": ["read"], "host": "::1"}]),
    ],
)
def test_rules_let_through_what_is_right_at_their_edges(
    definitions: Definitions, kind: str, field: str, value: Any
) -> None:
    definitions.create_dry(changed(WHOLE[kind], field, value)).accepted()


def test_a_setting_of_null_is_kept_by_server_side_apply(definitions: Definitions) -> None:
    manifest = changed(MINIMAL["Topic"], "spec.config", {"retention.ms": None})
    assert definitions.apply_dry(manifest).accepted()["spec"]["config"] == {"retention.ms": None}


_READERS: Final[Mapping[str, Any]] = {
    "BrokerCluster": cluster_of,
    "Topic": topic_of,
    "ConsumerGroup": group_of,
    "User": user_of,
}
_WITH_DEFAULTS: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    (
        "BrokerCluster",
        {"listeners": {"external": {"type": "NodePort"}}, "warehouse": {"location": "s3://lake"}},
    ),
    ("Topic", {"warehouse": {"schedule": "@hourly"}}),
    ("ConsumerGroup", {"reset": {"requestId": "1", "to": "latest"}}),
    ("User", {"authentication": {"passwordFrom": {"name": "chosen"}}}),
)


@pytest.mark.parametrize(("kind", "more"), _WITH_DEFAULTS, ids=KINDS)
def test_the_defaults_of_the_schema_are_those_of_the_operator(
    definitions: Definitions, kind: str, more: Mapping[str, Any]
) -> None:
    """So manifests mean the same where no API server fills them in: on the local stack."""
    bare = {**MINIMAL[kind], "spec": {**MINIMAL[kind]["spec"], **more}}
    filled = definitions.create_dry(bare).accepted()
    assert filled["spec"] != bare["spec"]
    for field, default in _defaults(kind, bare):
        value: Any = filled
        for step in field:
            value = value[step]
        assert value == default, field
    one, other = (_READERS[kind](item) for item in (bare, filled))
    assert all(
        getattr(one, name) == getattr(other, name)
        for name in one.__slots__
        if not isinstance(getattr(one, name), Identity)
    )


def _defaults(kind: str, manifest: Manifest) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Where the schema has a default in an object that is there, and which."""
    for part in parts_of(schema_of(kind), manifest):
        inside: Any = manifest
        for step in part.path[:-1]:
            inside = inside.get(step) if isinstance(inside, dict) else None
        if "default" in part.schema and part.schema["default"] != {} and isinstance(inside, dict):
            yield part.path, part.schema["default"]


def test_the_definitions_are_taken_under_their_own_names(definitions: Definitions) -> None:
    for path in CRDS.glob("*.yaml"):
        definition = yaml.safe_load(path.read_text())
        name = definition["metadata"]["name"]
        definitions.server.apply(f"{DEFINITIONS_PATH}/{name}", definition, dry=True).accepted()


@pytest.mark.parametrize("replicas", ["1", "2"])
def test_every_object_of_the_chart_is_taken(definitions: Definitions, replicas: str) -> None:
    """Strictly: a field that Kubernetes does not know, or an expression that is none, would be refused."""
    more = {
        "podLabels.team": "events",
        "priorityClassName": "system-cluster-critical",
        "test.bootstrapServers": "a:9092",
    }
    objects = rendered_chart("strict", definitions.namespace, replicas=replicas, **more)
    assert {"Deployment", "Job", "Pod", "ValidatingAdmissionPolicy"} <= {item["kind"] for item in objects}
    for item in objects:
        definitions.server.apply(path_of(item), item, dry=True).accepted()


# --- Subresources ---


def test_the_status_and_the_spec_are_written_apart(definitions: Definitions) -> None:
    name = "two-parts"
    for kind in KINDS:
        path = definitions.path(kind, name)
        status = {"observedGeneration": 1, "conditions": []}
        made = definitions.create_real({**MINIMAL[kind], "metadata": {"name": name}, "status": status})
        assert "status" not in made
        spec = {"brokers": {"replicas": 9}} if kind == "BrokerCluster" else {"clusterRef": {"name": "others"}}
        reported = definitions.server.merge(f"{path}/status", {"status": status, "spec": spec}).accepted()
        assert reported["status"] == status
        assert (reported["spec"], reported["metadata"]["generation"]) == (made["spec"], 1)
        half = {"status": {"conditions": [{"type": "Ready", "status": "Maybe"}]}}
        refusal = definitions.server.merge(f"{path}/status", half, dry=True)
        assert {"status.conditions[0].reason", "status.conditions[0].status"} <= refusal.fields
        unchanged = definitions.server.merge(path, {"status": {"observedGeneration": 7}}, dry=True).accepted()
        assert unchanged["status"] == status


def test_brokers_are_scaled_by_the_scale_subresource(definitions: Definitions) -> None:
    name = "scaled"
    definitions.create_real(MINIMAL["BrokerCluster"] | {"metadata": {"name": name}})
    path = definitions.path("BrokerCluster", name)
    status = {"status": {"brokersTotal": 2, "brokerSelector": "mainstem.dev/cluster=scaled"}}
    definitions.server.merge(f"{path}/status", status).accepted()
    scale = definitions.server.get(f"{path}/scale").accepted()
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "mainstem.dev/cluster=scaled"}
    definitions.server.merge(f"{path}/scale", {"spec": {"replicas": 4}}).accepted()
    assert definitions.server.get(path).accepted()["spec"]["brokers"]["replicas"] == 4
    refusal = definitions.server.merge(f"{path}/scale", {"spec": {"replicas": 0}})
    assert refusal.refused
    assert "spec.brokers.replicas" in refusal.message
    assert "greater than or equal to 1" in refusal.message
