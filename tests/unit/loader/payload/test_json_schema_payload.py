"""JSON behind the id of a JSON Schema (R31)."""

from __future__ import annotations

import pyarrow as pa

from mainstem_loader.columns import ColumnError
from mainstem_loader.payload.json_schema_payload import JsonSchemaPayload


def check_id(schema_id: int) -> None:
    if schema_id != 1:
        raise ColumnError(f"the schema registry does not know the id {schema_id} of a schema")


def test_the_id_is_checked_and_taken_off_and_the_rest_is_json() -> None:
    reader = JsonSchemaPayload({}, check_id)
    current = b"\0\0\0\0\1"
    values = [
        current + b'{"x": 1}',
        b'{"x": 2}',
        None,
        b"\0\0\0\0\2{}",
        current + b"{",
        current + b'{"x": 3}',
    ]
    parsed = reader.parse(pa.array(values, pa.binary()))
    assert parsed.rows.tolist() == [0, 2, 5]
    assert parsed.columns.to_pylist() == [{"x": 1}, {"x": None}, {"x": 3}]
    assert [row for row, _ in parsed.dead] == [1, 3, 4]
    assert "begins with byte 123" in parsed.dead[0][1]
    assert "does not know the id 2" in parsed.dead[1][1]
    assert reader.found_columns() == {"x": pa.int64()}


def test_a_block_without_any_usable_value_has_no_rows() -> None:
    parsed = JsonSchemaPayload({}, check_id).parse(pa.array([b"", b"\0\0\0\0\2{}"], pa.binary()))
    assert parsed.rows.tolist() == []
    assert [row for row, _ in parsed.dead] == [0, 1]
