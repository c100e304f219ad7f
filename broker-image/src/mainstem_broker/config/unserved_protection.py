"""Settings of Apache Kafka that protect a cluster, and that are not served here.

A broker warns of unknown settings and starts, as Kafka does. Without these it would be less protected than
its settings say, so it does not start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mainstem_broker.config.listener_config import PREFIX
from mainstem_broker.errors import InvalidSetting

_ZOOKEEPER_ACLS: Final = "the nodes in ZooKeeper could be changed by everybody who reaches it"
_ZOOKEEPER_TLS: Final = "connections to ZooKeeper would not be encrypted"
_KAFKA_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"
_CONSEQUENCES: Final[Mapping[str, str]] = {
    "alter.config.policy.class.name": "the policy would not be enforced",
    "authorizer.zookeeper.set.acl": _ZOOKEEPER_ACLS,
    "authorizer.zookeeper.ssl.client.enable": _ZOOKEEPER_TLS,
    "authorizer.zookeeper.url": "ACLs would be read from zookeeper.connect",
    "client.quota.callback.class": "its quotas would not be enforced",
    "connections.max.reauth.ms": "it can be set for a listener, and not for one mechanism",
    "create.topic.policy.class.name": "the policy would not be enforced",
    "principal.builder.class": "clients would have other principals",
    "sasl.oauthbearer.jwt.validator.class": "tokens would be verified without it",
    "sasl.server.callback.handler.class": "logins would be verified without it",
    "ssl.engine.factory.class": "connections would be encrypted and verified without it",
    "zookeeper.set.acl": _ZOOKEEPER_ACLS,
    "zookeeper.ssl.client.enable": _ZOOKEEPER_TLS,
}
"""What would happen without the setting, by its name."""
_HARMLESS: Final = frozenset(
    {
        "",
        "0",
        "false",
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        # What these do is done here with the settings sasl.oauthbearer.* (KIP-768, KIP-1139).
        f"{_KAFKA_OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{_KAFKA_OAUTH}.secured.OAuthBearerValidatorCallbackHandler",
        f"{_KAFKA_OAUTH}.BrokerJwtValidator",
        f"{_KAFKA_OAUTH}.DefaultJwtValidator",
    }
)
"""Kafka's defaults, and what is served though it has no setting here."""


def require_no_unserved_protection(unknown: Mapping[str, str]) -> None:
    """Check the settings that a broker does not know.

    Raises:
        InvalidSetting: one of them protects, also if it is for one listener or mechanism.
    """
    for name, text in unknown.items():
        value = text.strip()
        if {value, value.lower()} & _HARMLESS:
            continue
        for protecting, consequence in _CONSEQUENCES.items():
            if name == protecting or (name.startswith(PREFIX) and name.endswith(f".{protecting}")):
                raise InvalidSetting(
                    f"{name} is not served here: {consequence}. Remove it to start without it."
                )
