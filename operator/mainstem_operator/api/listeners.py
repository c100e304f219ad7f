"""How clients reach the brokers of a BrokerCluster, how they prove who they are, and what they may do. Pure.

A BrokerCluster that lists `spec.listeners.clients` is secured: its brokers, and the operator, talk to each
other over TLS with certificates of an authority of its own, on a port that clients do not use. If it has a
warehouse, its loads have a port of their own too. A BrokerCluster that lists none has one listener, without
TLS, for everybody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from mainstem_operator.api import names
from mainstem_operator.api.fields import Fields, InvalidSpec

Authentication = Literal["none", "scram-sha-512", "tls"]

_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,14}")
_SUPER_USER: Final = re.compile(r"[^:;,\s]{1,255}")
LOADS_LISTENER: Final = "loads"
_RESERVED_NAMES: Final = frozenset({"brokers", "http", LOADS_LISTENER})
_RESERVED_PORTS: Final = frozenset({names.BROKERS_PORT, names.HTTP_PORT, names.LOADS_PORT})
_ANONYMOUS: Final = "ANONYMOUS"
OPERATOR_USER: Final = "mainstem-operator"
BROKER_USER: Final = "mainstem-broker"
RESERVED_USERS: Final = frozenset({OPERATOR_USER, BROKER_USER, _ANONYMOUS})
_AUTHORIZER_SETTINGS: Final = frozenset({"authorizer.class.name", "super.users"})


@dataclass(frozen=True, slots=True)
class External:
    """Node ports; `host` None means the address of each broker's node. `port` is that of the containers."""

    host: str | None
    node_port_first: int | None
    listener: str = "external"
    port: int = names.EXTERNAL_PORT


@dataclass(frozen=True, slots=True)
class Listener:
    """A port of each broker for clients; with `external` it is a node port, too."""

    name: str
    port: int
    tls: bool
    authentication: Authentication
    external: External | None

    @property
    def protocol(self) -> str:
        """Kafka's security protocol."""
        transport = "SSL" if self.tls else "PLAINTEXT"
        return f"SASL_{transport}" if self.authentication == "scram-sha-512" else transport


INTERNAL: Final = Listener("internal", names.CLIENT_PORT, tls=False, authentication="none", external=None)
"""The listener that clients and brokers use where a BrokerCluster is not secured."""
LOADS: Final = Listener(LOADS_LISTENER, names.LOADS_PORT, tls=True, authentication="tls", external=None)
"""Where loads connect, each with a certificate of its own."""


@dataclass(frozen=True, slots=True)
class Security:
    """What a secured BrokerCluster has. `certificate_secret` None means that the operator issues all
    certificates; `super_users` None, that every client may do everything; `has_loads`, that there is a
    warehouse, and so a listener for loads. The last two are of BrokerClusters on their way, see
    `cluster/security_steps.py`: brokers still talk to each other over `internal`; what ACLs deny is only
    recorded.
    """

    listeners: tuple[Listener, ...]
    certificate_secret: str | None
    super_users: tuple[str, ...] | None
    has_loads: bool
    talks_without_tls: bool = False
    is_lenient: bool = False

    @property
    def inside(self) -> tuple[Listener, ...]:
        """The listeners for clients inside Kubernetes."""
        return tuple(listener for listener in self.listeners if listener.external is None)

    @property
    def loads(self) -> tuple[Listener, ...]:
        """The listener for loads, if there is one."""
        return (LOADS,) if self.has_loads else ()


def external_of(listeners: Fields) -> External | None:
    """The external listener without TLS of a BrokerCluster that is not secured.

    Raises:
        InvalidSpec: with the field and what is wrong with it.
    """
    if not listeners.has("external"):
        return None
    external = listeners.inner("external")
    external.choice("type", ("NodePort",))
    return External(external.text_or_none("host"), external.integer_or_none("nodePortFirst", 1024, 65_535))


