"""Bounds of what a schema may cost: anyone who may register one decides its size and shape."""

from __future__ import annotations

from typing import Any, Final

import orjson

from mainstem_registry.errors import invalid_schema

TEXT_BYTES_MAX: Final = 1024 * 1024
"""Of one schema. A producer that registers needs far less; a topic's record is 1 MiB by default."""
DEPTH_MAX: Final = 100
"""Nested JSON values. Deeper ones would exhaust the stack of recursive functions."""
NODES_MAX: Final = 50_000
"""JSON values in one schema with all that it references."""
REFERENCES_MAX: Final = 200
"""Distinct versions that a schema references, directly or not."""
STEPS_MAX: Final = 100_000
"""Pairs of types that are looked at for one request, with however many versions: about a second."""
DEFAULT_STEPS_MAX: Final = 200_000
"""Pairs of a type and a part of a default value that are looked at for one schema."""


class Steps:
    """Counts the work of one request, or of one check of a schema.

    A schema may refer to its own types often, so that there are far more pairs to look at than it has types;
    the limit ends that.
    """

    def __init__(
        self, limit: int = STEPS_MAX, refusal: str = "it is too complex to be compared with others."
    ) -> None:
        self._left = limit
        self._refusal = refusal

    def take(self, count: int = 1) -> None:
        """Count steps.

        Raises:
            RegistryError: there were too many.
        """
        self._left -= count
        if self._left < 0:
            raise invalid_schema(self._refusal)


def load_json(text: str) -> Any:
    """The JSON value of a schema's text, within the limits.

    Raises:
        RegistryError: it is not JSON, or too deep, or too large.
    """
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) > TEXT_BYTES_MAX:
        raise invalid_schema(f"its text has {len(encoded)} bytes; {TEXT_BYTES_MAX} are allowed.")
    try:
        value = orjson.loads(encoded)
    except orjson.JSONDecodeError as error:
        raise invalid_schema(f"it is not JSON: {error}.") from None
    check_shape(value)
    return value


def check_shape(value: Any) -> None:
    """Refuse a value that is nested too deeply or has too many parts.

    Raises:
        RegistryError: it does.
    """
    level, depth, nodes = [value], 0, 0
    while level:
        depth += 1
        nodes += len(level)
        if depth > DEPTH_MAX:
            raise invalid_schema(f"it is nested deeper than {DEPTH_MAX} levels.")
        if nodes > NODES_MAX:
            raise invalid_schema(f"it has more than {NODES_MAX} parts.")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = below


def dump_json(value: Any, *, sort: bool = False) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else None).decode()
