"""Requests that the stock client has no call for, sent to who answers them: any broker, one, a coordinator.

`bare_request.py` carries them. What went wrong leaves here as a `CommandError` that says what to do.
"""

from __future__ import annotations

import time
from typing import Any, Final

from mainstem.bare_request import ask
from mainstem.client import ADMIN_TIMEOUT_SECONDS, Broker, Cluster, addresses_of
from mainstem.errors import ClusterRefused, ClusterUnreachable

_CLIENT_ID: Final = "mainstem"
_COORDINATOR_WAIT_SECONDS: Final = 10.0  # for one that is just elected, or that loads its groups
_COORDINATOR_PAUSE_SECONDS: Final = 0.1
_WAIT_FOR_COORDINATOR: Final = frozenset(
    {"coordinator_not_available", "coordinator_load_in_progress", "not_coordinator"}
)


def ask_any(cluster: Cluster, request: Any) -> Any:
    """Ask the controller, and if it does not answer, any broker: ours all serve what is asked this way.

    Raises:
        ClusterUnreachable: nobody answered.
    """
    description = cluster.description()
    nodes = sorted(description.brokers, key=lambda broker: broker.broker_id != description.controller_id)
    addresses = [(broker.host, broker.port) for broker in nodes]
    for address in addresses or addresses_of(cluster.bootstrap_servers):
        try:
            return ask(address, request, client_id=_CLIENT_ID, timeout_seconds=ADMIN_TIMEOUT_SECONDS)
        except OSError:
            continue
    raise ClusterUnreachable(f"No broker of {cluster.bootstrap_servers} answered: see whether they are up.")


def ask_broker(broker: Broker, request: Any) -> Any:
    """Ask this broker.

    Raises:
        ClusterUnreachable: it does not answer, or does not know the request.
    """
    try:
        return ask(
            (broker.host, broker.port),
            request,
            client_id=_CLIENT_ID,
            timeout_seconds=ADMIN_TIMEOUT_SECONDS,
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
        ClusterUnreachable: nobody answered.
    """
    from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest

    deadline = time.monotonic() + _COORDINATOR_WAIT_SECONDS
    while True:
        answer = found = ask_any(cluster, FindCoordinatorRequest(key=group))
        if found.error_code.value == 0:
            answer = ask_broker(Broker(found.node_id, found.host, found.port, None), request)
        if answer.error_code.name not in _WAIT_FOR_COORDINATOR:
            return answer
        if time.monotonic() > deadline:
            raise ClusterRefused(
                f"Group {group} has no coordinator that is ready: see `mainstem cluster status`, then ask "
                "again."
            )
        time.sleep(_COORDINATOR_PAUSE_SECONDS)
