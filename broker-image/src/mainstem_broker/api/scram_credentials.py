"""DescribeUserScramCredentials (key 50), versions 0 to 0: there are none, as nobody authenticates here.

Served because kafka-configs asks for them whenever it describes users, and fails where it is not answered.
"""

from __future__ import annotations

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.errors import ResourceNotFound
from mainstem_broker.protocol.wire import Body, Entity


def handle(_broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    missing = ResourceNotFound("There are no SCRAM credentials for this user.")
    return {
        "throttle_time": 0,
        "error_code": 0,
        "error_message": None,
        "results": [
            {
                "user": asked.name,
                "error_code": missing.code,
                "error_message": missing.message,
                "credential_infos": (),
            }
            for asked in request.users or ()
        ],
    }
