"""Encryption and login of connections to brokers, by settings with librdkafka's names; no other counts here.

`security.protocol` is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. Encryption takes `ssl.ca.location`,
`ssl.certificate.location`, `ssl.key.location`, `ssl.key.password` and
`ssl.endpoint.identification.algorithm`; a login takes `sasl.mechanism`, `sasl.username` and `sasl.password`.
They come from a file, so that no password is on a command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mainstem_registry.errors import StartupError
from mainstem_registry.properties_format import MalformedLine, read_properties
from mainstem_registry.tls import TlsFiles, client_context

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

ClientProperties = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Brokers:
    """Where the brokers are, and how to connect to them."""

    bootstrap_servers: str
    protocol: str = "PLAINTEXT"
    tls: TlsFiles | None = None
    """For the protocols with encryption."""
    mechanism: str | None = None
    """For the protocols with a login."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def arguments(self) -> dict[str, Any]:
        """What aiokafka's clients take."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            **self.login_arguments(self.username, self.password),
        }

    def login_arguments(self, username: str | None, password: str | None) -> dict[str, Any]:
        """What aiokafka's connections take, for the login of a user."""
        arguments: dict[str, Any] = {"security_protocol": self.protocol}
        if self.tls is not None:
            arguments["ssl_context"] = self.tls.context
        if self.mechanism is not None:
            arguments |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": username,
                "sasl_plain_password": password,
            }
        return arguments


def properties_of_file(path: Path) -> dict[str, str]:
    """The properties in a file; `properties_format` has its form.

    Raises:
        StartupError: the file cannot be read, or a line has another form.
    """
    try:
        return read_properties(path.read_text(encoding="utf-8"))
    except MalformedLine as error:
        raise StartupError(f"The client properties in {path} cannot be read: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise StartupError(f"The client properties in {path} cannot be read: {reason}.") from error


def brokers_of(bootstrap_servers: str, properties: ClientProperties) -> Brokers:
    """The brokers as the registry itself connects to them.

    Raises:
        StartupError: a property is missing or its value cannot be used.
    """
    brokers = login_brokers_of(bootstrap_servers, properties)
    if brokers.mechanism is None:
        return brokers
    for name in ("sasl.username", "sasl.password"):
        if not properties.get(name):
            raise StartupError(f"The client property {name} is missing; {brokers.protocol} needs it.")
    return Brokers(
        bootstrap_servers,
        brokers.protocol,
        brokers.tls,
        brokers.mechanism,
        properties["sasl.username"],
        properties["sasl.password"],
    )


def login_brokers_of(bootstrap_servers: str, properties: ClientProperties) -> Brokers:
    """The brokers without a user of the registry's own.

    Raises:
        StartupError: a property is missing or its value cannot be used.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise StartupError(f"security.protocol is {protocol!r}; write one of {', '.join(PROTOCOLS)}.")
    mechanism = None
    if protocol.startswith("SASL"):
        mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms")
        if mechanism not in MECHANISMS:
            raise StartupError(
                f"sasl.mechanism is {mechanism!r}; the registry logs in by {', '.join(MECHANISMS)}."
            )
    tls = _tls_files(properties) if protocol.endswith("SSL") else None
    return Brokers(bootstrap_servers, protocol, tls, mechanism)


def _tls_files(properties: ClientProperties) -> TlsFiles:
    authorities = _path(properties, "ssl.ca.location")
    checks_names = properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "https"

    return TlsFiles(
        client_context(authorities, checks_names=checks_names),
        authorities=authorities,
        certificate=_path(properties, "ssl.certificate.location"),
        key=_path(properties, "ssl.key.location"),
        key_password=properties.get("ssl.key.password", ""),
    )


def _path(properties: ClientProperties, name: str) -> Path | None:
    value = properties.get(name)
    return Path(value) if value else None
