"""Standard input that the parent process has closed (`<&-`), for which Python has no object."""

from __future__ import annotations

import io
from typing import NoReturn

from mainstem.errors import BadInput


class ClosedInput(io.StringIO):
    """No terminal. Every attempt to read raises BadInput."""

    def read(self, _size: int | None = -1, /) -> NoReturn:
        raise BadInput("There is nothing to read: standard input is closed.")

    def readline(self, _size: int | None = -1, /) -> NoReturn:
        self.read()

    @property
    def buffer(self) -> NoReturn:
        """Its bytes."""
        self.read()
