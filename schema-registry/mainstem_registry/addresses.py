"""Where an instance listens, and the URL by which the other instances know it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from mainstem_registry.errors import StartupError
from mainstem_registry.whole_numbers import is_whole_number

_SCHEMES: Final = ("http", "https")


def listener_of(listen: str) -> tuple[str, int]:
    """The host, without the brackets of IPv6 and empty for all addresses, and the port of `--listen`.

    Raises:
        StartupError: it has another form.
    """
    host, _, port = listen.rpartition(":")
    if not (is_whole_number(port) and int(port) < 65_536):
        raise StartupError(f"--listen {listen!r} is not of the form HOST:PORT, such as 127.0.0.1:8081.")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def advertised_url(listen: str, advertised: str | None, *, is_encrypted: bool = False) -> str:
    """The URL that names this instance in the election, without a slash at its end.

    Instances that have the same URL would each believe to lead, so an address that says nothing about the
    machine is none.

    Raises:
        StartupError: `advertised` is no URL, or not an encrypted one where it has to be, or is missing where
            `listen` stands for all addresses.
    """
    scheme = "https" if is_encrypted else "http"
    if advertised is None:
        host, port = listener_of(listen)
        if _is_wildcard(host) or port == 0:
            raise StartupError(
                f"--listen {listen} does not say at which address the other instances reach this one: add"
                f" --advertised-url {scheme}://HOST:{port or 8081} with this machine's name or address, a"
                " different one for each instance."
            )
        return f"{scheme}://{listen}"
    try:
        url = urlsplit(advertised)
        is_usable = url.scheme in _SCHEMES and url.hostname and not _is_wildcard(url.hostname)
    except ValueError:
        is_usable = False
    if not is_usable or url.username is not None or url.query or url.fragment:
        raise StartupError(
            f"--advertised-url {advertised!r} is not a URL at which other instances reach this one: write"
            " http://HOST:PORT or https://HOST:PORT."
        )
    if is_encrypted and url.scheme != "https":
        raise StartupError(
            f"--advertised-url {advertised} has to begin with https:// beside --tls-certificate."
        )
    return advertised.rstrip("/")


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ip_address(host).is_unspecified
    except ValueError:
        return host == "*"
