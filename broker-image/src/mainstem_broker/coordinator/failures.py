"""Errors of an append, translated for clients of a coordinator. Pure."""

from __future__ import annotations

from mainstem_broker.errors import (
    CoordinatorNotAvailable,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    ProtocolError,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
)


def is_too_large(error: ProtocolError) -> bool:
    """Whether the records exceed max.message.bytes: repeating the request cannot help."""
    return isinstance(error, MessageTooLarge | RecordListTooLarge)


def as_coordinator_error(error: ProtocolError) -> ProtocolError:
    """Translate the error of a failed append into one that clients of coordinators handle (redpanda#3205).

    Clients repeat a request after COORDINATOR_NOT_AVAILABLE, and find the coordinator again after
    NOT_COORDINATOR. The errors of Produce are unknown to them in these responses.
    """
    if isinstance(error, NotEnoughReplicas | NotEnoughReplicasAfterAppend | RequestTimedOut):
        return CoordinatorNotAvailable(str(error))
    if is_too_large(error):
        return UnknownServerError(f"The coordinator's record is too large to be stored: {error}")
    return NotCoordinator(str(error))
