"""Certificates for tests: an authority, and what it issues, as PEM."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import trustme


class Authority:
    """Issues certificates for servers and clients on loopback."""

    def __init__(self) -> None:
        self._authority = trustme.CA(key_type=trustme.KeyType.ECDSA)

    @property
    def trust(self) -> str:
        """Its own certificate."""
        return self._authority.cert_pem.bytes().decode()

    def issue(
        self, *identities: str, common_name: str | None = None, expires_at: datetime | None = None
    ) -> str:
        """A private key and its certificate chain in one text."""
        issued = self._authority.issue_cert(
            *(identities or ("127.0.0.1", "localhost")),
            common_name=common_name,
            organization_name="Example",
            not_after=expires_at,
            key_type=trustme.KeyType.ECDSA,
        )
        return issued.private_key_and_cert_chain_pem.bytes().decode()

    def expired(self) -> str:
        return self.issue(expires_at=datetime(2020, 1, 1, tzinfo=UTC))

    def client_context(self, own: Path | None = None) -> ssl.SSLContext:
        """A client's context that trusts this authority, and shows what the file `own` has."""
        context = ssl.create_default_context(cadata=self.trust)
        if own is not None:
            context.load_cert_chain(own)
        return context


def certificate_of(pem: str) -> bytes:
    """The first certificate of a text, in DER."""
    begin = pem.index("-----BEGIN CERTIFICATE-----")
    end = pem.index("-----END CERTIFICATE-----", begin) + len("-----END CERTIFICATE-----")
    return ssl.PEM_cert_to_DER_cert(pem[begin:end])
