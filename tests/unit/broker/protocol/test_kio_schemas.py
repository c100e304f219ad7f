from __future__ import annotations

import struct
from dataclasses import fields
from typing import Any

import pytest
from tests.unit.broker.protocol import schema_strategies
from tests.unit.broker.protocol.schema_strategies import REQUESTS, Shape, request_schema, response_schema

from mainstem_broker.protocol.kio_schemas import FIXED, FIXED_BYTES, default_of, is_struct, shape_of

SCHEMAS = [make(key, version) for key, version in REQUESTS for make in (request_schema, response_schema)]


def every_field(schema: Any) -> Any:
    for field in fields(schema):
        yield field
        shape = Shape.of(field)
        if shape.is_struct:
            yield from every_field(shape.inner)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: f"{schema.__name__}-v{schema.__version__}")
def test_a_field_is_what_its_schema_says(schema: Any) -> None:
    for field in every_field(schema):
        shape = Shape.of(field)
        assert shape_of(field) == (shape.inner, shape.repeated, shape.optional)
        assert is_struct(shape.inner) == shape.is_struct
        if not shape.is_struct:
            assert shape.kafka_type in {*FIXED_BYTES, "string", "bytes", "records"}


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: f"{schema.__name__}-v{schema.__version__}")
def test_a_field_that_is_left_out_has_its_default(schema: Any) -> None:
    for field in every_field(schema):
        if Shape.of(field).kafka_type != "timedelta_i32":  # every version of a request has those
            assert default_of(field) == schema_strategies.default_of(field)


def test_types_of_fixed_width_are_as_wide_as_their_letter() -> None:
    assert {kind: struct.calcsize(">" + letter) for kind, letter in FIXED.items()} == {
        kind: size for kind, size in FIXED_BYTES.items() if kind != "uuid"
    }
    assert FIXED_BYTES["uuid"] == 16
