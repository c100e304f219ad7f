"""ApiVersions (key 18), versions 0 to 4: which keys and versions this broker serves (KIP-511).

A version above ours is answered in version 0 with UNSUPPORTED_VERSION and the range of key 18, so that
the client asks again; the router does that before the body is read. v1 throttle time; v3 flexible, client
software name; v4 only concerns features, of which there are none.
"""

from __future__ import annotations

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.protocol.wire import Body, Entity


def handle(_broker: BrokerContext, _request: Entity, _context: RequestContext) -> Body:
    from mainstem_broker.api.table import APIS  # the table lists this handler

    return {
        "error_code": 0,
        "api_keys": [
            {"api_key": api.key, "min_version": api.announced_min_version, "max_version": api.max_version}
            for api in APIS.values()
        ],
        "throttle_time": 0,
    }
