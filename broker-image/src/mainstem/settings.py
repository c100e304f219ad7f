"""Settings of topics, brokers and groups as the cluster tells and takes them.

Requests are built by `setting_requests.py` and sent by `asking.py`. Quotas, which are no settings to the
protocol, are in `quotas.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mainstem.asking import ask_any, ask_broker
from mainstem.bare_request import reason_of
from mainstem.client import Broker, Cluster
from mainstem.errors import BadInput, ClusterRefused
from mainstem.setting_requests import Kind, change_request, describe_request

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
    """A setting's value in force, and where it comes from; None is told for one that must stay secret."""

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
        ClusterUnreachable: nobody answered.
    """
    brokers = cluster.description().brokers
    for broker in brokers:
        if broker.broker_id == broker_id:
            return broker
    live = ", ".join(str(broker.broker_id) for broker in brokers)
    raise BadInput(f"There is no live broker {broker_id}: those that live are {live}.")


def read_settings(cluster: Cluster, resource: Resource) -> dict[str, Setting]:
    """All settings of `resource` by name; of all brokers only those that are set.

    Raises:
        ClusterRefused: it has none.
        BadInput, ClusterUnreachable: there is no such broker, or it does not answer.
    """
    request = describe_request(resource.kind, resource.name)
    if resource.kind is Kind.BROKER and resource.name:  # only it knows its file
        answer = ask_broker(find_broker(cluster, int(resource.name)), request)
    else:
        answer = ask_any(cluster, request)
    (result,) = answer.results
    if result.error_code.value != 0:
        raise ClusterRefused(f"The settings of {resource} are not told: {reason_of(result)}")
    return {found.name: _setting(found) for found in sorted(result.configs, key=lambda found: found.name)}


def _setting(found: Any) -> Setting:
    source = _SOURCES.get(found.config_source, f"source {found.config_source}")
    return Setting(found.name, found.value, source, found.read_only, found.is_sensitive)


def change_settings(cluster: Cluster, resource: Resource, changes: Mapping[str, str | None]) -> None:
    """Set values, or with None take them back.

    Raises:
        ClusterRefused: one of them does not fit, so that none was changed.
        ClusterUnreachable: nobody answered.
    """
    request = change_request(resource.kind, resource.name, changes)
    (response,) = ask_any(cluster, request).responses
    if response.error_code.value != 0:
        raise ClusterRefused(f"The settings of {resource} were not changed: {reason_of(response)}")


def check_names(names: Iterable[str], known: Iterable[str], whose: str) -> None:
    """See that all of `names` are settings.

    Raises:
        BadInput: one is none; the message names similar ones.
    """
    there = sorted(known)
    for name in names:
        if name in there:
            continue
        near = difflib.get_close_matches(name, there, n=3)
        if near:
            raise BadInput(f"There is no setting {name} of {whose}: did you mean {' or '.join(near)}?")
        raise BadInput(f"There is no setting {name} of {whose}: `mainstem config get --all` shows all.")
