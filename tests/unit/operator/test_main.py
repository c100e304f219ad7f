"""The operator's settings, from its environment."""

from __future__ import annotations

import pytest

from mainstem_operator.__main__ import Options


def test_times_and_ports_are_read_from_the_environment() -> None:
    options = Options.read({"RESYNC_S": "0.5", "HTTP_PORT": "9090"})
    assert (options.resync_seconds, options.http_port) == (0.5, 9090)
    assert (Options.read({}).resync_seconds, Options.read({}).http_port) == (120.0, 8080)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "1_0", " 5", "1e3", "٣"])
def test_a_time_that_is_no_plain_number_is_refused(text: str) -> None:
    """A resync of nan seconds would never come."""
    with pytest.raises(ValueError, match="RESYNC_S must be a number of seconds"):
        Options.read({"RESYNC_S": text})


@pytest.mark.parametrize("text", ["80.5", "65536", "-1", "8_080", "http"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HTTP_PORT must be a port from 0 to 65535"):
        Options.read({"HTTP_PORT": text})
