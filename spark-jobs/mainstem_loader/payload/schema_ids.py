"""The ids of schemas in front of values, as Confluent's serializers write them: a zero byte, the id as four
bytes (big endian), then the value itself. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np

from mainstem_loader.arrow_arrays import Array, Bytes, Int64s, bytes_and_edges, null_flags
from mainstem_loader.columns import ColumnError

PREFIX_BYTES: Final = 5
UNUSABLE_IDS_MAX: Final = 500
"""Ids without a usable schema that are looked up. Values without ids may begin with a zero byte, too, each
with another number after it, and a request for each of them would take hours.
"""
REPEATED_IDS_MAX: Final = 20
"""Of these, how many are looked up in each block beyond `UNUSABLE_IDS_MAX`, if several values have the id."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IdentifiedValues:
    """The values of a block that begin with an id.

    Attributes:
        rows: their positions in the block, rising.
        ids: of their schemas.
        data: bytes that hold all bodies.
        begins, ends: of each body in `data`.
        dead: the positions of the other values but nulls, rising, and why.
    """

    rows: Int64s
    ids: Int64s
    data: Bytes
    begins: Int64s
    ends: Int64s
    dead: Sequence[tuple[int, str]]

    def body(self, at: int) -> bytes:
        return self.data[self.begins[at] : self.ends[at]].tobytes()


def split_ids(values: Array) -> IdentifiedValues:
    """Divide the values of a binary array from their ids."""
    data, edges = bytes_and_edges(values)
    begins, lengths = edges[:-1].astype(np.int64), np.diff(edges)
    present = ~null_flags(values)
    long_enough = present & (lengths >= PREFIX_BYTES)
    where = np.flatnonzero(long_enough)
    has_id = long_enough.copy()
    has_id[where] = data[begins[where]] == 0
    dead: list[tuple[int, str]] = []
    for row in np.flatnonzero(present & ~has_id).tolist():
        if not long_enough[row]:
            dead.append((row, f"the value has {lengths[row]} bytes, too few for the id of a schema"))
        else:
            dead.append(
                (row, f"the value begins with byte {data[begins[row]]}, not 0 and the id of a schema")
            )
    rows = np.flatnonzero(has_id)
    octets = data[begins[rows][:, None] + np.arange(1, PREFIX_BYTES)].astype(np.int64)
    ids = octets @ np.array([1 << 24, 1 << 16, 1 << 8, 1]) if len(rows) else np.empty(0, np.int64)
    bodies = begins[rows] + PREFIX_BYTES
    return IdentifiedValues(rows, ids, data, bodies, begins[rows] + lengths[rows], dead)


class SchemasById(Generic[T]):
    """The schemas of the ids in the blocks of a task. An id is looked up once, as its schema never changes.

    Args:
        look_up: returns the schema of an id. Raises ColumnError, with the reason, if it has no usable one.
    """

    def __init__(self, look_up: Callable[[int], T]) -> None:
        self._look_up = look_up
        self._schemas: dict[int, T | ColumnError] = {}
        self._unusable_ids = 0

    def of_block(self, ids: Int64s) -> list[tuple[int, T | ColumnError]]:
        """The distinct ids of a block in the order of their first values, each with its schema or the reason
        why it is not used.

        The first schema settles the type of a column that another one has otherwise, and which one is first
        must not depend on their numbers. The ids that most values have are looked up first: the numbers in
        values without ids are nearly unique, and must not use up what is allowed.
        """
        distinct, first, counts = np.unique(ids, return_index=True, return_counts=True)
        repeated_max = max(UNUSABLE_IDS_MAX, self._unusable_ids + REPEATED_IDS_MAX)
        for at in np.lexsort((first, -counts)).tolist():
            schema_id = int(distinct[at])
            unusable_max = repeated_max if counts[at] > 1 else UNUSABLE_IDS_MAX
            if schema_id not in self._schemas and self._unusable_ids < unusable_max:
                try:
                    self._schemas[schema_id] = self._look_up(schema_id)
                except ColumnError as error:
                    self._schemas[schema_id] = error
                    self._unusable_ids += 1
        in_order: list[int] = distinct[np.argsort(first)].tolist()
        return [
            (schema_id, self._schemas[schema_id] if schema_id in self._schemas else _not_looked_up(schema_id))
            for schema_id in in_order
        ]


def _not_looked_up(schema_id: int) -> ColumnError:
    return ColumnError(
        f"the id {schema_id} of a schema was not looked up, as there is no usable schema for"
        f" {UNUSABLE_IDS_MAX} others; the values may have no ids"
    )
