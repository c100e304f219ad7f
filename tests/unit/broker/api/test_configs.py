from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker, run

from mainstem_broker.api.config_changes import APPEND, DELETE, SET, SUBTRACT
from mainstem_broker.api.configs import ResourceType
from mainstem_broker.cluster.zookeeper import ZooKeeperUnavailable
from mainstem_broker.config import BROKER_SETTINGS, TOPIC_SETTINGS, Source
from mainstem_broker.protocol.codec import Body

TOPIC, BROKER, GROUP = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP
IP = 3


async def describe(
    broker: LocalBroker,
    kind: int,
    name: str,
    keys: Sequence[str] | None = None,
    *,
    version: int = 4,
    **more: bool,
) -> tuple[str, dict[str, Body]]:
    asked = {
        "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}],
        **more,
    }
    (result,) = (await broker.answer("DescribeConfigs", version, asked))["results"]
    assert (result["resource_type"], result["resource_name"]) == (kind, name)
    return ErrorCode(result["error_code"]).name, {config["name"]: config for config in result["configs"]}


async def alter(
    broker: LocalBroker,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> tuple[str, str]:
    asked = {
        "resources": [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": operation, "value": value}
                    for key, operation, value in changes
                ],
            }
        ],
        "validate_only": validate_only,
    }
    (result,) = (await broker.answer("IncrementalAlterConfigs", version, asked))["responses"]
    assert (result["resource_type"], result["resource_name"]) == (kind, name)
    return ErrorCode(result["error_code"]).name, result["error_message"] or ""


# --- DescribeConfigs ---


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topic_tells_all_its_settings_with_where_they_come_from(broker: LocalBroker, version: int) -> None:
    broker.context.config = broker.context.config.with_dynamic({}, {"log.segment.bytes": "1000"})
    broker.create("t", config={"retention.ms": "5"})
    error, configs = run(describe(broker, TOPIC, "t", version=version))
    assert error == "none"
    assert configs.keys() == TOPIC_SETTINGS.keys()
    told = {name: (config["value"], Source(config["config_source"])) for name, config in configs.items()}
    assert told["retention.ms"] == ("5", Source.TOPIC)
    assert told["segment.bytes"] == ("1000", Source.DYNAMIC_DEFAULT_BROKER)
    assert told["preallocate"] == ("false", Source.DEFAULT)
    assert not any(config["read_only"] or config["is_sensitive"] for config in configs.values())


def test_synonyms_go_from_the_most_to_the_least_specific(broker: LocalBroker) -> None:
    broker.context.config = broker.context.config.with_dynamic({"log.segment.bytes": "2000"}, {})
    broker.create("t", config={"segment.bytes": "1000"})
    _, configs = run(describe(broker, TOPIC, "t", ["segment.bytes"], include_synonyms=True))
    assert [
        (synonym["name"], synonym["value"], Source(synonym["source"]))
        for synonym in configs["segment.bytes"]["synonyms"]
    ] == [
        ("segment.bytes", "1000", Source.TOPIC),
        ("log.segment.bytes", "2000", Source.DYNAMIC_BROKER),
        ("log.segment.bytes", "1073741824", Source.DEFAULT),
    ]


def test_synonyms_and_documentation_come_only_when_asked_for(broker: LocalBroker) -> None:
    broker.create("t")

    async def test() -> None:
        _, configs = await describe(broker, TOPIC, "t")
        assert not any(config["synonyms"] or config["documentation"] for config in configs.values())
        _, configs = await describe(broker, TOPIC, "t", include_synonyms=True, include_documentation=True)
        assert all(config["documentation"] for config in configs.values())
        own = {name for name, config in configs.items() if not config["synonyms"]}
        assert own == {name for name, setting in TOPIC_SETTINGS.items() if not setting.fallbacks}

    run(test())


def test_only_the_settings_asked_for_are_told_and_none_named_means_all(broker: LocalBroker) -> None:
    """Apache Kafka takes an empty list for all, as null (its ConfigHelper)."""
    broker.create("t")

    async def test() -> None:
        _, configs = await describe(broker, TOPIC, "t", ["retention.ms", "no.such"])
        assert list(configs) == ["retention.ms"]
        _, configs = await describe(broker, TOPIC, "t", [])
        assert configs.keys() == TOPIC_SETTINGS.keys()

    run(test())


def test_a_broker_tells_its_own_settings(broker: LocalBroker) -> None:
    broker.context.config = broker.context.config.with_dynamic({"log.retention.ms": "7"}, {})
    error, configs = run(describe(broker, BROKER, "1"))
    assert error == "none"
    assert configs.keys() == BROKER_SETTINGS.keys()
    assert (configs["broker.id"]["value"], configs["broker.id"]["read_only"]) == ("1", True)
    assert configs["log.retention.ms"]["value"] == "7"
    assert Source(configs["log.retention.ms"]["config_source"]) is Source.DYNAMIC_BROKER
    assert configs["log.retention.ms"]["read_only"] is False


def test_the_default_of_all_brokers_tells_only_what_is_set(broker: LocalBroker) -> None:
    async def test() -> None:
        assert await describe(broker, BROKER, "") == ("none", {})
        await alter(broker, BROKER, "", ("log.retention.ms", SET, "9"))
        _, configs = await describe(broker, BROKER, "")
        assert [(name, config["value"]) for name, config in configs.items()] == [("log.retention.ms", "9")]

    run(test())


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nowhere", "unknown_topic_or_partition"),
        (TOPIC, "x" * 32_767, "unknown_topic_or_partition"),
        (BROKER, "2", "invalid_request"),
        (BROKER, "one", "invalid_request"),
        (GROUP, "", "invalid_request"),
        (IP, "g", "invalid_request"),
    ],
)
def test_what_has_no_settings_here_is_told_so(broker: LocalBroker, kind: int, name: str, error: str) -> None:
    for version in range(1, 5):
        assert run(describe(broker, kind, name, version=version)) == (error, {})


