"""The reference of settings, from the tables that the broker checks values against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mainstem_broker.config.broker_settings import BROKER_SETTINGS
from mainstem_broker.config.group_settings import GROUP_SETTINGS
from mainstem_broker.config.setting import INT64_MAX, Setting
from mainstem_broker.config.topic_settings import TOPIC_SETTINGS
from scripts.documentation.markdown import code, escaped, table, with_facts

_BROKER: Final = """# Broker settings

Settings have the names and units of Apache Kafka. *update* says when a change takes effect: `read-only`
settings are read when the broker starts; `cluster-wide` settings can be changed while brokers run, for one
broker or for all (`mainstem config set --all-brokers NAME=VALUE`).

A broker logs a warning for an unknown setting and ignores it, as Kafka does. It does not start with a setting
of Kafka that protects the cluster and is not served here, such as `zookeeper.set.acl`.
"""
_TOPIC: Final = """# Topic settings

Every topic setting can be changed while brokers run: `mainstem config set --topic TOPIC NAME=VALUE`. A topic
without a value uses the broker setting that it falls back to.
"""
_GROUP: Final = """# Group settings

Settings of groups: `mainstem config set --group GROUP NAME=VALUE`. A group without a value uses the
broker setting that it falls back to.
"""


def broker_page() -> str:
    rows = [(code(one.name), _meaning(one, f"update: {one.dynamic}")) for one in _sorted(BROKER_SETTINGS)]
    return _BROKER + "\n" + table(("setting", "meaning"), rows)


def topic_page() -> str:
    return _TOPIC + "\n" + _with_fallbacks(TOPIC_SETTINGS)


def group_page() -> str:
    return _GROUP + "\n" + _with_fallbacks(GROUP_SETTINGS)


def _with_fallbacks(settings: Mapping[str, Setting]) -> str:
    rows = []
    for setting in _sorted(settings):
        names = ", ".join(code(name) for name, _ in setting.fallbacks)
        rows.append((code(setting.name), _meaning(setting, f"falls back to {names}" if names else "")))
    return table(("setting", "meaning"), rows)


def _sorted(settings: Mapping[str, Setting]) -> list[Setting]:
    return [settings[name] for name in sorted(settings)]


def _meaning(setting: Setting, last: str) -> str:
    default = setting.text(setting.default)
    facts = [
        setting.type.name.lower(),
        "no default" if default is None else f"default {code(default) or 'empty'}",
        _values(setting),
        last,
    ]
    return with_facts(escaped(setting.documentation), facts)


def _values(setting: Setting) -> str:
    if setting.choices:
        return "one of " + ", ".join(code(choice) for choice in setting.choices)
    low, high = setting.new_minimum or setting.minimum, setting.maximum
    limits = [f"at least {low:,.15g}"] if low is not None else []
    limits += [f"at most {high:,.15g}"] if high is not None and high < INT64_MAX else []
    return ", ".join(limits)
