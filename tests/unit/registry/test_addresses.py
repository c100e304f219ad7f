"""The URL by which instances know each other (R31)."""

from __future__ import annotations

import pytest

from mainstem_registry.addresses import advertised_url, listener_of
from mainstem_registry.errors import StartupError


@pytest.mark.parametrize("listen", ["0.0.0.0:8081", "[::]:8081", ":8081", "*:8081", "10.0.0.7:0"])
def test_an_address_of_all_machines_needs_an_advertised_url(listen: str) -> None:
    """Instances with the same URL would each believe to lead (R31)."""
    with pytest.raises(StartupError, match=r"add --advertised-url http://HOST:8081 .* different one"):
        advertised_url(listen, None)
    assert advertised_url(listen, "http://registry-1:8081/") == "http://registry-1:8081"


def test_the_address_of_a_machine_is_its_url() -> None:
    assert advertised_url("10.0.0.7:8081", None) == "http://10.0.0.7:8081"
    assert advertised_url("[fd00::7]:8081", None) == "http://[fd00::7]:8081"


@pytest.mark.parametrize(
    "url",
    [
        "registry:8081",
        "ftp://registry",
        "http://",
        "http://0.0.0.0:8081",
        "http://[::1",
        "http://a:b@c",
        "http://a?b",
    ],
)
def test_an_advertised_url_that_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(StartupError, match="write http://HOST:PORT"):
        advertised_url("127.0.0.1:8081", url)


def test_a_listener_is_a_host_and_a_port() -> None:
    assert listener_of("[::1]:8081") == ("::1", 8081)
    assert listener_of(":8081") == ("", 8081)
    for listen in ("127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", "127.0.0.1:"):
        with pytest.raises(StartupError, match="not of the form HOST:PORT"):
            listener_of(listen)
