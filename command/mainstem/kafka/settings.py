"""Settings of topics, brokers and groups: reading and changing them.

Requests are built by `setting_requests.py` and sent by `routed_requests.py`. Quotas, which the protocol does
not count as settings, are in `quotas.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mainstem.errors import BadInput, ClusterRefused
from mainstem.kafka.client import Broker, Cluster
from mainstem.kafka.raw_request import reason_of
from mainstem.kafka.routed_requests import ask_any, ask_broker
from mainstem.kafka.setting_requests import Kind, change_request, describe_request
from mainstem.times import duration_ms

_DEFAULT: Final = 5
_SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "its file",
    _DEFAULT: "default",
    8: "group",
}
"""The protocol's sources of a value (KIP-226, KIP-848), in our words."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What has settings; the broker of the empty name is the default of all brokers."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        if self.kind is Kind.BROKER and not self.name:
            return "all brokers"
        return f"{self.kind.name.lower()} {self.name}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's value in force, and where it comes from; None for a secret."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool

    @property
    def is_default(self) -> bool:
        return self.source == _SOURCES[_DEFAULT]


def find_broker(cluster: Cluster, broker_id: int) -> Broker:
    """The live broker of this id.

    Raises:
        BadInput: there is none.
        ClusterUnreachable: no broker answered.
    """
    brokers = cluster.description().brokers
    for broker in brokers:
        if broker.broker_id == broker_id:
            return broker
    live = ", ".join(str(broker.broker_id) for broker in brokers)
    raise BadInput(f"There is no live broker {broker_id}: the live ones are {live}.")


def read_settings(cluster: Cluster, resource: Resource) -> dict[str, Setting]:
    """All settings of `resource` by name; of all brokers only those that are set.

    Raises:
        ClusterRefused: it has none.
        BadInput, ClusterUnreachable: there is no such broker, or it does not answer.
    """
    request = describe_request(resource.kind, resource.name)
    if resource.kind is Kind.BROKER and resource.name:  # only it knows its file
        answer = ask_broker(cluster, find_broker(cluster, int(resource.name)), request)
    else:
        answer = ask_any(cluster, request)
    (result,) = answer.results
    if result.error_code.value != 0:
        raise ClusterRefused(f"The settings of {resource} could not be read: {reason_of(result)}")
    return {
        config.name: _setting(config) for config in sorted(result.configs, key=lambda config: config.name)
    }


def _setting(config: Any) -> Setting:
    source = _SOURCES.get(config.config_source, f"source {config.config_source}")
    return Setting(config.name, config.value, source, config.read_only, config.is_sensitive)


def change_settings(cluster: Cluster, resource: Resource, changes: Mapping[str, str | None]) -> None:
    """Set values; None removes one, so that the default applies.

    Raises:
        ClusterRefused: one value is invalid, and none was changed.
        ClusterUnreachable: no broker answered.
    """
    request = change_request(resource.kind, resource.name, changes)
    (response,) = ask_any(cluster, request).responses
    if response.error_code.value != 0:
        raise ClusterRefused(f"The settings of {resource} were not changed: {reason_of(response)}")


def in_milliseconds(name: str, text: str | None) -> str | None:
    """The value of a setting: a duration such as `7d` in milliseconds if `name` ends with `.ms`."""
    parsed_ms = duration_ms(text) if text is not None and name.endswith(".ms") else None
    return text if parsed_ms is None else str(parsed_ms)


def check_names(names: Iterable[str], valid_names: Iterable[str], whose: str) -> None:
    """Check that all of `names` are settings.

    Raises:
        BadInput: one is not; the message names similar ones.
    """
    valid = sorted(valid_names)
    for name in names:
        if name in valid:
            continue
        near = difflib.get_close_matches(name, valid, n=3)
        if near:
            raise BadInput(f"There is no setting {name} of {whose}: did you mean {' or '.join(near)}?")
        raise BadInput(f"There is no setting {name} of {whose}: `mainstem config get --all` shows all.")
