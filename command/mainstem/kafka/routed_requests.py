"""Raw requests sent to the right broker: any, a given one, or the coordinator of a group or transactional id.

`raw_request.py` sends them. Failures are raised as a `CommandError` that says what to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from mainstem.errors import ClusterRefused, ClusterUnreachable
from mainstem.kafka.client import ADMIN_TIMEOUT_SECONDS, Broker, Cluster, addresses_of
from mainstem.kafka.raw_request import ask

_CLIENT_ID: Final = "mainstem"
_COORDINATOR_WAIT_SECONDS: Final = 10.0  # for one that is just elected, or that loads its groups
_COORDINATOR_PAUSE_SECONDS: Final = 0.1
_GROUP: Final = 0
_TRANSACTION: Final = 1
_WAIT_FOR_COORDINATOR: Final = frozenset(
    {"coordinator_not_available", "coordinator_load_in_progress", "not_coordinator"}
)


def ask_any(cluster: Cluster, request: Any) -> Any:
    """Ask the controller, and if it does not answer, any broker: all of them serve these requests.

    Raises:
        ClusterUnreachable: no broker answered.
    """
    description = cluster.description()
    nodes = sorted(description.brokers, key=lambda broker: broker.broker_id != description.controller_id)
    addresses = [(broker.host, broker.port) for broker in nodes]
    for address in addresses or addresses_of(cluster.bootstrap_servers):
        try:
            return ask(
                address,
                request,
                client_id=_CLIENT_ID,
                timeout_seconds=ADMIN_TIMEOUT_SECONDS,
                properties=cluster.properties,
            )
        except OSError:
            continue
    raise ClusterUnreachable(f"No broker of {cluster.bootstrap_servers} answered: see whether they are up.")


def ask_broker(cluster: Cluster, broker: Broker, request: Any, answer_schema: Any = None) -> Any:
    """Ask this broker of the cluster; `answer_schema` replaces kio's own.

    Raises:
        ClusterUnreachable: it does not answer, or does not know the request.
    """
    try:
        return ask(
            (broker.host, broker.port),
            request,
            client_id=_CLIENT_ID,
            timeout_seconds=ADMIN_TIMEOUT_SECONDS,
            properties=cluster.properties,
            answer_schema=answer_schema,
        )
    except OSError as error:
        raise ClusterUnreachable(
            f"Broker {broker.broker_id} at {broker.host}:{broker.port} gave no answer "
            f"({(error.strerror or str(error)).lower()}): see whether it is up."
        ) from error


def ask_coordinator(cluster: Cluster, group: str, request: Any) -> Any:
    """Ask the coordinator of a group, once it is there and ready.

    Raises:
        ClusterRefused: it is not ready in time.
        ClusterUnreachable: no broker answered.
    """
    return _ask_coordinator(cluster, _GROUP, group, request, lambda answer: answer.error_code)


def ask_transaction_coordinator(
    cluster: Cluster,
    transactional_id: str,
    request: Any,
    error_of: Callable[[Any], Any],
    answer_schema: Any = None,
) -> Any:
    """As `ask_coordinator`, of a transactional id.

    Args:
        error_of: finds the error code in an answer.
        answer_schema: replaces kio's own.
    """
    return _ask_coordinator(cluster, _TRANSACTION, transactional_id, request, error_of, answer_schema)


def _ask_coordinator(
    cluster: Cluster,
    key_type: int,
    key: str,
    request: Any,
    error_of: Callable[[Any], Any],
    answer_schema: Any = None,
) -> Any:
    from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
    from kio.static.primitive import i8

    deadline = time.monotonic() + _COORDINATOR_WAIT_SECONDS
    while True:
        coordinator = ask_any(cluster, FindCoordinatorRequest(key=key, key_type=i8(key_type)))
        answer, error = coordinator, coordinator.error_code
        if error.value == 0:
            broker = Broker(coordinator.node_id, coordinator.host, coordinator.port, None)
            answer = ask_broker(cluster, broker, request, answer_schema)
            error = error_of(answer)
        if error.name not in _WAIT_FOR_COORDINATOR:
            return answer
        if time.monotonic() > deadline:
            what = "Group" if key_type == _GROUP else "Transactional id"
            raise ClusterRefused(
                f"{what} {key} has no coordinator that is ready: see `mainstem cluster status`, then try "
                "again."
            )
        time.sleep(_COORDINATOR_PAUSE_SECONDS)
