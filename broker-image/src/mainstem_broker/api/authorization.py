"""Whether a client may do what its request asks for.

`api_table.py` states for each API what it needs. A request as a whole is checked before its handler is called
(`refusal`); where a request names several topics or groups, the handler checks each, so that the others are
answered. Without an authorizer everything is allowed.

An error must not reveal what a client may not see: a right is checked before the resource is looked for, and
a topic that is given by its id, and that the client may not describe, is answered UNKNOWN_TOPIC_ID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    ProtocolError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from mainstem_broker.protocol.schema_codec import failed_response
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.security.acl import CLUSTER_NAME, OPERATIONS_ON, Operation, Resource, ResourceType
from mainstem_broker.security.audit_log import ADMINISTRATION, DENIED
from mainstem_broker.security.authorizer import Decision

NamesIn = Callable[[Entity], Iterable[str]]
CHANGES: Final = frozenset((Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS))
"""Operations whose use is recorded in the audit log when it is allowed, too."""
UNKNOWN_OPERATIONS: Final = -(2**31)
"""In place of authorized operations that were not requested."""

_ERRORS: Final[dict[ResourceType, type[ProtocolError]]] = {
    ResourceType.TOPIC: TopicAuthorizationFailed,
    ResourceType.GROUP: GroupAuthorizationFailed,
    ResourceType.CLUSTER: ClusterAuthorizationFailed,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
}


def _the_cluster(_request: Entity) -> Iterable[str]:
    return (CLUSTER_NAME,)


def the_group(request: Entity) -> Iterable[str]:
    """Of requests about one group."""
    return (request.group_id,)


def the_transactional_id(request: Entity) -> Iterable[str]:
    """Of requests about one transactional id."""
    return (request.transactional_id,)


class Need(NamedTuple):
    """An operation on the resources of a type that `names` finds in a request. On the cluster, the right to
    `instead` is enough, too."""

    operation: Operation
    resource: ResourceType
    names: NamesIn = _the_cluster
    instead: Operation | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """What an API needs.

    Without all of `whole` the request is refused: with the error for the whole that its response has, or with
    the answer of `refuse`. The handler checks `each` for every resource of that type that the request names
    or the answer contains.
    """

    whole: tuple[Need, ...] = ()
    each: tuple[tuple[Operation, ResourceType], ...] = ()
    refuse: Callable[[Entity, ProtocolError], Body] | None = None


def refusal(
    broker: BrokerContext, api_key: int, access: Access, request: Entity, context: RequestContext
) -> Body | None:
    """The answer to a client that may not make the request; None if it may."""
    if broker.authorizer is None:
        return None
    for need in access.whole:
        if need.instead is not None and grants_on_cluster(broker, context, need.instead):
            continue
        for name in need.names(request):
            if not allows(broker, context, need.operation, need.resource, name):
                error = denial(context, need.operation, need.resource, name)
                if access.refuse is not None:
                    return access.refuse(request, error)
                return failed_response(api_key, context.version, error.code, error.message)
    return None


def allows(
    broker: BrokerContext,
    context: RequestContext,
    operation: Operation,
    kind: ResourceType,
    name: str,
    *,
    quietly: bool = False,
) -> bool:
    """Whether the client may do this; if not, or if only a dry run allows it, that is recorded. Unless
    `quietly`: then the resource is only left out of an answer.
    """
    authorizer = broker.authorizer
    if authorizer is None:
        return True
    decision = authorizer.decide(context.principal, context.host, operation, kind, name)
    if (decision.is_dry or not decision.is_allowed) and not quietly:
        _record(broker, context, DENIED, operation, f"{Resource(kind, name)}", decision)
    if decision.is_allowed and operation in CHANGES:
        _record(broker, context, ADMINISTRATION, operation, f"{Resource(kind, name)}", decision)
    return decision.is_allowed


def allows_on_cluster(
    broker: BrokerContext, context: RequestContext, operation: Operation, *, quietly: bool = False
) -> bool:
    return allows(broker, context, operation, ResourceType.CLUSTER, CLUSTER_NAME, quietly=quietly)


def grants_on_cluster(broker: BrokerContext, context: RequestContext, operation: Operation) -> bool:
    """Whether a right on the cluster lets the client do this. If not, another right may: so that is not
    recorded, and a dry run does not take its place.
    """
    authorizer = broker.authorizer
    if authorizer is not None:
        of_cluster = operation, ResourceType.CLUSTER, CLUSTER_NAME
        if authorizer.decide(context.principal, context.host, *of_cluster).is_dry:
            return False
    return allows_on_cluster(broker, context, operation, quietly=True)


def allows_on_any(
    broker: BrokerContext, context: RequestContext, operation: Operation, kind: ResourceType
) -> bool:
    """Whether the client may do this to some resource of the type."""
    authorizer = broker.authorizer
    if authorizer is None:
        return True
    decision = authorizer.decide_on_any(context.principal, context.host, operation, kind)
    if decision.is_dry or not decision.is_allowed:
        _record(broker, context, DENIED, operation, f"any {kind.text}", decision)
    return decision.is_allowed


def require(
    broker: BrokerContext, context: RequestContext, operation: Operation, kind: ResourceType, name: str
) -> None:
    """Raise the error that belongs to the type of resource if the client may not do this."""
    if not allows(broker, context, operation, kind, name):
        raise denial(context, operation, kind, name)


def require_topic(broker: BrokerContext, context: RequestContext, operation: Operation, name: str) -> None:
    """Raise TopicAuthorizationFailed if the client may not do this to the topic, whether it exists or not."""
    if broker.authorizer is not None:
        require(broker, context, operation, ResourceType.TOPIC, name)


def may_describe_topic(broker: BrokerContext, context: RequestContext, name: str) -> bool:
    """Whether an answer to the client may contain the topic."""
    if broker.authorizer is None:
        return True
    return allows(broker, context, Operation.DESCRIBE, ResourceType.TOPIC, name, quietly=True)


def may_describe_requested(broker: BrokerContext, context: RequestContext, name: str) -> bool:
    """As `may_describe_topic`, of a topic that the client requests, by its id or as part of another resource.

    The answer does not show that the client was refused, so the refusal is recorded here.
    """
    return allows(broker, context, Operation.DESCRIBE, ResourceType.TOPIC, name)


def denial(context: RequestContext, operation: Operation, kind: ResourceType, name: str) -> ProtocolError:
    return _ERRORS[kind](f"{context.principal} may not {operation.text} {Resource(kind, name)}.")


def authorized_operations(
    broker: BrokerContext, context: RequestContext, kind: ResourceType, name: str = CLUSTER_NAME
) -> int:
    """The operations that the client may do, as bits: one shifted left by the number of each (KIP-430)."""
    authorizer = broker.authorizer
    if authorizer is None:
        allowed: Iterable[Operation] = OPERATIONS_ON[kind]
    else:
        allowed = authorizer.allowed_operations(context.principal, context.host, kind, name)
    return sum(1 << operation for operation in allowed)


def _record(
    broker: BrokerContext,
    context: RequestContext,
    category: str,
    operation: Operation,
    resource: str,
    decision: Decision,
) -> None:
    broker.audit.record(
        category,
        outcome="allowed" if decision.is_allowed else "denied",
        principal=str(context.principal),
        host=context.host,
        operation=operation.text,
        resource=resource,
        rule=f"dry run: {decision.reason}" if decision.is_dry else decision.reason,
        client_id=context.client_id or "",
        listener=context.listener,
    )


def record_change(
    broker: BrokerContext, context: RequestContext, outcome: str, resource: str, rule: str
) -> None:
    """Record a change that the client has made, where `allows` could record only the right to make any.

    `rule` says what was changed, and contains no secret. Without an authorizer there are no such records.
    """
    if broker.authorizer is None:
        return
    broker.audit.record(
        ADMINISTRATION,
        outcome=outcome,
        principal=str(context.principal),
        host=context.host,
        operation=Operation.ALTER.text,
        resource=resource,
        rule=rule,
        client_id=context.client_id or "",
        listener=context.listener,
    )
