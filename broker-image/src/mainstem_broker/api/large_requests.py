"""Large requests, answered as if they were several smaller ones.

A handler gets a slice of the request's array at a time, and between slices other clients have the event loop.
The answers of all slices are put together. Only for requests whose elements are independent of each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from mainstem_broker.api.context import BrokerContext, Handler, RequestContext
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.runtime.turns import Turn

LARGE_REQUEST_BYTES: Final = 4 * 1024
"""A smaller request is answered at once, unless its API says otherwise: its elements, of seven bytes and more
where they cost anything, take the loop for a few milliseconds. So ordinary requests are not even counted."""
ELEMENTS_PER_SLICE: Final = 64


@dataclass(frozen=True, slots=True)
class Slices:
    """How requests of an API are cut: `path` has the names of an array in the request and in the answer, then
    those of the array in its elements, and so on. A handler answers each element by one, in their order.

    `key`: elements of equal keys are answered once, where the answer is larger than the element.

    `waits_together`: the first slice is answered alone, because what it makes sure of, as that a transaction
    is open, holds for the others. What the others wait for, they wait for at the same time. A handler with
    a timeout takes it from `RequestContext.deadline_s`, so that all slices have one.
    """

    path: tuple[tuple[str, str], ...]
    elements: int = ELEMENTS_PER_SLICE
    key: Callable[[Any], Hashable] | None = None
    request_bytes_min: int = LARGE_REQUEST_BYTES
    waits_together: bool = False


class SlicedAnswer(NamedTuple):
    """An answer that takes several turns of the loop. Later requests of the connection wait for it, as they
    do in Kafka: a commit must not be carried out between two slices of an earlier one."""

    body: Coroutine[Any, Any, Body | None]


class LargeAnswer(NamedTuple):
    """An answer whose handler yields the loop by itself, and that is written in steps."""

    body: Coroutine[Any, Any, Body | None]


def answer_large(
    handler: Handler, broker: BrokerContext, request: Entity, context: RequestContext
) -> Body | Awaitable[Body | None] | LargeAnswer | None:
    """As `handler` answers a large request that is not cut."""
    answer = handler(broker, request, context)
    return LargeAnswer(answer) if asyncio.iscoroutine(answer) else answer


def answer_in_slices(
    slices: Slices, handler: Handler, broker: BrokerContext, request: Entity, context: RequestContext
) -> Body | Awaitable[Body | None] | SlicedAnswer | None:
    """As `handler` answers, in slices if the request is large."""
    array = slices.path[0][0]
    elements = getattr(request, array, None)
    if elements is None:  # all that there are, or a version without the array
        return handler(broker, request, context)
    if slices.key is not None:
        by_key = {slices.key(element): element for element in elements}
        if len(by_key) < len(elements):
            elements = tuple(by_key.values())
            request = replace(request, **{array: elements})
    names = [name for name, _ in slices.path[1:]]
    if _fit(elements, names, slices.elements):
        return handler(broker, request, context)
    return SlicedAnswer(_answer(slices, handler, broker, request, context))


async def _answer(
    slices: Slices, handler: Handler, broker: BrokerContext, request: Entity, context: RequestContext
) -> Body | None:
    (array, answer_array), *nested = slices.path
    names, answer_names = [name for name, _ in nested], [name for _, name in nested]
    turn = Turn()
    context = context._replace(begun_s=asyncio.get_running_loop().time())
    whole: Body | None = None
    waiting: list[tuple[asyncio.Future[Body | None], int]] = []
    try:
        for elements, depth in cut(getattr(request, array), names, slices.elements):
            answer = handler(broker, replace(request, **{array: tuple(elements)}), context)
            if slices.waits_together and whole is not None:
                waiting.append((_begun(answer), depth))
                await asyncio.sleep(0)  # in which a coroutine takes its first step
                continue
            body = await answer if isinstance(answer, Awaitable) else answer
            if body is None:
                return None
            whole = _joined(whole, body, depth, answer_array, answer_names)
            await turn.pause_if_over()
        for future, depth in waiting:
            body = await future
            assert body is not None
            whole = _joined(whole, body, depth, answer_array, answer_names)
    finally:
        for future, _ in waiting:
            future.cancel()
    return whole


def _begun(answer: Body | Awaitable[Body | None] | None) -> asyncio.Future[Body | None]:
    if isinstance(answer, Awaitable):
        return asyncio.ensure_future(answer)
    done: asyncio.Future[Body | None] = asyncio.get_running_loop().create_future()
    done.set_result(answer)
    return done


def _joined(whole: Body | None, body: Body, depth: int, array: str, names: Sequence[str]) -> Body:
    """The answer to the slices so far, and the next one."""
    if whole is None:
        return body | {array: list(body[array])}
    _take_error(whole, body)
    if body.get("throttle_time", 0) > whole.get("throttle_time", 0):  # each slice counts against the quotas
        whole["throttle_time"] = body["throttle_time"]
    join(whole[array], body[array], depth, names)
    return whole


def cut(elements: Iterable[Entity], names: Sequence[str], size: int) -> Iterator[tuple[list[Entity], int]]:
    """Slices of at most `size` elements, each with the number of levels at which its first element goes on
    with the last one of the slice before; 0: it begins a new one.

    `names` are those of the arrays in the elements. Their elements count too, and an element that has too
    many is cut in several.
    """
    slice_: list[Entity] = []
    left = size
    for element in elements:
        count = _count(element, names, size)
        if slice_ and count > left:
            yield slice_, 0
            slice_, left = [], size
        if count <= size or not names:
            slice_.append(element)
            left -= count
            continue
        depth = 0
        for inner, inner_depth in cut(getattr(element, names[0]), names[1:], size - 1):
            yield [replace(element, **{names[0]: tuple(inner)})], depth and 1 + inner_depth
            depth = 1
    if slice_:
        yield slice_, 0


def join(answers: list[Body], added: Sequence[Body], depth: int, names: Sequence[str]) -> None:
    """Append the answers to a slice. The first one goes on with the last if `depth` is not 0, at as many
    levels; `names` are those of the arrays in them. An error of a part is one of the whole."""
    if depth and added and answers:  # a slice that failed as a whole may have answered nothing
        last, continued = answers[-1], added[0]
        _take_error(last, continued)
        inner = last[names[0]]
        if not isinstance(inner, list):
            inner = last[names[0]] = list(inner)
        join(inner, continued[names[0]], depth - 1, names[1:])
        added = added[1:]
    answers.extend(added)


def _take_error(whole: Body, part: Body) -> None:
    if part.get("error_code"):
        whole["error_code"] = whole.get("error_code") or part["error_code"]


def _count(element: Entity, names: Sequence[str], size: int) -> int:
    """How many elements this one is, with those of its arrays. An array that is null means all that there
    are, so it counts as `size`."""
    if not names:
        return 1
    inner = getattr(element, names[0])
    if inner is None:
        return size
    return 1 + (len(inner) if len(names) == 1 else sum(_count(one, names[1:], size) for one in inner))


def _fit(elements: Iterable[Entity], names: Sequence[str], size: int) -> bool:
    left = size
    for element in elements:
        left -= _count(element, names, size)
        if left < 0:
            return False
    return True
