from __future__ import annotations

import re
from dataclasses import fields
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.broker_settings import BROKER_SETTINGS
from mainstem_broker.config.group_settings import GROUP_SETTINGS, GroupConfig
from mainstem_broker.config.properties import parse_properties
from mainstem_broker.config.setting import Setting, Source
from mainstem_broker.config.topic_settings import TOPIC_SETTINGS, TopicConfig, check_topic_overrides
from mainstem_broker.errors import InvalidSetting

REQUIRED = {"broker.id": "1", "zookeeper.connect": "127.0.0.1:2181"}


def config(**static: str) -> BrokerConfig:
    """A broker's settings; underscores stand for dots."""
    return BrokerConfig(REQUIRED | {name.replace("_", "."): value for name, value in static.items()})


# --- The table ---


def test_the_typed_topic_settings_are_the_table() -> None:
    assert [field.name for field in fields(TopicConfig)] == [
        name.replace(".", "_") for name in TOPIC_SETTINGS
    ]


SETTINGS = [*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values(), *GROUP_SETTINGS.values()]


def test_a_setting_without_effect_says_so_in_one_sentence() -> None:
    """The reference page is read by eye and by search: the same fact has the same words."""
    sentence = "Accepted as in Kafka, but without effect. "
    accepted = [setting for setting in SETTINGS if setting.documentation.startswith(sentence)]
    assert {setting.name for setting in accepted} > {"background.threads", "max.decompressed.message.bytes"}
    for setting in SETTINGS:
        if setting in accepted:
            assert "without effect" not in setting.documentation.removeprefix(sentence), setting.name
        else:
            assert not re.search("without effect|ccepted as in", setting.documentation), setting.name
    with_effect = [name for name, setting in GROUP_SETTINGS.items() if setting not in accepted]
    assert with_effect == ["consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_default_fits_its_setting(setting: Setting) -> None:
    text = setting.text(setting.default)
    if text is not None:
        parsed = setting.parse(text)
        assert (parsed, type(parsed)) == (setting.default, type(setting.default))
    assert all(name in BROKER_SETTINGS for name, _ in setting.fallbacks)
    assert setting.documentation.endswith(".")


# --- Values ---


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "soon", "retention.ms: it must be of type long"),
        ("retention.ms", "-2", "it must be at least -1"),
        ("retention.ms", str(2**63), "type long"),
        ("segment.bytes", str(2**31), "segment.bytes: it must be of type int"),
        ("segment.bytes", "13", "at least 14"),
        ("preallocate", "yes", "type boolean"),
        ("min.cleanable.dirty.ratio", "1.5", "at most 1"),
        ("min.cleanable.dirty.ratio", "nan", "type double"),
        ("min.cleanable.dirty.ratio", "-inf", "type double"),
        ("compression.type", "brotli", "one of producer, uncompressed, gzip, snappy, lz4, zstd"),
        ("cleanup.policy", "delete,shred", "one of delete, compact"),
        ("cleanup.policy", "delete,", "one of delete, compact"),
        ("cleanup.policy", ",", "one of delete, compact"),
        ("compression.gzip.level", "0", "compression.gzip.level"),
        ("remote.storage.enable", "true", "remote.storage.enable"),
        ("retention", "1", "Unknown topic config name: retention"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_name_and_the_rule(
    name: str, text: str, reason: str
) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        check_topic_overrides({name: text})


@pytest.mark.parametrize(("text", "value"), [(" 42 ", 42), ("-1", -1), ("0", 0)])
def test_white_space_around_a_value_does_not_count(text: str, value: int) -> None:
    assert TOPIC_SETTINGS["retention.bytes"].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "604_800_000"),
        ("segment.bytes", "1_048_576_0"),
        ("retention.ms", "\u0663"),
        ("retention.ms", "1e3"),
        ("min.cleanable.dirty.ratio", "0.2_5"),
        ("min.cleanable.dirty.ratio", "0_0"),
        ("min.cleanable.dirty.ratio", "\u0660"),
        ("min.cleanable.dirty.ratio", "."),
    ],
)
def test_numbers_that_kafka_does_not_read_are_refused(name: str, text: str) -> None:
    """A manifest that is tested here is to work on Apache Kafka, and a slip such as 1_0 to be found."""
    with pytest.raises(InvalidSetting, match="must be of type"):
        TOPIC_SETTINGS[name].parse(text)


