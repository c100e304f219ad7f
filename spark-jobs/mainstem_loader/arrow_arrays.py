"""Crossing between numpy and Arrow without copies, typed once.

The published type stubs of pyarrow take some of its functions for narrower than they are; the few `type:
ignore` that this costs are here, so that nobody else needs one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Array: TypeAlias = "pa.Array[Any]"
ChunkedArray: TypeAlias = "pa.ChunkedArray[Any]"
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


def of_numbers(numbers: npt.NDArray[Any], null: Flags | None = None) -> Any:
    """An array of the same numbers or flags, null where `null` says so."""
    return pa.array(numbers, mask=null)


def null_flags(array: Array) -> Flags:
    """Which values are null."""
    flags: Flags = array.is_null().to_numpy(zero_copy_only=False)
    return flags


def repeated(value: object, kind: pa.DataType, count: int) -> Array:
    """The same value, `count` times."""
    array: Array = pa.repeat(pa.scalar(value, kind), count)  # type: ignore[call-overload]  # any scalar will do
    return array


def cut_binary(plain: bytes, edges: Int32s) -> Array:
    """A binary array whose values lie in `plain`, each from one of `edges` to the next."""
    return pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, buffer_of(edges), pa.py_buffer(plain)])


def bytes_and_edges(values: Array) -> tuple[Bytes, Int32s]:
    """The bytes of a binary array and the edges of its values in them, one more than values."""
    _, offsets, data = values.buffers()
    if offsets is None:
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    edges = np.frombuffer(memoryview(offsets), dtype=np.int32)[
        values.offset : values.offset + len(values) + 1
    ]
    return (np.empty(0, np.uint8) if data is None else np.frombuffer(memoryview(data), dtype=np.uint8)), edges


def buffer_of(numbers: npt.NDArray[Any]) -> pa.Buffer:
    """The memory of an array."""
    return pa.py_buffer(np.ascontiguousarray(numbers).data)


def lines_of(texts: Array) -> Bytes:
    """All texts of a binary array without nulls, a newline behind each."""
    empty, newline = pa.scalar(b"", pa.binary()), pa.scalar(b"\n", pa.binary())
    lines = pc.binary_join_element_wise(texts, empty, newline)  # type: ignore[call-overload]  # binary, not only strings
    data, edges = bytes_and_edges(lines)
    return data[edges[0] : edges[-1]]


def fields_of(struct: pa.DataType) -> Iterator[Any]:
    """The members of a struct type."""
    yield from (struct.field(index) for index in range(struct.num_fields))