# --- IncrementalAlterConfigs ---


@pytest.mark.parametrize("version", [0, 1])
def test_settings_are_set_and_deleted_and_others_stay(broker: LocalBroker, version: int) -> None:
    broker.create("t", config={"retention.ms": "5", "segment.ms": "6"})

    async def test() -> None:
        changes = (("segment.bytes", SET, "100"), ("retention.ms", DELETE, None))
        assert await alter(broker, TOPIC, "t", *changes, version=version) == ("none", "")
        assert broker.view.topics["t"].config == {"segment.ms": "6", "segment.bytes": "100"}

    run(test())


@pytest.mark.parametrize(
    ("present", "operation", "value", "result"),
    [
        ({}, APPEND, "compact", "delete,compact"),
        ({"cleanup.policy": "compact"}, APPEND, "compact", "compact"),
        ({"cleanup.policy": "compact , delete"}, SUBTRACT, "delete", "compact"),
        ({"cleanup.policy": "compact,delete"}, SUBTRACT, "delete , shred", "compact"),
        ({"cleanup.policy": "compact"}, APPEND, "delete,compact", "compact,delete"),
    ],
)
def test_lists_are_appended_to_and_subtracted_from(
    broker: LocalBroker, present: dict[str, str], operation: int, value: str, result: str
) -> None:
    broker.create("t", config=present)
    assert run(alter(broker, TOPIC, "t", ("cleanup.policy", operation, value))) == ("none", "")
    assert broker.view.topics["t"].config == {"cleanup.policy": result}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (("retention", SET, "1"), "invalid_config", "Unknown topic config name: retention"),
        (("retention.ms", SET, "soon"), "invalid_config", "must be of type long"),
        (("retention.ms", SET, None), "invalid_config", "retention.ms needs a value"),
        (("retention.ms", APPEND, "1"), "invalid_config", "retention.ms is no list"),
        (("cleanup.policy", SUBTRACT, "delete"), "invalid_config", "one of delete, compact"),
        (("retention.ms", 7, "1"), "invalid_request", "no operation 7"),
    ],
)
def test_one_wrong_setting_refuses_its_whole_resource(
    broker: LocalBroker, change: tuple[str, int, str | None], error: str, message: str
) -> None:
    broker.create("t")
    got = run(alter(broker, TOPIC, "t", ("segment.bytes", SET, "100"), change))
    assert got[0] == error
    assert message in got[1]
    assert broker.view.topics["t"].config == {}


def test_to_validate_changes_nothing(broker: LocalBroker) -> None:
    broker.create("t")
    assert run(alter(broker, TOPIC, "t", ("retention.ms", SET, "5"), validate_only=True)) == ("none", "")
    assert broker.view.topics["t"].config == {}


def test_dynamic_settings_of_one_broker_and_of_all_take_effect(broker: LocalBroker) -> None:
    async def test() -> None:
        assert await alter(broker, BROKER, "", ("log.retention.ms", SET, "9")) == ("none", "")
        assert await alter(broker, BROKER, "1", ("log.segment.bytes", SET, "100")) == ("none", "")
        assert await alter(broker, BROKER, "3", ("log.segment.bytes", SET, "200")) == ("none", "")
        topic = broker.context.config.topic({})
        assert (topic.retention_ms, topic.segment_bytes) == (9, 100)

    run(test())


@pytest.mark.parametrize(
    ("kind", "name", "change", "error", "message"),
    [
        (TOPIC, "nowhere", ("retention.ms", SET, "1"), "unknown_topic_or_partition", "no topic 'nowhere'"),
        (
            BROKER,
            "1",
            ("log.dirs", SET, "/x"),
            "invalid_config",
            "log.dirs cannot be changed while brokers run",
        ),
        (BROKER, "1", ("no.such", SET, "/x"), "invalid_config", "Unknown broker config name: no.such"),
        (BROKER, "7", ("log.retention.ms", SET, "1"), "invalid_request", "no live broker '7'"),
        (BROKER, "01", ("log.retention.ms", SET, "1"), "invalid_request", "no live broker '01'"),
        (IP, "g", ("x", SET, "1"), "invalid_request", "type 3"),
    ],
)
def test_what_cannot_be_altered_is_refused_with_the_reason(
    broker: LocalBroker, kind: int, name: str, change: tuple[str, int, str], error: str, message: str
) -> None:
    got = run(alter(broker, kind, name, change))
    assert got[0] == error
    assert message in got[1]
    assert broker.view.broker_configs == {}


def test_resources_are_altered_one_by_one(broker: LocalBroker) -> None:
    broker.create("t")
    resources: list[dict[str, Any]] = [
        {
            "resource_type": TOPIC,
            "resource_name": name,
            "configs": [{"name": "retention.ms", "config_operation": SET, "value": "5"}],
        }
        for name in ("nowhere", "t")
    ]
    asked = {"resources": resources, "validate_only": False}
    responses = run(broker.answer("IncrementalAlterConfigs", 1, asked))["responses"]
    assert [ErrorCode(response["error_code"]).name for response in responses] == [
        "unknown_topic_or_partition",
        "none",
    ]
    assert broker.view.topics["t"].config == {"retention.ms": "5"}


def test_a_zookeeper_that_does_not_answer_is_a_timeout(broker: LocalBroker) -> None:
    broker.create("t")
    broker.cluster.failure = ZooKeeperUnavailable("ZooKeeper gave no answer.")
    assert run(alter(broker, TOPIC, "t", ("retention.ms", SET, "5")))[0] == "request_timed_out"