@pytest.mark.parametrize(("text", "value"), [("+0.5", 0.5), ("5e-1", 0.5), (".5", 0.5), ("1.", 1.0)])
def test_decimal_numbers_may_have_a_sign_and_an_exponent(text: str, value: float) -> None:
    assert TOPIC_SETTINGS["min.cleanable.dirty.ratio"].parse(text) == value


def test_white_space_within_a_list_does_not_count() -> None:
    topic = config().topic({"cleanup.policy": "compact, delete"})
    assert (topic.compacts, topic.deletes) == (True, True)


@given(
    setting=st.sampled_from(sorted(TOPIC_SETTINGS.values(), key=lambda setting: setting.name)), text=st.text()
)
def test_any_text_is_taken_or_refused_in_one_sentence(setting: Setting, text: str) -> None:
    try:
        value = setting.parse(text)
    except InvalidSetting as error:
        assert setting.name in str(error)
        return
    printed = setting.text(value)
    assert printed is not None
    assert setting.parse(printed) == value, "what is printed is read back as the same"
    if isinstance(value, int | float) and not isinstance(value, bool):
        assert (setting.minimum if setting.minimum is not None else -inf) <= value
        assert value <= (setting.maximum if setting.maximum is not None else inf)


# --- Fallbacks and layers ---


@pytest.mark.parametrize(
    ("static", "retention_ms", "source"),
    [
        ({}, 604_800_000, Source.DEFAULT),
        ({"log.retention.hours": "2"}, 7_200_000, Source.STATIC_BROKER),
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, 180_000, Source.STATIC_BROKER),
        ({"log.retention.ms": "5", "log.retention.minutes": "3"}, 5, Source.STATIC_BROKER),
        ({"log.retention.hours": "-1"}, -1, Source.STATIC_BROKER),
    ],
    ids=["default", "hours", "minutes", "milliseconds", "no-bound-in-hours"],
)
def test_retention_falls_back_from_the_finest_unit_to_the_coarsest(
    static: dict[str, str], retention_ms: int, source: Source
) -> None:
    settings = BrokerConfig(REQUIRED | static)
    assert settings.topic_value("retention.ms", {}) == (retention_ms, source)
    assert settings.topic({"retention.ms": "77"}).retention_ms == 77


@pytest.mark.parametrize(
    ("static", "flush_ms"),
    [
        ({}, 2**63 - 1),
        ({"log_flush_scheduler_interval_ms": "3000"}, 3_000),
        ({"log_flush_scheduler_interval_ms": "3000", "log_flush_interval_ms": "1000"}, 1_000),
    ],
)
def test_a_log_is_flushed_as_often_as_the_scheduler_without_an_interval_of_its_own(
    static: dict[str, str], flush_ms: int
) -> None:
    assert config(**static).topic({}).flush_ms == flush_ms


@pytest.mark.parametrize(
    ("static", "folders"),
    [
        ({}, [BROKER_SETTINGS["log.dir"].default]),
        ({"log_dir": "/a"}, ["/a"]),
        ({"log_dir": "/a, /b"}, ["/a", "/b"]),
        ({"log_dir": "/a", "log_dirs": "/b"}, ["/b"]),
        ({"log_dirs": "/b,/a, /b"}, ["/b", "/a"]),
    ],
)
def test_logs_are_in_the_folders_of_log_dir_where_log_dirs_is_unset(
    static: dict[str, str], folders: list[str]
) -> None:
    settings = config(**static)
    assert (settings.log_directories, settings.unknown) == (folders, [])


@pytest.mark.parametrize("name", ["log.dir", "log.dirs"])
@pytest.mark.parametrize("folders", ["", " , "])
def test_a_broker_without_a_data_directory_says_so(name: str, folders: str) -> None:
    with pytest.raises(InvalidSetting, match=f"^{name} names no directory: add one"):
        _ = BrokerConfig(REQUIRED | {name: folders}).log_directories


def test_segment_age_falls_back_to_hours_as_well() -> None:
    settings = config(log_roll_hours="5", log_roll_jitter_hours="1")
    topic = settings.topic({})
    assert (topic.segment_ms, topic.segment_jitter_ms) == (5 * 3_600_000, 3_600_000)


def test_only_what_is_of_one_topic_has_no_broker_setting_to_fall_back_to() -> None:
    assert [name for name, setting in TOPIC_SETTINGS.items() if not setting.fallbacks] == [
        "errors.deadletterqueue.group.enable",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    ]


@pytest.mark.parametrize("text", ["", "*", "0:1", "0:1,12:3", " 0:1 , 1:2 "])
def test_throttled_replicas_are_all_or_pairs_of_partition_and_broker(text: str) -> None:
    TOPIC_SETTINGS["leader.replication.throttled.replicas"].parse(text)


