"""The ids of schemas in front of values, as Confluent's serializers write them: a zero byte, the id as four
bytes (big endian), then the value itself. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mainstem_loader.arrow_arrays import Array, Bytes, Int64s, bytes_and_edges, null_flags

PREFIX_BYTES: Final = 5


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


def ids_in_order(ids: Int64s) -> list[int]:
    """The distinct ids in the order of their first values. The first schema settles the type of a column that
    another one has otherwise, and which one is first must not depend on their numbers.
    """
    distinct, first = np.unique(ids, return_index=True)
    in_order: list[int] = distinct[np.argsort(first)].tolist()
    return in_order
