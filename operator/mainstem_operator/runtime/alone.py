"""One object at a time: what is refused of one holds up no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from mainstem_operator.api.fields import InvalidSpec
from mainstem_operator.brokers.errors import BrokersRefused
from mainstem_operator.kubernetes.client import Refused

logger = structlog.get_logger(__name__)


class Alone:
    """Takes note of what Kubernetes or the brokers refuse of an object, so that a look goes on with the next
    one.

    Errors that concern all objects, such as brokers that do not answer, end the look.

    Attributes:
        refused: the namespaces and names of the objects, to be looked at again soon. One that is gone is not
            among them.
        defects: why those of them are not handled on which the operator itself has failed.
    """

    def __init__(self) -> None:
        self.refused: set[tuple[str, str]] = set()
        self.defects: dict[tuple[str, str], str] = {}

    @contextmanager
    def __call__(self, key: tuple[str, str]) -> Iterator[None]:
        """A block that handles the object with this namespace and name, and nothing else."""
        try:
            with self.for_defects(key):
                yield
        except (Refused, BrokersRefused, InvalidSpec) as error:
            if isinstance(error, Refused) and error.missing:
                return
            logger.warning("object refused", key=key, error=str(error))
            self.refused.add(key)

    @contextmanager
    def for_defects(self, key: tuple[str, str]) -> Iterator[None]:
        """The same where refusals are handled otherwise."""
        try:
            yield
        except _DEFECTS as error:
            logger.exception("object not handled, by a defect", key=key)
            self.refused.add(key)
            self.defects[key] = defect(error)


_DEFECTS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What Python raises where something is not as the code expects it."""


def defect(error: Exception) -> str:
    """What a status says of an object on which the operator has failed."""
    return (
        f"The operator failed by a defect and tries again: {type(error).__name__}: {error}."
        " Its log has the details."
    )
