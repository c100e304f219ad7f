"""Keys and certificates in PEM files, which are read again when they change.

A context stays the same object, so new connections use the new certificate, and listeners and clients need
not be made anew. Connections that exist keep what they began with.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from mainstem_registry.errors import StartupError

logger = structlog.get_logger(__name__)

RELOAD_S: Final = 5.0
"""Between two looks at the files. Kubernetes replaces those of a Secret within a minute or two."""

_Signature = tuple[tuple[int, int, int] | None, ...]


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def client_context(authorities: Path | None, *, checks_names: bool = True) -> Callable[[], ssl.SSLContext]:
    """Makes contexts that trust nothing yet, or the system's authorities if no file of them is given."""

    def new_context() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = checks_names
        if authorities is None:
            context.load_default_certs()
        return context

    return new_context


class TlsFiles:
    """One context and the files from which it was made.

    An authority that is no longer in the file of authorities stays trusted until the next start, as OpenSSL
    only adds to a context.
    """

    def __init__(
        self,
        new_context: Callable[[], ssl.SSLContext],
        *,
        authorities: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        key_password: str = "",
    ) -> None:
        """Read the files into a context of `new_context`. Without `key`, the file of the certificate has it.

        Raises:
            StartupError: a file cannot be used; the message says which.
        """
        self._new_context = new_context
        self._authorities = authorities
        self._certificate = certificate
        self._key = key
        self._key_password = key_password
        self._signature = self._signature_of_files()
        self._refused: _Signature | None = None
        self.context = new_context()
        self._read_into(self.context)

    def reload_if_changed(self) -> None:
        """To be called periodically. Files that cannot be used change nothing, and are reported."""
        signature = self._signature_of_files()
        if signature in (self._signature, self._refused):
            return
        try:
            # A key and a certificate that do not match must not reach the context in use.
            self._read_into(self._new_context())
            self._read_into(self.context)
        except StartupError as error:
            # Also between the writes of a key and its certificate: the next change tries again.
            self._refused = signature
            logger.warning("certificates not reloaded", reason=str(error))
            return
        self._signature, self._refused = signature, None
        logger.info("certificates reloaded", certificate=str(self._certificate or self._authorities))

    def _read_into(self, context: ssl.SSLContext) -> None:
        if self._authorities is not None:
            try:
                context.load_verify_locations(self._authorities)
            except (OSError, ValueError) as error:
                raise StartupError(
                    f"{self._authorities} has no authorities that can be used ({_reason(error)}): name a file"
                    " with certificates in PEM."
                ) from error
        if self._certificate is not None:
            try:
                # OpenSSL would ask for a missing password on the terminal.
                context.load_cert_chain(self._certificate, self._key, lambda: self._key_password)
            except (OSError, ValueError) as error:
                files = " and ".join(str(path) for path in (self._certificate, self._key) if path is not None)
                raise StartupError(
                    f"{files} cannot be used as a certificate and its key ({_reason(error)}): name files in"
                    " PEM that belong together."
                ) from error

    def _signature_of_files(self) -> _Signature:
        """What differs when a file was written, or replaced, also by the swap of a symbolic link above it."""
        paths = (self._authorities, self._certificate, self._key)
        return tuple(_signature_of(path) for path in paths if path is not None)


async def keep_current(files: Sequence[TlsFiles]) -> None:
    """Read files again as they change, until cancelled."""
    while True:
        await asyncio.sleep(RELOAD_S)
        for each in files:
            each.reload_if_changed()


def _signature_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
