"""Encryption and login for connections of our own, from the settings that the stock client is given.

librdkafka does this for its own connections; `raw_request.py` sends what it cannot.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import socket
import ssl
import struct
import tempfile
from collections.abc import Callable, Mapping
from typing import Final

from mainstem.errors import BadInput, ClusterRefused

_SASL_HANDSHAKE: Final = struct.pack(">hhih", 17, 1, 0, -1)
_SASL_AUTHENTICATE: Final = struct.pack(">hhih", 36, 0, 0, -1)
_FIRST_FIELDS: Final = struct.Struct(">ih")  # correlation id, error code
_CHALLENGE: Final = re.compile(r"r=([^,]+),s=([^,]+),i=([0-9]{1,9})(?:,.*)?", re.DOTALL)
_SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN: Final = 4096
"""RFC 7677, section 4. A broker that announces fewer gets a proof by which the password is easy to guess."""
ITERATIONS_MAX: Final = 1_000_000
"""As brokers accept of each other: each iteration costs a hash, so a false broker could block the process."""

Exchange = Callable[[bytes], bytes]
"""Sends a request without its size, and returns the answer without it."""


def secured(connection: socket.socket, host: str, properties: Mapping[str, str]) -> socket.socket:
    """The connection as `security.protocol` asks for it, encrypted by now; `log_in` has to follow.

    Raises:
        OSError: the handshake failed.
        BadInput: a property cannot be used.
    """
    if "ssl" not in properties.get("security.protocol", "plaintext").lower():
        return connection
    return _tls_context(properties).wrap_socket(connection, server_hostname=host)


def log_in(exchange: Exchange, properties: Mapping[str, str]) -> None:
    """Log in, if `security.protocol` asks for it.

    Raises:
        OSError: the connection broke.
        ClusterRefused: the broker does not accept the login.
        BadInput: a property is missing, or the mechanism is none of ours.
    """
    if "sasl" not in properties.get("security.protocol", "plaintext").lower():
        return
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
    user, password = properties.get("sasl.username"), properties.get("sasl.password")
    if mechanism != "PLAIN" and mechanism not in _SCRAM_HASHES:
        raise BadInput(
            f"The mechanism {mechanism} is not supported by this command: set sasl.mechanism to PLAIN,"
            " SCRAM-SHA-256 or SCRAM-SHA-512."
        )
    if user is None or password is None:
        raise BadInput(
            "A login needs the client properties sasl.username and sasl.password: write them into a file, and"
            " use -X @FILE."
        )
    name = mechanism.encode()
    answer = exchange(_SASL_HANDSHAKE + struct.pack(">h", len(name)) + name)
    if _FIRST_FIELDS.unpack_from(answer)[1] != 0:
        raise ClusterRefused(
            f"The broker does not take logins by {mechanism}: choose another sasl.mechanism."
        )
    if mechanism == "PLAIN":
        _authenticate(exchange, f"\0{user}\0{password}".encode())
    else:
        _log_in_by_scram(exchange, _SCRAM_HASHES[mechanism], user, password)


def _authenticate(exchange: Exchange, message: bytes) -> bytes:
    answer = exchange(_SASL_AUTHENTICATE + struct.pack(">i", len(message)) + message)
    _, error_code = _FIRST_FIELDS.unpack_from(answer)
    position = _FIRST_FIELDS.size
    (length,) = struct.unpack_from(">h", answer, position)
    position += 2
    if error_code != 0:
        text = answer[position : position + max(length, 0)].decode(errors="replace").rstrip(".")
        raise ClusterRefused(
            f"{text or 'The broker refuses the login'}: check sasl.username and sasl.password."
        )
    position += max(length, 0)
    (length,) = struct.unpack_from(">i", answer, position)
    return answer[position + 4 : position + 4 + max(length, 0)]


def _log_in_by_scram(exchange: Exchange, hash_name: str, user: str, password: str) -> None:
    """RFC 5802 and RFC 7677, without channel binding."""
    nonce = secrets.token_urlsafe(24)
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    challenge = _authenticate(exchange, f"n,,{bare}".encode()).decode(errors="replace")
    parts = _CHALLENGE.fullmatch(challenge)
    if parts is None or not parts[1].startswith(nonce):
        raise ClusterRefused("The broker's answer to the login is not SCRAM: is it a Kafka-protocol broker?")
    iterations = int(parts[3])
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ClusterRefused(
            f"The broker requests {iterations} iterations of SCRAM; {ITERATIONS_MIN} to {ITERATIONS_MAX} are"
            " accepted, as others are not safe. Check that the address is that of your broker; if it is, set"
            " the user's password again."
        )
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), base64.b64decode(parts[2]), iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    unproved = f"c=biws,r={parts[1]}"
    signed = f"{bare},{challenge},{unproved}".encode()
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = _authenticate(exchange, f"{unproved},p={base64.b64encode(proof).decode()}".encode())
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    expected = b"v=" + base64.b64encode(hmac.digest(server_key, signed, hash_name))
    if not hmac.compare_digest(answer, expected):
        raise ClusterRefused("The broker does not know the user's password: it may not be the one you mean.")


def _tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """By librdkafka's settings, with its defaults."""
    try:
        context = ssl.create_default_context(
            cafile=properties.get("ssl.ca.location") or None, cadata=properties.get("ssl.ca.pem") or None
        )
        if properties.get("ssl.endpoint.identification.algorithm", "https").lower() != "https":
            context.check_hostname = False
        if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        password = properties.get("ssl.key.password", "")
        chain, key = properties.get("ssl.certificate.location"), properties.get("ssl.key.location")
        if chain:
            context.load_cert_chain(chain, key or None, lambda: password)
        elif "ssl.certificate.pem" in properties and "ssl.key.pem" in properties:
            with tempfile.NamedTemporaryFile("w") as file:  # only its owner may read it
                file.write(f"{properties['ssl.key.pem']}\n{properties['ssl.certificate.pem']}\n")
                file.flush()
                context.load_cert_chain(file.name, password=lambda: password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"A client property that begins with ssl. cannot be used: {reason}.") from error
    return context