@pytest.mark.parametrize("text", ["1", "0:1;1:2", "0:1,", "*,0:1", "a:b", "-1:2"])
def test_other_throttled_replicas_are_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="must match"):
        TOPIC_SETTINGS["leader.replication.throttled.replicas"].parse(text)


@given(
    name=st.sampled_from(sorted(name for name, setting in TOPIC_SETTINGS.items() if setting.fallbacks)),
    layers=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
def test_the_topic_wins_over_this_broker_over_all_brokers_over_the_file(
    name: str, layers: tuple[bool, bool, bool, bool]
) -> None:
    setting = TOPIC_SETTINGS[name]
    fallback = setting.fallbacks[0][0]
    text = setting.text(setting.default)
    assert text is not None
    in_topic, in_broker, in_all, in_file = (
        {key: text} if there else {}
        for key, there in zip((name, fallback, fallback, fallback), layers, strict=True)
    )
    settings = BrokerConfig(REQUIRED | in_file, in_broker, in_all)
    expected = next((source for source, there in zip(Source, layers, strict=False) if there), Source.DEFAULT)
    assert settings.topic_value(name, in_topic) == (setting.default, expected)


def test_dynamic_settings_make_a_new_config_and_leave_the_old_one() -> None:
    old = config(log_retention_ms="1")
    new = old.with_dynamic({"log.retention.ms": "2"}, {"log.retention.ms": "3", "log.segment.bytes": "100"})
    assert old.topic({}).retention_ms == 1
    assert (new.topic({}).retention_ms, new.topic({}).segment_bytes) == (2, 100)
    assert new.source("log.retention.ms") is Source.DYNAMIC_BROKER
    assert new.source("log.segment.bytes") is Source.DYNAMIC_DEFAULT_BROKER
    assert new.with_dynamic({}, {}).topic({}).retention_ms == 1


def test_a_setting_that_cannot_change_while_the_broker_runs_is_not_taken_from_zookeeper() -> None:
    settings = config(log_dirs="/data").with_dynamic({"log.dirs": "/elsewhere"}, {"broker.id": "9"})
    assert settings.string("log.dirs") == "/data"
    assert settings.integer("broker.id") == 1
    assert settings.source("log.dirs") is Source.STATIC_BROKER


def test_a_dynamic_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"log\.segment\.bytes"):
        config().with_dynamic({"log.segment.bytes": "1"}, {})


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_a_required_setting_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{name} is missing: add it"):
        BrokerConfig({other: value for other, value in REQUIRED.items() if other != name})


