"""What the values of a topic mean: bytes to payload columns, a block of records at a time.

Formats: `raw` keeps a value as it is, in the column `value`. `json` (see `json_payload`) makes a column of
each field of an object, and so do `avro` (see `avro_payload`), `protobuf` (see `protobuf_payload`) and
`json-schema`, whose values begin with the id of their schema. A value that its format cannot read is not an
error of the load: it is dead, with a reason, and goes to the dead letters. A tombstone, the null value that
deletes a key (R5), is a row without payload.

Must not live here: where rows go, their days, or anything of the record but its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from mainstem_loader.arrow_arrays import Array, Int64s
from mainstem_loader.columns import Columns

RAW_COLUMN: Final = "value"


class PayloadFormat(StrEnum):
    """How the values of a topic are read."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json-schema"

    @property
    def needs_registry(self) -> bool:
        """Whether values name their schema by id."""
        return self in (PayloadFormat.AVRO, PayloadFormat.PROTOBUF, PayloadFormat.JSON_SCHEMA)


@dataclass(frozen=True, slots=True)
class ParsedPayload:
    """A block of values, read.

    `rows`: for each row of `columns` the position of its value in the block, rising. `columns` may have no
    column at all, and still as many rows as `rows`. `dead`: the positions of the other values, rising, and
    why.
    """

    rows: Int64s
    columns: pa.Table
    dead: Sequence[tuple[int, str]] = ()


class PayloadReader(Protocol):
    """Reads the values of one task, block after block; what it learns from one block holds for the next."""

    def parse(self, values: Array) -> ParsedPayload:
        """Read a block.

        Args:
            values: binary, null for tombstones.
        """
        ...

    def found_columns(self) -> Columns:
        """Columns that values had beyond those given to the reader, or wider."""
        ...

    def untyped_columns(self) -> Columns:
        """Columns of which the reader has put values to `_rest`, because they or parts of them had no type
        yet; with the type of the column then, `pa.null()` for none. With another type they may fit.
        """
        ...

    def wider_columns(self) -> Columns:
        """Columns that were given to the reader, with doubles in the places of integers for which values had
        other numbers. With these types they would have been loaded whole.
        """
        ...


class RawPayload:
    """Values as they are."""

    def parse(self, values: Array) -> ParsedPayload:
        return ParsedPayload(np.arange(len(values)), pa.table({RAW_COLUMN: values}))

    def found_columns(self) -> Columns:
        return {RAW_COLUMN: pa.binary()}

    def untyped_columns(self) -> Columns:
        return {}

    def wider_columns(self) -> Columns:
        return {}
