from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker, run

from mainstem_broker.api.alter_configs import APPEND, DELETE, SET, SUBTRACT
from mainstem_broker.api.describe_configs import ResourceType, group_entity
from mainstem_broker.cluster.zookeeper import ZooKeeperUnavailable
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.broker_settings import BROKER_SETTINGS
from mainstem_broker.config.group_settings import GROUP_SETTINGS
from mainstem_broker.config.setting import Source
from mainstem_broker.config.topic_settings import TOPIC_SETTINGS
from mainstem_broker.protocol.wire import Body
from mainstem_broker.runtime.log_level import LogLevel, log_level, set_log_level

TOPIC, BROKER, GROUP = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP
LOGGER = ResourceType.BROKER_LOGGER
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
    request = {
        "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}],
        **more,
    }
    (result,) = (await broker.answer("DescribeConfigs", version, request))["results"]
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
    request = {
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
    (result,) = (await broker.answer("IncrementalAlterConfigs", version, request))["responses"]
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
    reported = {name: (config["value"], Source(config["config_source"])) for name, config in configs.items()}
    assert reported["retention.ms"] == ("5", Source.TOPIC)
    assert reported["segment.bytes"] == ("1000", Source.DYNAMIC_DEFAULT_BROKER)
    assert reported["preallocate"] == ("false", Source.DEFAULT)
    assert not any(config["read_only"] or config["is_sensitive"] for config in configs.values())


async def test_a_stored_value_that_cannot_be_read_is_shown_as_it_is(broker: LocalBroker) -> None:
    """R44: by another version, or by hand. Who does not see it cannot mend it."""
    broker.create("t", config={"segment.ms": "soon", "retention.ms": "3_600_000"})
    error, configs = await describe(broker, TOPIC, "t", include_synonyms=True)
    assert (error, configs.keys()) == ("none", TOPIC_SETTINGS.keys())
    shown = configs["segment.ms"]
    assert (shown["value"], Source(shown["config_source"])) == ("soon", Source.TOPIC)
    assert shown["synonyms"][0]["value"] == "soon"
    assert configs["retention.ms"]["value"] == "3600000"
    broker.view.entity_configs[group_entity("g")] = {"consumer.session.timeout.ms": "soon"}
    error, configs = await describe(broker, GROUP, "g")
    assert (error, configs["consumer.session.timeout.ms"]["value"]) == ("none", "soon")


async def test_synonyms_and_documentation_come_only_when_asked_for(broker: LocalBroker) -> None:
    broker.create("t")

    _, configs = await describe(broker, TOPIC, "t")
    assert not any(config["synonyms"] or config["documentation"] for config in configs.values())
    _, configs = await describe(broker, TOPIC, "t", include_synonyms=True, include_documentation=True)
    assert all(config["documentation"] for config in configs.values())
    own = {name for name, config in configs.items() if not config["synonyms"]}
    assert own == {name for name, setting in TOPIC_SETTINGS.items() if not setting.fallbacks}


async def test_only_the_settings_asked_for_are_reported_and_none_named_means_all(broker: LocalBroker) -> None:
    """Apache Kafka takes an empty list for all, as null (its ConfigHelper)."""
    broker.create("t")

    _, configs = await describe(broker, TOPIC, "t", ["retention.ms", "no.such"])
    assert list(configs) == ["retention.ms"]
    _, configs = await describe(broker, TOPIC, "t", [])
    assert configs.keys() == TOPIC_SETTINGS.keys()


def test_a_broker_tells_its_own_settings(broker: LocalBroker) -> None:
    broker.context.config = broker.context.config.with_dynamic({"log.retention.ms": "7"}, {})
    error, configs = run(describe(broker, BROKER, "1"))
    assert error == "none"
    assert configs.keys() == BROKER_SETTINGS.keys()
    assert (configs["broker.id"]["value"], configs["broker.id"]["read_only"]) == ("1", True)
    assert configs["log.retention.ms"]["value"] == "7"
    assert Source(configs["log.retention.ms"]["config_source"]) is Source.DYNAMIC_BROKER
    assert configs["log.retention.ms"]["read_only"] is False


async def test_the_default_of_all_brokers_tells_only_what_is_set(broker: LocalBroker) -> None:
    assert await describe(broker, BROKER, "") == ("none", {})
    await alter(broker, BROKER, "", ("log.retention.ms", SET, "9"))
    _, configs = await describe(broker, BROKER, "")
    assert [(name, config["value"]) for name, config in configs.items()] == [("log.retention.ms", "9")]


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nowhere", "unknown_topic_or_partition"),
        (TOPIC, "x" * 32_767, "invalid_topic_exception"),
        (TOPIC, "no name", "invalid_topic_exception"),
        (TOPIC, "", "invalid_topic_exception"),
        (BROKER, "2", "invalid_request"),
        (BROKER, "one", "invalid_request"),
        (GROUP, "", "invalid_request"),
        (IP, "g", "invalid_request"),
    ],
)
def test_what_has_no_settings_here_is_reported(broker: LocalBroker, kind: int, name: str, error: str) -> None:
    for version in range(1, 5):
        assert run(describe(broker, kind, name, version=version)) == (error, {})


