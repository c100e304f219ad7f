"""FindCoordinator (key 10), versions 0 to 6: which broker coordinates a group.

Consumer groups are not served yet, so every group is answered with COORDINATOR_NOT_AVAILABLE, for which
clients wait. The key is announced all the same, because librdkafka compresses with lz4 only for brokers
that serve its version 0. v1 key types; v3 flexible; v4 several keys at once.
"""

from __future__ import annotations

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.errors import CoordinatorNotAvailable
from mainstem_broker.protocol.codec import Body, Entity


def handle(_broker: BrokerContext, request: Entity, context: RequestContext) -> Body:
    error = CoordinatorNotAvailable("This broker does not coordinate groups.")
    nowhere = {
        "node_id": -1,
        "host": "",
        "port": -1,
        "error_code": error.code,
        "error_message": error.message,
    }
    if context.version < 4:
        return {"throttle_time": 0, **nowhere}
    return {"throttle_time": 0, "coordinators": [{"key": key, **nowhere} for key in request.coordinator_keys]}
