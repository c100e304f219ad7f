"""ApiVersions (key 18), versions 0 to 4: which keys and versions this broker serves (KIP-511).

A version above ours is answered in version 0 with UNSUPPORTED_VERSION and the range of key 18, so that the
client sends the request again; the router does that before the body is read. v1 throttle time; v3 flexible,
client software name, features; v4 features whose lowest version is 0. A name or version of software in
another form than KIP-511 demands is answered INVALID_REQUEST, without versions; the connection stays.

Features (KIP-584) are levels that clients may rely on. They are finalized at the highest level in every
cluster, for no version of this broker serves less, and nobody can change them.

- `transaction.version` 2: clients use the second protocol of transactions (KIP-890).
- `group.version` 1: groups whose assignor is the broker's (KIP-848), where the settings allow them.

The other features of Apache Kafka are of KRaft (`metadata.version`, `kraft.version`), promise rules for
settings that do not hold here (`eligible.leader.replicas.version`), or are of groups that are not served.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from mainstem_broker.api.context import BrokerContext, Handler, RequestContext
from mainstem_broker.errors import InvalidRequest
from mainstem_broker.protocol.wire import Body, Entity

TRANSACTION_VERSION: Final = "transaction.version", 2
GROUP_VERSION: Final = "group.version", 1

SOFTWARE_VERSION: Final = 3
"""From this version on a request says what software the client is (KIP-511)."""
_SOFTWARE_WORD: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,32765}[a-zA-Z0-9])?")
"""The form that KIP-511 demands of name and version, and the length of a string in Kafka's protocol."""


class AnnouncedVersions(NamedTuple):
    """The lowest and the highest version of an API that clients may use."""

    api_key: int
    min_version: int
    max_version: int


def handler_of(announced_versions: Callable[[], Iterable[AnnouncedVersions]]) -> Handler:
    """The handler that answers `announced_versions`. It is part of the table that they come from."""

    def handle(broker: BrokerContext, request: Entity, context: RequestContext) -> Body:
        if context.version >= SOFTWARE_VERSION and not (
            is_software_word(request.client_software_name)
            and is_software_word(request.client_software_version)
        ):
            return {"error_code": InvalidRequest.code, "api_keys": (), "throttle_time": 0}
        features = dict(_features(broker))
        body: Body = {
            "error_code": 0,
            "api_keys": [versions._asdict() for versions in announced_versions()],
            "throttle_time": 0,
            "finalized_features_epoch": 0,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, level in features.items()
            ],
        }
        if context.version >= 4:
            # Java clients before 3.9 fail on a lowest version of 0, and send version 3.
            body["supported_features"] = [
                {"name": name, "min_version": 0, "max_version": level} for name, level in features.items()
            ]
        return body

    return handle


def is_software_word(text: str) -> bool:
    """Whether this may be the name or the version of a client's software."""
    return _SOFTWARE_WORD.fullmatch(text) is not None


def _features(broker: BrokerContext) -> Iterator[tuple[str, int]]:
    """Names and levels of what this broker serves."""
    if "consumer" in broker.config.string("group.coordinator.rebalance.protocols").split(","):
        yield GROUP_VERSION
    yield TRANSACTION_VERSION