# --- IncrementalAlterConfigs ---


@pytest.mark.parametrize(
    ("present", "operation", "value", "result"),
    [
        ({}, APPEND, "compact", "delete,compact"),
        ({"cleanup.policy": "compact"}, APPEND, "compact", "compact"),
        ({"cleanup.policy": "compact , delete"}, SUBTRACT, "delete", "compact"),
        ({"cleanup.policy": "compact,delete"}, SUBTRACT, "delete , shred", "compact"),
        ({"cleanup.policy": "compact"}, APPEND, "delete,compact", "compact,delete"),
        ({"cleanup.policy": "delete,delete"}, APPEND, "compact", "delete,delete,compact"),
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
        (("retention.ms", SET, None), "invalid_request", "retention.ms needs a value"),
        (("retention.ms", APPEND, "1"), "invalid_config", "retention.ms is no list"),
        (("cleanup.policy", APPEND, "shred"), "invalid_config", "one of delete, compact"),
        (("retention.ms", 7, "1"), "invalid_request", "no operation 7"),
    ],
)
def test_one_wrong_setting_refuses_its_whole_resource(
    broker: LocalBroker, change: tuple[str, int, str | None], error: str, message: str
) -> None:
    broker.create("t")
    got = run(alter(broker, TOPIC, "t", ("segment.bytes", SET, "1048576"), change))
    assert got[0] == error
    assert message in got[1]
    assert broker.view.topics["t"].config == {}


async def test_dynamic_settings_of_one_broker_and_of_all_take_effect(broker: LocalBroker) -> None:
    assert await alter(broker, BROKER, "", ("log.retention.ms", SET, "9")) == ("none", "")
    assert await alter(broker, BROKER, "1", ("log.segment.bytes", SET, "1048576")) == ("none", "")
    assert await alter(broker, BROKER, "3", ("log.segment.bytes", SET, "2097152")) == ("none", "")
    topic = broker.context.config.topic({})
    assert (topic.retention_ms, topic.segment_bytes) == (9, 1_048_576)


