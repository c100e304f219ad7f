"""Which results of transforms can be rows of a table (R34)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mainstem_loader.columns import HEADERS_TYPE, TIMESTAMP_TYPE
from mainstem_loader.errors import TransformError
from mainstem_loader.transform.result_columns import result_columns

PLACE: dict[str, pa.DataType] = {"_partition": pa.int32(), "_offset": pa.int64()}


def test_columns_of_records_keep_their_meaning_and_others_become_the_tables() -> None:
    found = result_columns(
        pa.schema({**PLACE, "_timestamp": TIMESTAMP_TYPE, "day": pa.date32(), "n": pa.int32()}), {}
    )
    assert found.own == {**PLACE, "_timestamp": TIMESTAMP_TYPE, "day": pa.date32()}
    assert found.others == found.of_files == {"n": pa.int32()}
    assert found.names_records


def test_an_aggregate_names_no_records() -> None:
    found = result_columns(pa.schema({"n": pa.int64()}), {})
    assert not found.names_records


def test_numbers_take_the_wider_type_of_the_table() -> None:
    narrow: dict[str, pa.DataType] = {"a": pa.int32(), "b": pa.float32(), "c": pa.int16()}
    table: dict[str, pa.DataType] = {"a": pa.int64(), "b": pa.float64(), "c": pa.int16()}
    assert result_columns(pa.schema(narrow), table).others == table


def test_headers_and_rest_are_columns_of_files() -> None:
    headers = pa.list_(pa.field("element", HEADERS_TYPE.value_type))
    found = result_columns(pa.schema({"_headers": headers, "_rest": pa.string()}), {})
    assert found.of_files == {"_headers": HEADERS_TYPE, "_rest": pa.string()}


def test_structs_may_get_members_and_lack_some() -> None:
    wider = pa.struct([("a", pa.int64()), ("b", pa.string())])
    narrower = pa.struct([("a", pa.int64())])
    assert result_columns(pa.schema({"s": wider}), {"s": narrower}).others == {"s": wider}
    assert result_columns(pa.schema({"s": narrower}), {"s": wider}).others == {"s": narrower}


@pytest.mark.parametrize(
    ("result", "table", "reason"),
    [
        ({}, {}, "returns no columns"),
        ({f"c{number}": pa.int64() for number in range(1001)}, {}, "1001 columns"),
        ({"_partition": pa.int32()}, {}, "only one of _partition and _offset"),
        ({"_offset": pa.int64()}, {}, "only one of _partition and _offset"),
        ({**PLACE, "_timestamp": pa.string()}, {}, "column _timestamp as string"),
        ({"_key": pa.string()}, {}, "column _key as string"),
        ({"day": pa.string()}, {}, "column day as string"),
        ({"_topic_id": pa.string()}, {}, "the loader's own"),
        ({"_Run": pa.string()}, {}, "the loader's own"),
        ({"Day": pa.date32()}, {}, "the loader's own"),
        ({"count(1)": pa.int64()}, {}, "cannot be the name of a column"),
        ({"a": pa.int64(), "A": pa.int64()}, {}, "case alone"),
        ({"a": pa.int64()}, {"A": pa.int64()}, "case alone"),
        ({"a": pa.string()}, {"a": pa.int64()}, "column a as string, and the table has it as int64"),
        ({"a": pa.int64()}, {"a": pa.int32()}, "column a as int64, and the table has it as int32"),
        ({"a": pa.timestamp("us")}, {}, "time zone"),
        ({"a": pa.map_(pa.string(), pa.string())}, {}, "to_json"),
        ({"a": pa.null()}, {}, "CAST"),
        ({"a": pa.duration("us")}, {}, "no type"),
        ({"a": pa.list_(pa.struct([("b", pa.timestamp("us"))]))}, {}, "column a.b"),
    ],
)
def test_what_a_table_cannot_hold_is_refused_with_the_column_and_a_way_out(
    result: dict[str, pa.DataType], table: dict[str, pa.DataType], reason: str
) -> None:
    with pytest.raises(TransformError, match=reason.replace("(", r"\(")):
        result_columns(pa.schema(result), table)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(TransformError, match="two columns n"):
        result_columns(pa.schema([("n", pa.int64()), ("n", pa.int64())]), {})
