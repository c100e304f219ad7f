"""Whether two texts are the same value of a setting of brokers or topics.

Brokers print the value that they have parsed, not the text that was sent: who compares texts sets `False`
again and again where `false` is printed. Must not live here: which settings there are.
"""

from __future__ import annotations

import re
from decimal import Decimal


def same_value(present: str | None, wanted: str | None) -> bool:
    """Whether brokers understand both texts alike; None is no value."""
    return present == wanted or (
        present is not None and wanted is not None and _as_value(present) == _as_value(wanted)
    )


def _as_value(text: str) -> str | Decimal | tuple[str, ...]:
    """A boolean without case, a number, or a list without blanks; the order of no list means anything."""
    stripped = text.strip()
    if stripped.lower() in ("true", "false"):
        return stripped.lower()
    if re.fullmatch(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?", stripped):
        return Decimal(stripped)
    return tuple(sorted(item.strip() for item in stripped.split(",")))
