"""Which partitions a consumer is to have, and what it has to release and to claim for that (pure).

The paper's Algorithm 1 (§3.2). Every consumer computes this for itself from the same registries, so the
outcome must depend on nothing else. The paper gives each consumer ⌈|P|/|C|⌉ partitions, which may leave the
last with none; as in Apache Kafka since 0.7, shares differ by one at most: ⌊|P|/|C|⌋, and one more for the
first |P| mod |C|.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


def stream_name(consumer_id: str, stream: int) -> str:
    """Who owns a partition: stream `stream` (0, 1, ...) of a consumer, as `ID-0`."""
    return f"{consumer_id}-{stream}"


def slices(partitions: Collection[int], streams_of: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The partitions of each stream by its name; `streams_of` is how many streams each consumer has.

    Sorted partitions are cut into runs, one for each stream in the order of the names.
    """
    ordered = sorted(partitions)
    names = sorted(
        stream_name(consumer_id, stream)
        for consumer_id, count in streams_of.items()
        for stream in range(count)
    )
    result: dict[str, tuple[int, ...]] = {}
    if not names:
        return result
    share, left_over = divmod(len(ordered), len(names))
    start = 0
    for number, name in enumerate(names):
        end = start + share + (number < left_over)
        result[name] = tuple(ordered[start:end])
        start = end
    return result


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order. Partitions to claim come with the stream that shall have them."""

    release: tuple[int, ...]
    claim: tuple[tuple[int, int], ...]


def plan(
    consumer_id: str, partitions: Iterable[int], streams_of: Mapping[str, int], held: Mapping[int, int]
) -> Plan:
    """How a consumer gets from what it holds (stream by partition) to its slice.

    A consumer that is not registered gets nothing. What stays its own is not touched; Algorithm 1 begins by
    releasing all, which stops partitions that no one else is going to have.
    """
    shares = slices(frozenset(partitions), streams_of)
    target = {
        partition: stream
        for stream in range(streams_of.get(consumer_id, 0))
        for partition in shares[stream_name(consumer_id, stream)]
    }
    return Plan(
        release=tuple(sorted(number for number, stream in held.items() if target.get(number) != stream)),
        claim=tuple(
            sorted((number, stream) for number, stream in target.items() if held.get(number) != stream)
        ),
    )
