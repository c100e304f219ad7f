"""Encryption and login of a connection, by settings with librdkafka's names; no other setting counts here.

`security.protocol` is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. Encryption takes `ssl.ca.location` or
`ssl.ca.pem`, `ssl.certificate.location`, `ssl.key.location`, `ssl.key.password` and
`ssl.endpoint.identification.algorithm`; a login takes `sasl.mechanism`, `sasl.username` and `sasl.password`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Final

from mainstem_loader.errors import SettingsError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN: Final = 4096
"""RFC 7677, section 4. A broker that announces fewer gets a proof by which the password is easy to guess."""
ITERATIONS_MAX: Final = 1_000_000
"""As brokers accept of each other: each iteration costs a hash, so a false broker could block the process."""
_CHALLENGE: Final = re.compile(r"r=([^,]+),s=([^,]+),i=([0-9]{1,9})(?:,.*)?", re.DOTALL)

ClientProperties = Mapping[str, str]
Authenticate = Callable[[bytes], bytes]
"""Sends a message of the mechanism, and returns the broker's answer."""


def check_client_properties(properties: ClientProperties) -> None:
    """Refuse what a connection would fail by later.

    Raises:
        SettingsError: a property is missing or its value cannot be used.
    """
    protocol = _protocol(properties)
    if protocol not in PROTOCOLS:
        raise SettingsError(f"security.protocol is {protocol!r}; write one of {', '.join(PROTOCOLS)}.")
    if is_encrypted(properties):
        _context(properties)
    mechanism = mechanism_of(properties)
    if mechanism is None:
        return
    if mechanism != "PLAIN" and mechanism not in _HASHES:
        raise SettingsError(
            f"sasl.mechanism is {mechanism!r}; the loader logs in by {', '.join(['PLAIN', *_HASHES])}."
        )
    for name in ("sasl.username", "sasl.password"):
        if name not in properties:
            raise SettingsError(f"The client property {name} is missing; {protocol} needs it.")


def is_encrypted(properties: ClientProperties) -> bool:
    return _protocol(properties).endswith("SSL")


def mechanism_of(properties: ClientProperties) -> str | None:
    """How to log in; None if the protocol has no login."""
    if not _protocol(properties).startswith("SASL"):
        return None
    return properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"


def encrypted(connection: socket.socket, host: str, properties: ClientProperties) -> socket.socket:
    """The connection, encrypted, if the protocol asks for it.

    Raises:
        OSError: the handshake failed.
        SettingsError: a file cannot be used.
    """
    if not is_encrypted(properties):
        return connection
    return _context(properties).wrap_socket(connection, server_hostname=host)


def log_in(properties: ClientProperties, mechanism: str, authenticate: Authenticate) -> None:
    """The messages of a mechanism.

    Raises:
        ConnectionRefusedError: the other side is not the broker that it should be.
    """
    user, password = properties["sasl.username"], properties["sasl.password"]
    if mechanism == "PLAIN":
        authenticate(f"\0{user}\0{password}".encode())
        return
    # RFC 5802 and RFC 7677, without channel binding.
    hash_name = _HASHES[mechanism]
    nonce = secrets.token_urlsafe(24)
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    challenge = authenticate(f"n,,{bare}".encode()).decode(errors="replace")
    parts = _CHALLENGE.fullmatch(challenge)
    if parts is None or not parts[1].startswith(nonce):
        raise ConnectionRefusedError("The broker's answer to the login is not SCRAM.")
    iterations = int(parts[3])
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ConnectionRefusedError(
            f"The broker requests {iterations} iterations of SCRAM; {ITERATIONS_MIN} to {ITERATIONS_MAX} are"
            " accepted, as others are not safe."
        )
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), base64.b64decode(parts[2]), iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    unproved = f"c=biws,r={parts[1]}"
    signed = f"{bare},{challenge},{unproved}".encode()
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = authenticate(f"{unproved},p={base64.b64encode(proof).decode()}".encode())
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    expected = b"v=" + base64.b64encode(hmac.digest(server_key, signed, hash_name))
    if not hmac.compare_digest(answer, expected):
        raise ConnectionRefusedError("The broker does not know the user's password.")


def _protocol(properties: ClientProperties) -> str:
    return properties.get("security.protocol", "PLAINTEXT").upper()


def _context(properties: ClientProperties) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(
            cafile=properties.get("ssl.ca.location") or None, cadata=properties.get("ssl.ca.pem") or None
        )
        if properties.get("ssl.endpoint.identification.algorithm", "https").lower() != "https":
            context.check_hostname = False
        if chain := properties.get("ssl.certificate.location"):
            password = properties.get("ssl.key.password", "")
            context.load_cert_chain(chain, properties.get("ssl.key.location") or None, lambda: password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingsError(
            f"A client property that begins with ssl. cannot be used ({reason}); it names a file in PEM."
        ) from error
    return context
