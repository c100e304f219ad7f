"""Whole numbers as people and Java write them: digits of ASCII, without a sign, blanks or underscores.

`int` takes more than these for a number, and raises an error at more than 4300 digits. So nothing else in
this package asks whether a text is a number.
"""

from __future__ import annotations

from typing import Final

DIGITS_MAX: Final = 20
"""No number of 64 bits has more, and names of files have as many, with zeros in front."""


def is_whole_number(text: str) -> bool:
    """Whether `text` is a number of at most `DIGITS_MAX` digits, which `int` reads."""
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
