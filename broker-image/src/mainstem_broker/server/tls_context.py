"""TLS contexts from settings: of a listener, and of connections to other brokers.

Files with keys and certificates are read again when they change, without a restart. Connections that exist
keep what they began with. A file that cannot be used changes nothing, and is reported.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from mainstem_broker.config.listener_config import ListenerConfig
from mainstem_broker.errors import StartupError

logger = structlog.get_logger(__name__)

PEM_BYTES_MAX: Final = 4 * 1024 * 1024
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTHENTICATION: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_Signature = tuple[tuple[int, int, int] | None, ...]


class TlsContext:
    """The present `context` for new connections by the settings of one listener."""

    def __init__(self, config: ListenerConfig, client_authentication: str | None = None) -> None:
        """Read the files. `client_authentication` is `ssl.client.auth` of a listener; None is for clients.

        Raises:
            StartupError: a setting or a file cannot be used; the message says which.
        """
        self._config = config
        self._client_authentication = client_authentication
        key, trust = (config.optional_string(f"ssl.{store}.location") for store in ("keystore", "truststore"))
        self._key_file = None if key is None else Path(key)
        self._trust_file = None if trust is None else Path(trust)
        self._signature = self._signature_of_files()
        self._refused: _Signature | None = None
        self.context = self._load()

    def reload_if_changed(self) -> None:
        """To be called periodically."""
        signature = self._signature_of_files()
        if signature in (self._signature, self._refused):
            return
        try:
            self.context = self._load()
        except StartupError as error:
            # Also between the writes of a key and its certificate: the next change tries again.
            self._refused = signature
            logger.warning(
                "certificates not reloaded",
                listener=self._config.listener,
                reason=str(error),
            )
            return
        self._signature, self._refused = signature, None
        logger.info(
            "certificates reloaded",
            listener=self._config.listener,
            use="connections to brokers" if self._client_authentication is None else "clients",
        )

    def _signature_of_files(self) -> _Signature:
        """What differs when a file was written, or replaced, also by the swap of a symbolic link above it."""
        paths = [] if self._key_file is None else _key_parts(self._key_file)
        if self._trust_file is not None:
            paths.append(_trust_part(self._trust_file))
        return tuple(_signature_of(path) for path in paths)

    def _load(self) -> ssl.SSLContext:
        config = self._config
        is_server = self._client_authentication is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        versions = [_VERSIONS[name] for name in config.items("ssl.enabled.protocols")]
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        self._restrict_ciphers(context)
        if self._client_authentication is not None:
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0  # each connection shows its certificate anew
            context.verify_mode = _CLIENT_AUTHENTICATION[self._client_authentication]
        else:
            context.check_hostname = config.string("ssl.endpoint.identification.algorithm") == "https"
        self._load_key(context)
        self._load_trust(context)
        return context

    def _restrict_ciphers(self, context: ssl.SSLContext) -> None:
        suites = self._config.items("ssl.cipher.suites")
        if not suites:
            return
        older = [openssl_name(suite) for suite in suites if "_WITH_" in suite]
        try:
            if older:
                context.set_ciphers(":".join(older))
            else:
                context.minimum_version = ssl.TLSVersion.TLSv1_3
            if len(older) == len(suites):
                context.maximum_version = ssl.TLSVersion.TLSv1_2
        except ssl.SSLError:
            raise StartupError(
                f"ssl.cipher.suites names none that OpenSSL has: {', '.join(suites)}. Write IANA names, such"
                " as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384."
            ) from None

    def _load_key(self, context: ssl.SSLContext) -> None:
        config = self._config
        password = config.optional_string("ssl.key.password") or ""
        if self._key_file is not None:
            pem = "\n".join(_read(path, "ssl.keystore.location") for path in _key_parts(self._key_file))
            source = f"ssl.keystore.location ({self._key_file})"
        else:
            chain = config.optional_string("ssl.keystore.certificate.chain")
            key = config.optional_string("ssl.keystore.key")
            if chain is None or key is None:
                if self._client_authentication is None and chain is None and key is None:
                    return
                raise StartupError(
                    f"The listener {config.listener} has no certificate: set ssl.keystore.location, or"
                    " ssl.keystore.certificate.chain and ssl.keystore.key."
                )
            pem, source = f"{key}\n{chain}\n", "ssl.keystore.key with ssl.keystore.certificate.chain"
        try:
            with _as_file(in_lines(pem)) as path:
                # Without a password OpenSSL would ask the terminal for that of an encrypted key.
                context.load_cert_chain(path, password=lambda: password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise StartupError(
                f"{source} cannot be used ({_reason(error)}): it needs a private key and its certificate"
                " chain in PEM, and ssl.key.password if the key is encrypted."
            ) from None

    def _load_trust(self, context: ssl.SSLContext) -> None:
        config = self._config
        if self._trust_file is not None:
            path = _trust_part(self._trust_file)
            pem, source = _read(path, "ssl.truststore.location"), f"ssl.truststore.location ({path})"
        else:
            inline = config.optional_string("ssl.truststore.certificates")
            if inline is None:
                if self._client_authentication is None:
                    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
                elif context.verify_mode != ssl.CERT_NONE:
                    raise StartupError(
                        f"The listener {config.listener} has ssl.client.auth, but no certificates to trust:"
                        " set ssl.truststore.location or ssl.truststore.certificates."
                    )
                return
            pem, source = inline, "ssl.truststore.certificates"
        try:
            context.load_verify_locations(cadata=in_lines(pem))
        except (ssl.SSLError, ValueError) as error:
            raise StartupError(
                f"{source} cannot be used ({_reason(error)}): it needs certificates in PEM."
            ) from None


def in_lines(pem: str) -> str:
    """PEM as OpenSSL reads it: each block on lines of its own, in ASCII.

    Kafka's `DefaultSslEngineFactory` ignores white space in PEM, and lines that a backslash joins in a file
    of properties have no line ends. Comments between blocks may have any characters.

    Raises:
        ValueError: a block is cut off. OpenSSL would not see one that has no lines.
    """
    lines, count = _BLOCK.subn(_block_in_lines, pem)
    if count != pem.count("-----BEGIN "):
        raise ValueError("a block has no end")
    return lines.encode("ascii", "replace").decode()


def _block_in_lines(block: re.Match[str]) -> str:
    label, body = block.groups()
    if ":" not in body:  # otherwise it begins with headers, each on a line (RFC 1421)
        digits = "".join(body.split())
        lines = (digits[start : start + 64] for start in range(0, len(digits), 64))
        body = "\n{}\n".format("\n".join(lines))
    return f"\n-----BEGIN {label}-----{body}-----END {label}-----\n"


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a cipher suite of TLS 1.2 with an IANA name."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    for number in ("128", "256"):
        cipher = cipher.replace(f"AES_{number}", f"AES{number}")
    cipher = cipher.replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    prefix = "" if exchange == "RSA" else f"{exchange}-"
    return f"{prefix}{cipher}".replace("_", "-")


def _key_parts(location: Path) -> list[Path]:
    """The files of a key store: itself, or those of a directory as Kubernetes mounts a Secret of type TLS."""
    return [location / "tls.key", location / "tls.crt"] if location.is_dir() else [location]


def _trust_part(location: Path) -> Path:
    return location / "ca.crt" if location.is_dir() else location


def _signature_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read(path: Path, setting: str) -> str:
    try:
        with path.open("rb") as file:
            return file.read(PEM_BYTES_MAX).decode("ascii", "replace")
    except OSError as error:
        raise StartupError(f"{setting} ({path}) cannot be read: {error.strerror}.") from None


@contextmanager
def _as_file(pem: str) -> Iterator[str]:
    """A file with this content that only this process can read: OpenSSL takes keys from nothing else."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("key")
        try:
            os.write(descriptor, pem.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem.encode())
        file.flush()
        yield file.name


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return error.strerror or "unknown reason" if isinstance(error, OSError) else str(error)
