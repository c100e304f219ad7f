"""Which examples property tests try."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants


def use_the_same_constants() -> None:
    """Keep the constants of modules out of examples that are to be the same everywhere.

    Hypothesis draws some values from the constants of all modules that are imported so far. Which ones these
    are depends on the tests that the process ran before, and any change of the code changes them. Tests with
    new random examples go on to use them. There is no public setting for this.
    """
    of_modules, none = providers._get_local_constants, Constants()

    def constants() -> Constants:
        present = settings.default
        return none if present is not None and present.derandomize else of_modules()

    providers._get_local_constants = constants