def security_of(spec: Fields, config: Mapping[str, str]) -> Security | None:
    """What `spec` of a BrokerCluster says of security; None if it is not secured.

    Raises:
        InvalidSpec: with the field and what is wrong with it.
    """
    listeners = spec.inner("listeners")
    if not listeners.has("clients"):
        for name in ("tls", "authorization"):
            if spec.has(name):
                raise InvalidSpec(
                    f"spec.{name} needs spec.listeners.clients: without it, all clients and brokers use a"
                    " listener without TLS and without login."
                )
        return None
    if listeners.has("external"):
        raise InvalidSpec(
            "spec.listeners.external goes without spec.listeners.clients: make it an item of clients, with"
            " type: nodeport."
        )
    client_listeners = tuple(
        _listener(Fields(item, f"spec.listeners.clients[{place}]"))
        for place, item in enumerate(listeners.objects("clients"))
    )
    if not client_listeners:
        raise InvalidSpec("spec.listeners.clients is empty: no client could connect.")
    _check_together(client_listeners)
    super_users = None
    if spec.has("authorization"):
        if twice := sorted(_AUTHORIZER_SETTINGS & config.keys()):
            raise InvalidSpec(
                f"spec.brokers.config.{twice[0]} and spec.authorization set the same: remove one of them."
            )
        super_users = _super_users(spec.inner("authorization"))
    return Security(
        client_listeners,
        spec.inner("tls").text_or_none("secretName"),
        super_users,
        has_loads=spec.has("warehouse"),
    )


def _listener(fields: Fields) -> Listener:
    name = fields.text("name")
    if not _NAME.fullmatch(name) or name in _RESERVED_NAMES:
        raise InvalidSpec(
            f"{name!r} can't be a listener's name: at most 15 lower-case letters and digits, beginning with a"
            f" letter, and not {' or '.join(sorted(_RESERVED_NAMES))}."
        )
    port = fields.integer("port", 1024, 65_535)
    if port in _RESERVED_PORTS:
        raise InvalidSpec(f"The listener {name} can't have port {port}: brokers use it themselves.")
    kind = fields.choice("type", ("internal", "nodeport"), "internal")
    tls = fields.boolean("tls", True)
    authentication = fields.choice("authentication", ("none", "scram-sha-512", "tls"), "scram-sha-512")
    if authentication == "tls" and not tls:
        raise InvalidSpec(f"The listener {name} has authentication: tls, which needs tls: true.")
    external = None
    if kind == "nodeport":
        first = fields.integer_or_none("nodePortFirst", 1024, 65_535)
        external = External(fields.text_or_none("host"), first, name, port)
    elif fields.has("host") or fields.has("nodePortFirst"):
        raise InvalidSpec(f"The listener {name} has host or nodePortFirst, which need type: nodeport.")
    return Listener(name, port, tls, cast(Authentication, authentication), external)


def _check_together(listeners: tuple[Listener, ...]) -> None:
    for what, values in (
        ("name", [listener.name for listener in listeners]),
        ("port", [listener.port for listener in listeners]),
    ):
        if len(set(values)) < len(values):
            raise InvalidSpec(f"Two of spec.listeners.clients have the same {what}: each needs its own.")
    if sum(listener.external is not None for listener in listeners) > 1:
        raise InvalidSpec("Only one of spec.listeners.clients can have type: nodeport.")


def _super_users(authorization: Fields) -> tuple[str, ...]:
    authorization.choice("type", ("acl",))
    users = tuple(user.removeprefix("User:") for user in authorization.texts("superUsers"))
    for user in users:
        if not _SUPER_USER.fullmatch(user):
            raise InvalidSpec(
                f"spec.authorization.superUsers has {user!r}: write names of users, such as admin."
            )
        if user == _ANONYMOUS:
            raise InvalidSpec(
                "spec.authorization.superUsers can't have ANONYMOUS: it stands for every client that does not"
                " log in, so no ACL would have any effect."
            )
    return users
