"""Values that say nothing about their type yet, as JSON text: `[]`, `[null]`, `{}`, and what is made of them.

No column can be made of a field that was empty in all records so far, but its values are facts: no tags is
not the same as unknown tags. They are kept in the column `_rest` until a record shows the type. Of a value
whose type is known in part, such as `{"a": 1, "tags": []}` where nobody has seen a tag, the column has the
known part, and `_rest` the other: objects with the members that the column does not have, and arrays with as
many items as the value has, null for those of which nothing is missing (`{"tags": []}`, or
`[{"tags": []}, null]`). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem_loader.arrow_arrays import Array, fields_of, null_flags, repeated
from mainstem_loader.columns import members_of


def untyped_fields(table: pa.Table, stored: Mapping[str, pa.DataType]) -> dict[str, Array]:
    """The parts of values that have no place in their columns.

    Args:
        table: by field, as Arrow's JSON reader has inferred it: empty arrays are lists of nulls, and empty
            objects are structs without members.
        stored: the types of the columns that there are.

    Returns:
        By field one JSON text for each row, null where nothing is lost; only fields of which something is.
    """
    found: dict[str, Array] = {}
    for field in table.schema:
        if _has_untyped(field.type, stored.get(field.name)):
            chunks = [_untyped(chunk, stored.get(field.name)) for chunk in table.column(field.name).chunks]
            texts: Array = pa.concat_arrays(chunks)
            if texts.null_count < len(texts):
                found[field.name] = texts
    return found


def texts_of_fields(texts: Mapping[str, Array], count: int) -> Array:
    """JSON objects of `count` rows, each with the fields that have a text; null for a row without any."""
    if not texts:
        return pa.nulls(count, pa.string())
    if len(texts) == 1:
        ((name, text),) = texts.items()
        return _concatenated(f"{{{_label(name)}", text, "}")
    present = ~np.logical_and.reduce([null_flags(array) for array in texts.values()])
    return _braced("{", _members(texts), "}", pa.array(present))


def _has_untyped(value_type: pa.DataType, stored: pa.DataType | None) -> bool:
    """Whether a value of the inferred type may have a part that is lost in a column of the type `stored`."""
    if stored is None:
        return not pa.types.is_null(value_type)
    if pa.types.is_list(value_type) and pa.types.is_list(stored):
        return _has_untyped(value_type.value_type, stored.value_type)
    if pa.types.is_struct(value_type) and pa.types.is_struct(stored):
        known = members_of(stored)
        return any(_has_untyped(kind, known.get(name)) for name, kind in members_of(value_type).items())
    return False


def _untyped(array: Array, stored: pa.DataType | None) -> Array:
    """For each value the text of what a column of the type `stored` has no place for; null for nothing."""
    if stored is None:
        return _whole(array)
    if isinstance(array, pa.ListArray):
        assert pa.types.is_list(stored)
        items = _untyped(array.values, stored.value_type)
        before = np.concatenate(([0], np.cumsum(~null_flags(items))))
        edges = array.offsets.to_numpy()
        return _listed(array, items, pa.array(before[edges[1:]] > before[edges[:-1]]))
    known = members_of(stored)
    texts = {
        member.name: _untyped(part, known.get(member.name))
        for member, part in zip(fields_of(array.type), _parts(array), strict=True)
        if _has_untyped(member.type, known.get(member.name))
    }
    return texts_of_fields(texts, len(array))


def _whole(array: Array) -> Array:
    """Values of lists, structs and nulls as text."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.string())
    if isinstance(array, pa.ListArray):
        return _listed(array, _whole(array.values), array.is_valid())
    names = [member.name for member in fields_of(array.type)]
    texts = {name: _whole(part) for name, part in zip(names, _parts(array), strict=True)}
    inner = _members(texts) if texts else repeated("", pa.string(), len(array))
    return _braced("{", inner, "}", array.is_valid())


def _parts(struct: Array) -> list[Array]:
    """The members of structs, null where the struct is."""
    assert isinstance(struct, pa.StructArray)
    return struct.flatten()


def _listed(lists: pa.ListArray[Any], items: Array, present: Array) -> Array:
    rows = pa.ListArray.from_arrays(lists.offsets, items.fill_null("null"))
    joined: Any = pc.binary_join(rows, ",")
    return _braced("[", joined, "]", present)


def _members(texts: Mapping[str, Array]) -> Array:
    """The members that have a text, as between the braces of an object."""
    # Arrow 26 drops rows without any text if it is to skip nulls, so these become empty first.
    named = [_concatenated(f",{_label(name)}", text).fill_null("") for name, text in texts.items()]
    joined: Array = pc.ascii_ltrim(_concatenated(*named), characters=",")
    return joined


def _label(name: str) -> str:
    return json.dumps(name, ensure_ascii=False) + ":"


def _braced(begin: str, inner: Array, end: str, present: Array) -> Array:
    """The texts in braces where `present`, null elsewhere."""
    texts: Array = pc.if_else(present, _concatenated(begin, inner, end), pa.scalar(None, pa.string()))
    return texts


def _concatenated(*parts: Any) -> Array:
    """Arrays of texts, and texts, as one; null where any of them is."""
    texts: Array = pc.binary_join_element_wise(*parts, "")
    return texts
