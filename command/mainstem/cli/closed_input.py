"""Standard input that the parent process has closed (`<&-`), for which Python has no object."""

from __future__ import annotations

import io
from typing import NoReturn

from mainstem.errors import BadInput


class ClosedInput(io.TextIOBase):
    """No terminal. Every attempt to read raises BadInput."""

    def isatty(self) -> bool:
        return False

    def read(self, _size: int | None = -1, /) -> NoReturn:
        raise BadInput("There is nothing to read: standard input is closed.")

    readline = read  # type: ignore[assignment]  # TextIOBase's has a narrower parameter
