"""Settings files, by the errors of settings."""

from __future__ import annotations

from mainstem_broker.errors import InvalidSetting
from mainstem_broker.properties_format import MalformedLine, read_properties


def parse_properties(text: str) -> dict[str, str]:
    """Read a `.properties` file.

    Raises:
        InvalidSetting: a line has another form than name=value. The message names the line, and does not
            quote it.
    """
    try:
        return read_properties(text)
    except MalformedLine as error:
        raise InvalidSetting(str(error)) from error
