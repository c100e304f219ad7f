"""Names and types of columns (R30: schema evolution)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_loader.columns import (
    COLUMNS_MAX,
    RESERVED_NAMES,
    TYPE_DEPTH_MAX,
    ColumnError,
    check_name,
    column_of_field,
    field_of_column,
    fits,
    merge_found,
    merge_types,
    storable_type,
)

names = (
    st.text(max_size=12)
    | st.sampled_from(sorted(RESERVED_NAMES))
    | st.from_regex(r"(payload_){0,3}(day|DAY|_key|_offset|x)", fullmatch=True)
)


@given(names)
def test_every_field_has_a_column_and_can_be_named_by_it(field: str) -> None:
    assert field_of_column(column_of_field(field)) == field


@given(names, names)
def test_no_two_fields_share_a_column(one: str, other: str) -> None:
    assert (column_of_field(one) == column_of_field(other)) == (one == other)


@given(names)
def test_no_field_takes_a_column_that_every_table_has(field: str) -> None:
    assert column_of_field(field).lower() not in RESERVED_NAMES


def test_a_field_called_day_moves_aside() -> None:
    assert [column_of_field(field) for field in ("day", "Day", "payload_day", "days", "_offset")] == [
        "payload_day",
        "payload_Day",
        "payload_payload_day",
        "days",
        "payload__offset",
    ]


@pytest.mark.parametrize(
    ("field", "beside"), [("a.b", "a"), ("a", "a.b"), ("a.b.c", "a.b"), ("a.b.c", "a"), ("a", "a.b.c")]
)
def test_a_field_that_is_named_like_a_path_into_another_is_refused(field: str, beside: str) -> None:
    with pytest.raises(ColumnError, match="has the name of a path into"):
        check_name(field, ["x", beside])
    check_name(field, ["x", f"x{beside}"])


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a;b", "a{b", "a(b", "a\nb", "a=b", "a\0b", "x" * 256])
def test_names_that_delta_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(ColumnError, match="cannot be the name of a column"):
        check_name(name, [])


def test_names_that_differ_in_case_alone_are_refused() -> None:
    with pytest.raises(ColumnError, match="'Id' differs from 'ID' in case alone"):
        check_name("Id", ["a", "ID"])
    check_name("ID", ["a", "ID"])


@pytest.mark.parametrize(
    ("result", "stored"),
    [
        (pa.int64(), pa.int64()),
        (pa.null(), None),
        (pa.timestamp("s"), pa.string()),
        (pa.list_(pa.null()), None),
        (pa.list_(pa.timestamp("s")), pa.list_(pa.string())),
        (pa.struct([]), None),
        (pa.struct([("x", pa.null())]), None),
        (pa.struct([("x", pa.null()), ("y", pa.bool_())]), pa.struct([("y", pa.bool_())])),
    ],
    ids=str,
)
def test_what_values_show_becomes_what_a_column_can_hold(
    result: pa.DataType, stored: pa.DataType | None
) -> None:
    assert storable_type(result) == stored


def test_a_known_timestamp_stays_one_inside_of_a_struct_that_grows() -> None:
    current = pa.struct([("at", pa.timestamp("us", "UTC"))])
    result = pa.struct([("at", pa.timestamp("us", "UTC")), ("by", pa.timestamp("s"))])
    assert storable_type(result, current) == pa.struct(
        [("at", pa.timestamp("us", "UTC")), ("by", pa.string())]
    )


def test_endless_nesting_is_refused() -> None:
    nested: pa.DataType = pa.int64()
    for _ in range(TYPE_DEPTH_MAX):
        nested = pa.list_(nested)
    with pytest.raises(ColumnError, match="nested more than"):
        storable_type(nested)


def test_types_widen_only_where_they_may() -> None:
    assert merge_types("f", pa.int64(), pa.float64(), widen=True) == pa.float64()
    assert merge_types("f", pa.float64(), pa.int64(), widen=True) == pa.float64()
    with pytest.raises(ColumnError, match="field 'f' is a number where it was an integer before"):
        merge_types("f", pa.int64(), pa.float64(), widen=False)


def test_structs_merge_their_members_and_lists_their_items() -> None:
    one = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))
    other = pa.list_(pa.struct([("c", pa.bool_()), ("a", pa.float64())]))
    merged = pa.list_(pa.struct([("a", pa.float64()), ("b", pa.string()), ("c", pa.bool_())]))
    assert merge_types("f", one, other, widen=True) == merged
    with pytest.raises(ColumnError, match=r"field 'f\.a' is a string where it was an integer before"):
        merge_types("f", pa.struct([("a", pa.int64())]), pa.struct([("a", pa.string())]), widen=True)


def test_a_file_fits_a_table_that_has_more_but_no_other_types() -> None:
    table = pa.struct(
        [("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string()), ("d", pa.bool_())])))]
    )
    assert fits(pa.struct([("b", pa.list_(pa.struct([("d", pa.bool_())])))]), table)
    assert not fits(pa.struct([("a", pa.float64())]), table)
    assert not fits(pa.struct([("e", pa.int64())]), table)
    assert not fits(pa.int64(), pa.float64())


def test_tasks_together_find_no_more_columns_than_a_table_may_have() -> None:
    found = [{f"{task}-{number}": pa.int64() for number in range(COLUMNS_MAX)} for task in range(2)]
    merged = merge_found({"own": pa.string()}, {}, found)
    assert list(merged) == ["own", *list(found[0])[: COLUMNS_MAX - 1]]
