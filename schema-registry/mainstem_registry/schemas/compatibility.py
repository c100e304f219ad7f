"""Compatibility levels: which earlier versions a new schema is compared with, and in which direction."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from mainstem_registry.errors import invalid_compatibility
from mainstem_registry.schemas.limits import Steps


class Compatibility(Enum):
    """A level. Backward: the new schema reads old data; forward: old schemas read new data."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all earlier versions count, not the newest alone."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def is_backward(self) -> bool:
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def is_forward(self) -> bool:
        return self.value.startswith(("FORWARD", "FULL"))


def parse_compatibility(name: object) -> Compatibility:
    """The level of a name in any case.

    Raises:
        RegistryError: there is none.
    """
    if not isinstance(name, str) or name.upper() not in Compatibility.__members__:
        raise invalid_compatibility(name)
    return Compatibility[name.upper()]


def compatibility_problems(
    level: Compatibility, candidate: Any, earlier: Sequence[tuple[int, Any]]
) -> list[str]:
    """Why a schema does not fit `level`; empty if it does.

    Args:
        level: the level.
        candidate: the new schema, parsed.
        earlier: (version, parsed schema) of all that count, oldest first. All are of the candidate's type.
    """
    compared = earlier if level.is_transitive else earlier[-1:]
    steps = Steps()
    problems: list[str] = []
    for version, schema in reversed(compared):
        if level.is_backward:
            problems += [
                f"the new schema cannot read data of version {version}: {problem}"
                for problem in candidate.problems_reading(schema, steps)
            ]
        if level.is_forward:
            problems += [
                f"version {version} cannot read data of the new schema: {problem}"
                for problem in schema.problems_reading(candidate, steps)
            ]
        if problems:
            break
    return problems
