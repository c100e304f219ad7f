"""Defaults, values and update modes beside those of Apache Kafka 4.4 (`apache_kafka_4_4.tsv`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mainstem_broker.config.broker_settings import BROKER_SETTINGS
from mainstem_broker.config.group_settings import GROUP_SETTINGS
from mainstem_broker.config.setting import Setting
from mainstem_broker.config.topic_settings import TOPIC_SETTINGS

KINDS: Final[Mapping[str, Mapping[str, Setting]]] = {
    "topic": TOPIC_SETTINGS,
    "broker": BROKER_SETTINGS,
    "group": GROUP_SETTINGS,
}
Table = dict[tuple[str, str], dict[str, str]]
"""By kind and name of a setting: what it is, by column, in a form in which both can be compared."""


def kafkas() -> Table:
    table: Table = {}
    for line in Path(__file__).with_name("apache_kafka_4_4.tsv").read_text().splitlines():
        if not line.startswith("#"):
            kind, name, type_name, default, values, update = line.split("\t")
            table[kind, name] = {
                "type": type_name.replace("SHORT", "INT"),
                "default": _default(type_name, default),
                "values": _values(values),
                "update": update,
            }
    return table


def _default(type_name: str, text: str) -> str:
    return str(float(text)) if type_name == "DOUBLE" else text


def _values(validator: str) -> str:
    """Bounds, or words in alphabetical order; "" for any value, also where one has only not to be empty."""
    if validator == "[1,...,9] or -1":
        return " ".join(sorted(map(str, (-1, *range(1, 10)))))
    if "..." in validator or not (words := re.search(r"\[(.*)\]", validator)):
        return validator if validator.startswith("[") and validator[1] in "-0123456789" else ""
    listed = words[1].lower() if "case insensitive" in validator else words[1]
    return " ".join(sorted(listed.split(", ")))


def ours() -> Table:
    return {
        (kind, name): {
            "type": setting.type.name,
            "default": _default(setting.type.name, setting.text(setting.default) or "")
            if setting.default is not None
            else "null",
            "values": _bounds(setting),
            "update": setting.dynamic if kind == "broker" else "",
        }
        for kind, settings in KINDS.items()
        for name, setting in settings.items()
    }


def _bounds(setting: Setting) -> str:
    if setting.choices:
        return " ".join(sorted(setting.choices))
    minimum = setting.minimum if setting.new_minimum is None else setting.new_minimum
    if minimum is None:
        return ""
    end = "" if setting.maximum is None else f",{setting.maximum:.15g}"
    return f"[{minimum:.15g},...{end}]"


_SERVED: Final = "names what is served here; others are refused instead of ignored"
_BOUND: Final = "Kafka takes any number; below the bound nothing would work, or it would mean nothing"
_PER_LISTENER: Final = "read at the start; the files are read again when they change"
_HOURS: Final = "a bound that the setting in ms has as well; 64 bits, so that its parse is the same"
_INTERNAL_TOPIC: Final = "smaller segments hold no batch"

DEVIATIONS: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("broker", "authorizer.class.name"): ("default values", _SERVED),
    ("broker", "broker.id"): ("default values", "required: Kafka's -1 has node.id in its place"),
    ("broker", "connections.max.idle.ms"): ("values", _BOUND),
    ("broker", "connections.max.reauth.ms"): ("values", _BOUND),
    ("broker", "default.replication.factor"): ("values", _BOUND),
    ("broker", "group.consumer.assignors"): ("values", _SERVED),
    ("broker", "group.coordinator.rebalance.protocols"): ("default values", _SERVED),
    ("broker", "group.initial.rebalance.delay.ms"): ("values", _BOUND),
    ("broker", "group.max.session.timeout.ms"): ("values", _BOUND),
    ("broker", "group.min.session.timeout.ms"): ("values", _BOUND),
    ("broker", "listener.security.protocol.map"): ("type default update", "the same, in another order"),
    ("broker", "listeners"): ("update", "sockets are opened at the start"),
    ("broker", "log.cleaner.dedupe.buffer.size"): ("values", _BOUND),
    ("broker", "log.cleaner.io.max.bytes.per.second"): ("values", _BOUND),
    ("broker", "log.dir"): ("default", "a folder of its own"),
    ("broker", "log.flush.interval.ms"): ("values", _BOUND),
    ("broker", "log.flush.scheduler.interval.ms"): ("values update", "as log.flush.interval.ms"),
    ("broker", "log.retention.hours"): ("type values", _HOURS),
    ("broker", "log.retention.minutes"): ("type values", _HOURS),
    ("broker", "log.retention.ms"): ("values", _HOURS),
    ("broker", "log.roll.hours"): ("type", _HOURS),
    ("broker", "log.roll.jitter.hours"): ("type", _HOURS),
    ("broker", "log.roll.jitter.ms"): ("values", _HOURS),
    ("broker", "log.roll.ms"): ("values", _HOURS),
    ("broker", "max.connection.creation.rate"): (
        "values",
        "0 would lock everyone out, also who wants to undo it",
    ),
    ("broker", "offset.metadata.max.bytes"): ("values", _BOUND),
    ("broker", "offsets.topic.segment.bytes"): ("values", _INTERNAL_TOPIC),
    ("broker", "queued.max.request.bytes"): ("values", _BOUND),
    ("broker", "replica.fetch.wait.max.ms"): ("values", _BOUND),
    ("broker", "replica.high.watermark.checkpoint.interval.ms"): ("values", _BOUND),
    ("broker", "replica.lag.time.max.ms"): ("values", _BOUND),
    ("broker", "replica.selector.class"): ("values", _SERVED),
    ("broker", "replica.socket.timeout.ms"): ("values", _BOUND),
    ("broker", "sasl.enabled.mechanisms"): ("default values update", _SERVED),
    ("broker", "sasl.jaas.config"): ("update", _PER_LISTENER),
    ("broker", "sasl.mechanism.inter.broker.protocol"): ("default values update", _SERVED),
    ("broker", "sasl.oauthbearer.clock.skew.seconds"): ("values", _BOUND),
    ("broker", "sasl.oauthbearer.jwks.endpoint.refresh.ms"): ("values", _BOUND),
    ("broker", "sasl.server.max.receive.size"): ("values", _BOUND),
    ("broker", "socket.receive.buffer.bytes"): ("default values", "the kernel sizes buffers better"),
    ("broker", "socket.send.buffer.bytes"): ("default values", "the kernel sizes buffers better"),
    ("broker", "ssl.cipher.suites"): ("update", _PER_LISTENER),
    ("broker", "ssl.client.auth"): ("update", _PER_LISTENER),
    ("broker", "ssl.enabled.protocols"): ("values update", _SERVED),
    ("broker", "ssl.endpoint.identification.algorithm"): ("values update", _SERVED),
    ("broker", "ssl.key.password"): ("update", _PER_LISTENER),
    ("broker", "ssl.keystore.certificate.chain"): ("update", _PER_LISTENER),
    ("broker", "ssl.keystore.key"): ("update", _PER_LISTENER),
    ("broker", "ssl.keystore.location"): ("update", _PER_LISTENER),
    ("broker", "ssl.keystore.type"): ("default values update", _SERVED),
    ("broker", "ssl.truststore.certificates"): ("update", _PER_LISTENER),
    ("broker", "ssl.truststore.location"): ("update", _PER_LISTENER),
    ("broker", "ssl.truststore.type"): ("default values update", _SERVED),
    ("broker", "transaction.state.log.segment.bytes"): ("values", _INTERNAL_TOPIC),
    ("group", "share.auto.offset.reset"): ("values", "the same, as a pattern"),
    ("topic", "remote.storage.enable"): (
        "values",
        "there is no remote storage, and a topic may not rely on it",
    ),
}
"""By setting: the columns that differ on purpose, and why."""

OURS_ALONE: Final[Mapping[str, str]] = {
    "allow.everyone.if.no.acl.found": "read by Kafka's authorizer, which has no table",
    "super.users": "read by Kafka's authorizer, which has no table",
    "audit.log.categories": "the audit log",
    "audit.log.topic": "the audit log",
    "authorizer.dry.run": "the audit log",
    "follower.replication.throttled.rate": "in Kafka of DynamicConfig alone",
    "leader.replication.throttled.rate": "in Kafka of DynamicConfig alone",
    "http.port": "metrics and probes",
    "leader.imbalance.per.broker.percentage": "of Kafka with ZooKeeper",
    "sasl.oauthbearer.required.scopes": "Kafka leaves it to a class of one's own",
    "zookeeper.connect": "of Kafka with ZooKeeper",
    "zookeeper.connection.timeout.ms": "of Kafka with ZooKeeper",
    "zookeeper.session.timeout.ms": "of Kafka with ZooKeeper",
}

REFUSED: Final[Mapping[str, str]] = {
    "config.providers": "references are filled in without providers",
    "cordoned.log.dirs": "it would have to keep replicas off a directory (KIP-1066)",
    "metric.reporters": "a class of Java",
    "principal.builder.class": "a class of Java",
    "ssl.engine.factory.class": "a class of Java",
    **dict.fromkeys(
        (
            *("ssl.keymanager.algorithm", "ssl.keystore.password", "ssl.protocol", "ssl.provider"),
            *("ssl.secure.random.implementation", "ssl.trustmanager.algorithm", "ssl.truststore.password"),
        ),
        "of Java's key stores; keys are PEM here",
    ),
    **dict.fromkeys(
        (
            *("sasl.kerberos.kinit.cmd", "sasl.kerberos.min.time.before.relogin"),
            *("sasl.kerberos.principal.to.local.rules", "sasl.kerberos.service.name"),
            *("sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.ticket.renew.window.factor"),
        ),
        "Kerberos is not served",
    ),
    **dict.fromkeys(
        (
            *("sasl.login.refresh.buffer.seconds", "sasl.login.refresh.min.period.seconds"),
            *("sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter"),
        ),
        "brokers do not log in by tokens",
    ),
}


def test_settings_differ_from_apache_kafkas_only_where_a_reason_says_so() -> None:
    """People rely on defaults and bounds without looking, and on what is a default there."""
    kafka = kafkas()
    differing = {
        key: " ".join(column for column, value in definition.items() if value != kafka[key][column])
        for key, definition in ours().items()
        if key in kafka and definition != kafka[key]
    }
    assert differing == {key: columns for key, (columns, _) in DEVIATIONS.items()}


def test_settings_that_apache_kafka_does_not_have_are_known() -> None:
    assert {name for _, name in ours().keys() - kafkas().keys()} == OURS_ALONE.keys()


def test_settings_of_topics_and_groups_and_dynamic_ones_of_apache_kafka_are_accepted() -> None:
    """A manifest or script for Apache Kafka is to work here: a setting is refused only for a reason."""
    missing = {
        name
        for (kind, name), definition in kafkas().items()
        if name not in KINDS[kind] and definition["update"] != "read-only"
    }
    assert missing == REFUSED.keys()
