"""Measures what each request takes of its client's quotas, and holds back who has taken too much (KIP-219).

The answer goes out at once and says how long the client should wait; the connection is not read from for
that time, for those that do not. So a client is never refused, only slowed down, and the bytes of a request
or an answer that is larger than the quota are waited for afterwards.

- producer_byte_rate counts the requests' bytes, consumer_byte_rate those of the records that are answered.
- request_percentage counts the time for which the handler keeps the event loop. A handler that waits counts
  each of its steps, and nothing of the time between them.
- controller_mutation_rate counts the partitions that are created and deleted (KIP-599). Handlers count them,
  since newer versions refuse the topics that exceed it; the wait that they answer holds here, too.
- Followers are exempt: what replication may take is `replica/throttle.py`.

Only called while there are quotas, so that requests cost nothing where there are none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any, Final, cast

from mainstem_broker.api.api_table import Api
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.log.files import FileSlice
from mainstem_broker.protocol.wire import FETCH_KEY, PRODUCE_KEY, Body, Entity
from mainstem_broker.quota.client_quotas import QuotaKind

THROTTLE_MS_MAX: Final = 2**31 - 1

Mute = Callable[[float], None]
"""Takes seconds, for which no further request of the connection is to be handled."""


def metered(
    api: Api, size_bytes: int, mute: Mute, broker: BrokerContext, request: Entity, context: RequestContext
) -> Body | Awaitable[Body | None] | None:
    """As the API's handler answers; `size_bytes` is the request's."""
    started_s = perf_counter()
    answer = api.handler(broker, request, context)
    busy = _Busy(perf_counter() - started_s)
    if api.key == FETCH_KEY and _is_follower(request):
        return answer

    def throttled(body: Body | None) -> Body | None:
        taken: dict[QuotaKind, float] = {QuotaKind.REQUEST_PERCENTAGE: 100 * busy.seconds}
        if api.key == PRODUCE_KEY:
            taken[QuotaKind.PRODUCER_BYTE_RATE] = size_bytes
        elif api.key == FETCH_KEY and body is not None:
            taken[QuotaKind.CONSUMER_BYTE_RATE] = _record_bytes(body)
        wait_ms = _charge(broker, context, taken)
        if body is not None:
            wait_ms = max(wait_ms, body.get("throttle_time", 0))
        if wait_ms > 0:
            if body is not None:
                body["throttle_time"] = wait_ms
            mute(wait_ms / 1000)
        return body

    return _later(answer, busy, throttled) if isinstance(answer, Awaitable) else throttled(answer)


@dataclass(slots=True)
class _Busy:
    """For how long a request has kept the event loop."""

    seconds: float


async def _later(
    answer: Awaitable[Body | None], busy: _Busy, throttled: Callable[[Body | None], Body | None]
) -> Any:
    return throttled(await _Timed(answer, busy))


@dataclass(frozen=True, slots=True)
class _Timed:
    """An awaitable whose steps are added to `busy`."""

    awaitable: Awaitable[Body | None]
    busy: _Busy

    def __await__(self) -> Generator[Any, None, Body | None]:
        steps = self.awaitable.__await__()
        error: BaseException | None = None
        while True:
            started_s = perf_counter()
            try:
                waits_for = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                return cast(Body | None, end.value)
            finally:
                self.busy.seconds += perf_counter() - started_s
            try:
                yield waits_for
                error = None
            except BaseException as thrown:  # noqa: BLE001 (a cancellation must reach the handler, as by `yield from`)
                error = thrown


def _charge(broker: BrokerContext, context: RequestContext, taken: dict[QuotaKind, float]) -> int:
    """The longest wait in ms that any of this asks for."""
    now_ms = monotonic() * 1000
    waits = [
        broker.quotas.charge(kind, context.principal.name, context.client_id or "", amount, now_ms)
        for kind, amount in taken.items()
    ]
    return min(round(max(waits)), THROTTLE_MS_MAX)


def _is_follower(request: Entity) -> bool:
    replica = getattr(request, "replica_state", None)
    return replica is not None and replica.replica_id >= 0


def _record_bytes(body: Body) -> int:
    return sum(
        records.size_bytes
        for topic in body["responses"]
        for partition in topic["partitions"]
        if isinstance(records := partition["records"], FileSlice)
    )
