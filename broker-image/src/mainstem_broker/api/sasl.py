"""How clients log in: SaslHandshake (key 17, versions 0 and 1), SaslAuthenticate (key 36, versions 0 to 2).

After SaslHandshake v0 the mechanism's messages come as frames without a header, which the router takes. A
login that fails is answered after `connection.failed.authentication.delay.ms`, and the connection closes; the
answer is the same whatever the reason. SaslAuthenticate v1 returns the session's duration (KIP-368).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from time import monotonic

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.errors import IllegalSaslState, SaslAuthenticationFailed, UnsupportedSaslMechanism
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.security.exchanges import LoginFailed


def handle_handshake(
    broker: BrokerContext, request: Entity, context: RequestContext
) -> Body | Awaitable[Body]:
    login = context.login
    if login is None:  # a listener without SASL
        return {"error_code": IllegalSaslState.code, "mechanisms": ()}
    try:
        is_served = login.choose(request.mechanism, context.version, monotonic())
    except LoginFailed:
        return {"error_code": IllegalSaslState.code, "mechanisms": ()}
    body: Body = {"error_code": 0, "mechanisms": login.enabled_mechanisms}
    if is_served:
        return body
    return _held_back(broker, body | {"error_code": UnsupportedSaslMechanism.code})


def handle_authenticate(
    broker: BrokerContext, request: Entity, context: RequestContext
) -> Body | Awaitable[Body]:
    login = context.login
    if login is None or not login.is_under_way:
        return _refusal(IllegalSaslState("SaslAuthenticate does not come after SaslHandshake."))
    mechanism = login.mechanism
    try:
        answer, session_ms = login.respond(bytes(request.auth_bytes))
    except LoginFailed:
        error = SaslAuthenticationFailed(f"Authentication failed: invalid credentials ({mechanism}).")
        return _held_back(broker, _refusal(error))
    return {"error_code": 0, "error_message": None, "auth_bytes": answer, "session_lifetime": session_ms}


def _refusal(error: IllegalSaslState | SaslAuthenticationFailed) -> Body:
    return {
        "error_code": error.code,
        "error_message": error.message,
        "auth_bytes": b"",
        "session_lifetime": 0,
    }


async def _held_back(broker: BrokerContext, body: Body) -> Body:
    await asyncio.sleep(broker.config.integer("connection.failed.authentication.delay.ms") / 1000)
    return body