def test_unknown_settings_are_kept_aside() -> None:
    assert BrokerConfig(REQUIRED | {"zz": "1", "node.id": "2"}).unknown == ["node.id", "zz"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("zookeeper.set.acl", "true"),
        ("zookeeper.ssl.client.enable", "TRUE"),
        ("authorizer.zookeeper.url", "other:2181"),
        ("principal.builder.class", "org.example.Principals"),
        ("listener.name.clients.principal.builder.class", "org.example.Principals"),
        ("create.topic.policy.class.name", "org.example.Policy"),
        ("alter.config.policy.class.name", "org.example.Policy"),
        ("listener.name.clients.plain.sasl.server.callback.handler.class", "org.example.Ldap"),
        ("listener.name.clients.oauthbearer.sasl.oauthbearer.jwt.validator.class", "org.example.Validator"),
        ("listener.name.clients.ssl.engine.factory.class", "org.example.Engine"),
        ("listener.name.clients.plain.connections.max.reauth.ms", "3600000"),
        ("client.quota.callback.class", "org.example.Quotas"),
    ],
)
def test_a_setting_that_protects_and_is_not_served_is_refused(name: str, value: str) -> None:
    """R38"""
    with pytest.raises(InvalidSetting, match=rf"^{re.escape(name)} is not served here: .+\. Remove it"):
        BrokerConfig(REQUIRED | {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("zookeeper.set.acl", "False"),
        ("listener.name.clients.plain.connections.max.reauth.ms", "0"),
        ("create.topic.policy.class.name", ""),
        (
            "principal.builder.class",
            "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        ),
        (
            "listener.name.clients.oauthbearer.sasl.server.callback.handler.class",
            "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
        ),
        ("sasl.login.callback.handler.class", "org.example.Login"),
        ("metric.reporters", "org.example.Reporter"),
    ],
)
def test_what_kafka_does_by_itself_or_what_protects_nothing_is_only_unknown(name: str, value: str) -> None:
    assert BrokerConfig(REQUIRED | {name: value}).unknown == [name]


def test_settings_of_tokens_may_be_given_for_their_mechanism() -> None:
    """As in Kafka. A broker that ignored it would accept tokens that are meant for others."""
    name = "sasl.oauthbearer.expected.audience"
    prefix = "listener.name.clients."
    settings = BrokerConfig(
        REQUIRED | {name: "any", f"{prefix}{name}": "clients", f"{prefix}oauthbearer.{name}": "kafka"}
    )
    assert settings.unknown == []
    assert settings.listener("CLIENTS").items(name) == ["kafka"]
    assert settings.listener("OTHERS").items(name) == ["any"]


# --- Properties ---


def test_properties_are_lines_of_name_and_value() -> None:
    text = """
    # a comment
    ! another
    broker.id = 1
    listeners=PLAINTEXT://:9092,EXTERNAL://h:9093
    empty=
    with.equals=a=b
    broker.id=2
    """
    assert parse_properties(text) == {
        "broker.id": "2",
        "listeners": "PLAINTEXT://:9092,EXTERNAL://h:9093",
        "empty": "",
        "with.equals": "a=b",
    }


def test_a_line_without_an_equals_sign_is_named_by_its_number() -> None:
    with pytest.raises(InvalidSetting, match=r"Line 2 is not of the form name=value") as refused:
        parse_properties("# first\nhunter2\n")
    assert "hunter2" not in str(refused.value), "it may be part of a key"


def test_a_backslash_continues_a_line_and_escapes_what_java_escapes() -> None:
    text = r"""
    # a comment \
    jaas=Module required \
        user_a="b" \

    pem=-----BEGIN\n\
        MII=\n
    rule=RULE:^CN=(.*?)\s\w+\\s\u0041\=$/$1/
    """
    assert parse_properties(text + "last=a\\") == {
        "jaas": 'Module required user_a="b"',
        "pem": "-----BEGIN\nMII=\n",
        "rule": r"RULE:^CN=(.*?)\s\w+\sA=$/$1/",
        "last": "a",
    }


@given(
    st.dictionaries(
        st.from_regex(r"[a-z.]{1,20}", fullmatch=True),
        st.from_regex(r"[!-~]{0,20}", fullmatch=True),
        max_size=5,
    )
)
def test_properties_survive_being_written_and_read(properties: dict[str, str]) -> None:
    lines = (f"{name}={value}".replace("\\", "\\\\") for name, value in properties.items())
    assert parse_properties("\n".join(lines)) == properties


def test_a_group_setting_falls_back_to_the_brokers() -> None:
    config = BrokerConfig(REQUIRED | {"group.consumer.session.timeout.ms": "50000"})
    assert config.group({}) == GroupConfig(heartbeat_interval_ms=5_000, session_timeout_ms=50_000)
    assert config.group({"consumer.session.timeout.ms": "60000"}).session_timeout_ms == 60_000


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"consumer.session.timeout.ms": "44999"}, "at least group.consumer.min.session.timeout.ms = 45000"),
        ({"consumer.session.timeout.ms": "60001"}, "at most group.consumer.max.session.timeout.ms = 60000"),
        ({"consumer.heartbeat.interval.ms": "4999"}, "at least group.consumer.min.heartbeat.interval.ms"),
        ({"consumer.heartbeat.interval.ms": "15001"}, "at most group.consumer.max.heartbeat.interval.ms"),
        ({"consumer.session.timeout.ms": "soon"}, "must be of type int"),
        ({"session.timeout.ms": "50000"}, "Unknown group config name: session.timeout.ms"),
        ({"share.auto.offset.reset": "by_duration:P"}, "must match"),
        ({"share.auto.offset.reset": "by_duration:PT"}, "must match"),
        ({"share.auto.offset.reset": "by_duration:-PT1H"}, "must match"),
        ({"errors.deadletterqueue.topic.name": "__consumer_offsets"}, "must match"),
    ],
)
def test_a_group_setting_lies_within_the_brokers_bounds(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(message)):
        BrokerConfig(REQUIRED).check_group_overrides(overrides)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("consumer.assignment.interval.ms", "0"),
        ("share.auto.offset.reset", "by_duration:P1DT2H3M4.5S"),
        ("share.auto.offset.reset", "by_duration:PT1H"),
        ("share.renew.acknowledge.enable", "false"),
        ("errors.deadletterqueue.topic.name", "dlq.orders"),
        ("streams.rack.aware.assignment.tags", "zone,cluster"),
    ],
)
def test_a_setting_of_share_and_streams_groups_changes_nothing_else(name: str, text: str) -> None:
    config = BrokerConfig(REQUIRED)
    config.check_group_overrides({name: text})
    assert config.group({name: text}) == config.group({})
    value, source = config.group_value(name, {name: text})
    assert (str(value).lower(), source) == (text.lower(), Source.GROUP)


