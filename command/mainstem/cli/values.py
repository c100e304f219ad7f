"""Values as text for people: numbers, sizes, times, and text that cannot control the terminal."""

from __future__ import annotations

from mainstem.records.text import printable


def cell(value: object, separators: bool = True) -> str:
    """One value as text for a person; `separators` are those between thousands."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}" if separators else str(value)
        case float():
            return _float_text(value) if separators else repr(value)
        case bytes():
            return printable(value.decode("utf-8", "backslashreplace"))
        case list() | tuple() | set() | frozenset():
            return printable(", ".join(str(item) for item in value)) or "-"
        case _:
            return printable(str(value))


def size_text(size_bytes: int | None) -> str | None:
    """A number of bytes in the largest unit that it fills; units are powers of 1,000."""
    if size_bytes is None:
        return None
    size, units = float(size_bytes), ["B", "KB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:,.0f} B" if units[0] == "B" else f"{size:,.1f} {units[0]}"


def _float_text(value: float) -> str:
    """At most three decimals, of numbers of any size; a number beyond 10^16 has an exponent."""
    return f"{round(value, 3):,}".removesuffix(".0") if abs(value) >= 0.001 else f"{value:.3g}"
