"""JSON values with the id of their JSON Schema, to columns.

The id is checked and taken off; the rest is read as any JSON (`json_payload`). The schema's own types are not
used: JSON says what each value is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import Array, cut_binary, null_flags, of_numbers
from mainstem_loader.columns import Columns
from mainstem_loader.payload.json_payload import JsonPayload
from mainstem_loader.payload.readers import ParsedPayload
from mainstem_loader.payload.schema_ids import SchemasById, split_ids


class JsonSchemaPayload:
    """Reads JSON objects behind the id of a schema.

    Args:
        fixed: as of `JsonPayload`.
        check_id: raises ColumnError, with the reason, if an id is not of a JSON Schema.
    """

    def __init__(self, fixed: Columns, check_id: Callable[[int], None]) -> None:
        self._json = JsonPayload(fixed)
        self._schemas = SchemasById(check_id)

    def found_columns(self) -> Columns:
        return self._json.found_columns()

    def untyped_columns(self) -> Columns:
        return self._json.untyped_columns()

    def wider_columns(self) -> Columns:
        return self._json.wider_columns()

    def parse(self, values: Array) -> ParsedPayload:
        identified = split_ids(values)
        dead = list(identified.dead)
        has_schema = np.ones(len(identified.rows), dtype=np.bool_)
        for schema_id, refusal in self._schemas.of_block(identified.ids):
            if refusal is not None:
                of_id = identified.ids == schema_id
                has_schema &= ~of_id
                dead += [(int(row), str(refusal)) for row in identified.rows[of_id]]
        count = int(np.count_nonzero(has_schema))
        edges = np.zeros(2 * count + 1, dtype=np.int32)
        edges[0:-1:2], edges[1::2] = identified.begins[has_schema], identified.ends[has_schema]
        edges[-1] = edges[-2] if count else 0
        texts = cut_binary(identified.data.tobytes(), edges).take(of_numbers(np.arange(0, 2 * count, 2)))
        tombstones = np.flatnonzero(null_flags(values))
        rows = np.concatenate((identified.rows[has_schema], tombstones))
        order = np.argsort(rows, kind="stable")
        bodies = pa.concat_arrays([texts, pa.nulls(len(tombstones), pa.binary())]).take(of_numbers(order))
        parsed = self._json.parse(bodies)
        place = rows[order]
        dead += [(int(place[row]), reason) for row, reason in parsed.dead]
        return ParsedPayload(place[parsed.rows], parsed.columns, sorted(dead))