@pytest.mark.parametrize(
    ("kind", "name", "change", "error", "message"),
    [
        (TOPIC, "nowhere", ("retention.ms", SET, "1"), "unknown_topic_or_partition", "no topic 'nowhere'"),
        (TOPIC, "no name", ("retention.ms", SET, "1"), "invalid_topic_exception", "characters other than"),
        (TOPIC, "", ("retention.ms", SET, "1"), "invalid_request", "name it"),
        (
            BROKER,
            "1",
            ("log.dirs", SET, "/x"),
            "invalid_request",
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


def test_a_zookeeper_that_does_not_answer_is_a_timeout(broker: LocalBroker) -> None:
    broker.create("t")
    broker.cluster.failure = ZooKeeperUnavailable("ZooKeeper gave no answer.")
    assert run(alter(broker, TOPIC, "t", ("retention.ms", SET, "5")))[0] == "request_timed_out"


def test_a_broker_setting_tells_all_the_places_where_it_is_set(broker: LocalBroker) -> None:
    config = BrokerConfig({**broker.context.config.static, "log.retention.hours": "1"})
    broker.context.config = config.with_dynamic({"log.retention.ms": "7"}, {"log.retention.ms": "8"})
    names = ["log.retention.ms", "log.retention.minutes", "broker.id"]
    _, configs = run(describe(broker, BROKER, "1", names, include_synonyms=True))
    reported = {
        name: [(one["name"], one["value"], Source(one["source"])) for one in config["synonyms"]]
        for name, config in configs.items()
    }
    assert reported == {
        "log.retention.ms": [
            ("log.retention.ms", "7", Source.DYNAMIC_BROKER),
            ("log.retention.ms", "8", Source.DYNAMIC_DEFAULT_BROKER),
            ("log.retention.hours", "1", Source.STATIC_BROKER),
            ("log.retention.hours", "168", Source.DEFAULT),
        ],
        "log.retention.minutes": [],
        "broker.id": [("broker.id", "1", Source.STATIC_BROKER)],
    }


async def test_one_setting_named_twice_or_one_resource_named_twice_is_refused(broker: LocalBroker) -> None:
    broker.create("t")

    twice = (("segment.ms", SET, "1"), ("segment.ms", SET, "2"))
    error, message = await alter(broker, TOPIC, "t", *twice)
    assert (error, message) == ("invalid_request", "The request changes segment.ms more than once.")
    resource = {"resource_type": TOPIC, "resource_name": "t", "configs": []}
    for name in ("AlterConfigs", "IncrementalAlterConfigs"):
        answer = await broker.answer(name, 1, {"resources": [resource] * 2, "validate_only": False})
        assert [ErrorCode(one["error_code"]).name for one in answer["responses"]] == ["invalid_request"] * 2


# --- AlterConfigs ---


async def replace(
    broker: LocalBroker, kind: int, name: str, settings: dict[str, str | None], *, validate_only: bool = False
) -> tuple[str, str]:
    configs = [{"name": key, "value": value} for key, value in settings.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    request = {"resources": [resource], "validate_only": validate_only}
    for version in range(3):
        (result,) = (await broker.answer("AlterConfigs", version, request))["responses"]
    return ErrorCode(result["error_code"]).name, result["error_message"] or ""


async def test_trap_28_altering_without_increments_replaces_the_whole_set(broker: LocalBroker) -> None:
    """redpanda-data/docs#635: what is not named goes back to its default."""
    broker.create("t", config={"retention.ms": "5", "segment.ms": "6"})

    assert await replace(broker, TOPIC, "t", {"segment.ms": "7"}, validate_only=True) == ("none", "")
    assert broker.view.topics["t"].config == {"retention.ms": "5", "segment.ms": "6"}
    assert await replace(broker, TOPIC, "t", {"segment.ms": "7"}) == ("none", "")
    assert broker.view.topics["t"].config == {"segment.ms": "7"}
    await replace(broker, BROKER, "", {"log.retention.ms": "9"})
    await replace(broker, BROKER, "", {"log.segment.bytes": "1048576"})
    assert broker.view.broker_configs["<default>"] == {"log.segment.bytes": "1048576"}


@pytest.mark.parametrize(
    ("kind", "name", "settings", "error", "message"),
    [
        (TOPIC, "t", {"retention.ms": None}, "invalid_request", "retention.ms needs a value"),
        (TOPIC, "t", {"no.such": "1"}, "invalid_config", "Unknown topic config name: no.such"),
        (TOPIC, "nowhere", {}, "unknown_topic_or_partition", "no topic 'nowhere'"),
        (BROKER, "1", {"broker.id": "2"}, "invalid_request", "broker.id cannot be changed while brokers run"),
        (BROKER, "1", {"log.retention.ms": "soon"}, "invalid_config", "must be of type long"),
        (GROUP, "g", {"consumer.session.timeout.ms": "1"}, "invalid_config", "must be at least"),
        (IP, "x", {}, "invalid_request", "type 3"),
    ],
)
def test_what_cannot_be_replaced_is_refused_with_the_reason(
    broker: LocalBroker, kind: int, name: str, settings: dict[str, str | None], error: str, message: str
) -> None:
    broker.create("t", config={"segment.ms": "6"})
    got = run(replace(broker, kind, name, settings))
    assert got[0] == error
    assert message in got[1]
    assert broker.view.topics["t"].config == {"segment.ms": "6"}


def test_what_was_written_by_hand_does_not_stand_in_the_way_of_other_settings(broker: LocalBroker) -> None:
    broker.view.set_config("brokers/1", {"no.such": "1", "broker.id": "7"})
    assert run(alter(broker, BROKER, "1", ("log.retention.ms", SET, "9"))) == ("none", "")
    assert run(alter(broker, BROKER, "1", ("no.such", DELETE, None))) == ("none", "")
    assert broker.view.broker_configs["1"] == {"broker.id": "7", "log.retention.ms": "9"}


# --- Groups ---


async def test_a_groups_settings_are_altered_described_and_taken_back(broker: LocalBroker) -> None:
    name = "consumer.session.timeout.ms"
    assert await alter(broker, GROUP, "g/1", (name, SET, "50000")) == ("none", "")
    assert broker.context.group_config("g/1").session_timeout_ms == 50_000
    error, configs = await describe(broker, GROUP, "g/1", include_synonyms=True)
    assert error == "none"
    assert configs.keys() == GROUP_SETTINGS.keys()
    assert (configs[name]["value"], Source(configs[name]["config_source"])) == ("50000", Source.GROUP)
    heartbeat = configs["consumer.heartbeat.interval.ms"]
    assert (heartbeat["value"], Source(heartbeat["config_source"])) == ("5000", Source.DEFAULT)
    assert (await alter(broker, GROUP, "g/1", (name, SET, "5")))[0] == "invalid_config"
    assert await alter(broker, GROUP, "g/1", (name, DELETE, None)) == ("none", "")
    assert broker.view.entity_configs == {}
    assert broker.context.group_config("g/1").session_timeout_ms == 45_000


def test_settings_of_a_group_that_cannot_be_read_do_not_count(broker: LocalBroker) -> None:
    broker.view.set_config("groups/g", {"consumer.session.timeout.ms": "soon"})
    assert broker.context.group_config("g").session_timeout_ms == 45_000


# --- ListConfigResources ---


def listed(broker: LocalBroker, *kinds: int, version: int = 1) -> list[tuple[int, str]]:
    request = {"resource_types": list(kinds)} if version else {}
    answer = run(broker.answer("ListConfigResources", version, request))
    assert answer["error_code"] == 0
    return [(one["resource_type"], one["resource_name"]) for one in answer["config_resources"]]


def test_all_that_has_settings_is_listed_by_type(broker: LocalBroker) -> None:
    broker.create("t")
    broker.view.set_config("groups/g%2F1", {"consumer.session.timeout.ms": "50000"})
    topics, brokers, groups = [(2, "t")], [(4, "1"), (4, "2"), (4, "3")], [(32, "g/1")]
    loggers = [(8, name) for _, name in brokers]
    assert listed(broker) == topics + brokers + loggers + groups
    assert listed(broker, 32) == groups
    assert listed(broker, 2, 4) == topics + brokers
    assert listed(broker, 16) == []
    assert listed(broker, version=0) == [], "it was about client metrics alone"


def test_types_that_nobody_knows_are_refused(broker: LocalBroker) -> None:
    answer = run(broker.answer("ListConfigResources", 1, {"resource_types": [2, 99]}))
    assert ErrorCode(answer["error_code"]).name == "unsupported_version"
    assert answer["config_resources"] == ()


# --- Loggers ---


@pytest.fixture
def level_kept() -> Iterator[None]:
    before = log_level()
    yield
    set_log_level(before)


@pytest.mark.usefixtures("level_kept")
async def test_the_level_from_which_on_a_broker_logs_is_described_and_set(broker: LocalBroker) -> None:
    assert await alter(broker, LOGGER, "1", ("root", SET, "DEBUG"), validate_only=True) == ("none", "")
    assert log_level() is not LogLevel.DEBUG
    assert await alter(broker, LOGGER, "1", ("root", SET, "DEBUG")) == ("none", "")
    assert log_level() is LogLevel.DEBUG
    error, configs = await describe(broker, LOGGER, "1")
    assert error == "none"
    assert {name: config["value"] for name, config in configs.items()} == {"root": "DEBUG"}
    assert Source(configs["root"]["config_source"]) is Source.BROKER_LOGGER


@pytest.mark.usefixtures("level_kept")
@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("1", ("root", SET, "LOUD"), "invalid_config", "There is no log level 'LOUD'; there are TRACE,"),
        ("1", ("root", SET, None), "invalid_config", "There is no log level 'None'"),
        ("1", ("kafka.server", SET, "INFO"), "invalid_config", "There is no logger 'kafka.server'"),
        ("1", ("root", DELETE, None), "invalid_request", "The level of root can only be set"),
        ("2", ("root", SET, "INFO"), "invalid_request", "This is broker 1, not '2': send the request there"),
    ],
)
def test_what_is_no_level_of_a_logger_here_is_refused_with_the_reason(
    broker: LocalBroker, name: str, change: tuple[str, int, str | None], error: str, message: str
) -> None:
    before = log_level()
    got = run(alter(broker, LOGGER, name, change))
    assert got[0] == error
    assert message in got[1]
    assert log_level() is before


def test_loggers_are_not_changed_by_replacing_all_that_is_set(broker: LocalBroker) -> None:
    error, message = run(replace(broker, LOGGER, "1", {"root": "DEBUG"}))
    assert (error, message) == (
        "invalid_request",
        "The level of a logger is changed by IncrementalAlterConfigs only.",
    )