def test_a_groups_session_is_longer_than_its_heartbeats() -> None:
    config = BrokerConfig(REQUIRED | {"group.consumer.max.heartbeat.interval.ms": "60000"})
    with pytest.raises(InvalidSetting, match="must be more than consumer"):
        config.check_group_overrides(
            {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "50000"}
        )


def test_the_layers_of_a_setting_come_with_the_one_that_counts_first() -> None:
    static = {"log.retention.hours": "1", "log.retention.ms": "2", "log.dirs": "/x"}
    dynamic = {"log.retention.ms": "3", "log.dirs": "/y"}
    config = BrokerConfig(REQUIRED | static).with_dynamic(dynamic, {"log.retention.ms": "4"})
    assert list(config.layers("log.retention.ms", "log.retention.hours")) == [
        ("log.retention.ms", "3", Source.DYNAMIC_BROKER),
        ("log.retention.ms", "4", Source.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.ms", "2", Source.STATIC_BROKER),
        ("log.retention.hours", "1", Source.STATIC_BROKER),
        ("log.retention.hours", "168", Source.DEFAULT),
    ]
    first, *_ = config.layers("log.dirs")
    assert first == ("log.dirs", "/x", Source.STATIC_BROKER), "it is not dynamic"


# --- Values that may not be set any more ---


@pytest.mark.parametrize("text", ["14", "1048575"])
def test_segments_that_are_set_now_have_a_mebibyte_and_those_of_earlier_versions_stay(text: str) -> None:
    """KIP-1030. R44: a topic or cluster that is older goes on as it is, also when something else changes."""
    broker = config()
    with pytest.raises(InvalidSetting, match=r"segment\.bytes: it must be at least 1048576"):
        broker.check_new_topic_overrides({"segment.bytes": text}, {})
    with pytest.raises(InvalidSetting, match=r"log\.segment\.bytes: it must be at least 1048576"):
        config(log_segment_bytes=text)

    stored = {"segment.bytes": text, "retention.ms": "5"}
    assert broker.topic(stored).segment_bytes == int(text)
    assert broker.with_dynamic({"log.segment.bytes": text}, {}).topic({}).segment_bytes == int(text)
    broker.check_new_topic_overrides(stored | {"retention.ms": "6"}, stored)
    broker.check_new_topic_overrides({"segment.bytes": "1048576"}, stored)


def test_tests_have_small_segments_by_an_internal_setting() -> None:
    """As in Kafka, where DescribeConfigs does not show it."""
    small = {"segment.bytes": "2000000", "internal.segment.bytes": "100"}
    config().check_new_topic_overrides(small, {})
    assert config().topic(small).segment_bytes == 100
    assert "internal.segment.bytes" not in TOPIC_SETTINGS


def test_a_record_may_not_be_kept_from_compaction_longer_than_it_may_wait_for_it() -> None:
    """As `LogConfig.validateValues` of Kafka; the broker's settings count where a topic has none."""
    lags = {"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "100"}
    config().check_new_topic_overrides(lags, {})
    with pytest.raises(InvalidSetting, match=r"min.compaction.lag.ms \(101\) must be at most .* \(100\)"):
        config().check_new_topic_overrides(lags | {"min.compaction.lag.ms": "101"}, {})
    with pytest.raises(InvalidSetting, match=r"must be at most"):
        config(log_cleaner_max_compaction_lag_ms="99").check_new_topic_overrides(
            {"min.compaction.lag.ms": "100"}, {}
        )


def test_a_choice_that_is_repeated_in_a_list_counts_once() -> None:
    """KIP-1161: Apache Kafka 4.4 shows "delete" for "delete,delete"."""
    assert config().topic({"cleanup.policy": "delete, compact ,delete"}).cleanup_policy == "delete,compact"


def test_a_topic_without_a_cleanup_policy_neither_deletes_nor_compacts() -> None:
    """KIP-1161."""
    topic = config().topic({"cleanup.policy": ""})
    assert (topic.compacts, topic.deletes) == (False, False)
    assert config(log_cleanup_policy="").topic({}).cleanup_policy == ""
