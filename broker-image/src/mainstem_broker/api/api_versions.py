"""ApiVersions (key 18), versions 0 to 4: which keys and versions this broker serves (KIP-511).

A version above ours is answered in version 0 with UNSUPPORTED_VERSION and the range of key 18, so that the
client sends the request again; the router does that before the body is read. v1 throttle time; v3 flexible,
client software name, features; v4 features whose lowest version is 0.

The feature `transaction.version` is finalized at 2: clients then use the second protocol of transactions
(KIP-890). It is so in every cluster, for no version of this broker serves the first protocol alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from mainstem_broker.api.context import BrokerContext, Handler, RequestContext
from mainstem_broker.protocol.wire import Body, Entity

TRANSACTION_FEATURE: Final = "transaction.version"
TRANSACTION_VERSION: Final = 2


class AnnouncedVersions(NamedTuple):
    """The lowest and the highest version of an API that clients may use."""

    api_key: int
    min_version: int
    max_version: int


def handler_of(announced_versions: Callable[[], Iterable[AnnouncedVersions]]) -> Handler:
    """The handler that answers `announced_versions`. It is part of the table that they come from."""

    def handle(_broker: BrokerContext, _request: Entity, context: RequestContext) -> Body:
        body: Body = {
            "error_code": 0,
            "api_keys": [versions._asdict() for versions in announced_versions()],
            "throttle_time": 0,
            "finalized_features_epoch": 0,
            "finalized_features": [
                {
                    "name": TRANSACTION_FEATURE,
                    "max_version_level": TRANSACTION_VERSION,
                    "min_version_level": TRANSACTION_VERSION,
                }
            ],
        }
        if context.version >= 4:
            # Java clients before 3.9 fail on a lowest version of 0, and send version 3.
            body["supported_features"] = [
                {"name": TRANSACTION_FEATURE, "min_version": 0, "max_version": TRANSACTION_VERSION}
            ]
        return body

    return handle
