"""Quantities of Kubernetes as numbers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from mainstem_operator.api.fields import InvalidSpec

_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)
_MULTIPLES: Final[Mapping[str, Fraction | int]] = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 10**3),
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


def quantity(text: Any) -> Fraction:
    """The number that a Kubernetes quantity (`10Gi`, `500m`, `3`, `5e9`) stands for.

    Raises:
        InvalidSpec: it is none.
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise InvalidSpec(f"{text!r} is not a quantity such as 10Gi or 500m.")
    exponent = Fraction(f"1e{match[3] or 0}")
    return Fraction(match[1]) * exponent * _MULTIPLES.get(match[2] or "", 1)
