"""Keys and certificates as PEM: making them, and what is to be said of those that exist.

Keys are of the curve P-256, which every client knows. A certificate's random serial number and key are all
that is not decided by the arguments.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
AUTHORITY_RENEWAL_DAYS: Final = 730  # more than the longest life of what it issues
SERVER_DAYS: Final = 90
SERVER_RENEWAL_DAYS: Final = 30
USER_DAYS: Final = 365
USER_RENEWAL_DAYS: Final = 60  # clients may take some time until they read it
_SKEW: Final = dt.timedelta(hours=1)  # of the clocks of nodes


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key (PKCS 8) and its certificate, in PEM. Its text form hides the key."""

    key: str
    certificate: str

    def __repr__(self) -> str:
        return "KeyPair(key=..., certificate=...)"


def new_authority(common_name: str, now: dt.datetime) -> KeyPair:
    """A key of its own, with a certificate that it has signed itself."""
    return _authority(ec.generate_private_key(ec.SECP256R1()), common_name, now)


def renewed_authority(authority: KeyPair, now: dt.datetime) -> KeyPair:
    """The same key with a certificate that is valid for longer.

    Key and name are the same, so a party that trusts one of the two certificates accepts what either issued.
    """
    return _authority(_key(authority), _common_name(_certificate(authority)), now)


def issue(
    authority: KeyPair, common_name: str, hosts: Collection[str], days: int, now: dt.datetime
) -> KeyPair:
    """A new key and its certificate, for a server with these names and addresses and for a client."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = _certificate(authority)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = (
        _builder(common_name, issuer.subject, key.public_key(), days, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(_key(authority).public_key()), critical=False
        )
    )
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in sorted(hosts)]), critical=False
        )
    certificate = builder.sign(_key(authority), hashes.SHA256())
    return _pair(key, certificate)


def hosts_in(pair: KeyPair) -> set[str]:
    """The names and addresses in the certificate, addresses in their usual form."""
    return _hosts(_certificate(pair))


def authority_is_usable(authority: KeyPair | None) -> bool:
    """Whether it can be read, and key and certificate belong together."""
    return authority is not None and _belong_together(authority)


def expires_within(pair: KeyPair, days: int, now: dt.datetime) -> bool:
    """Whether the certificate is valid for fewer than `days` from now."""
    return _certificate(pair).not_valid_after_utc - now < dt.timedelta(days=days)


def expiry_of(pair: KeyPair) -> dt.datetime:
    """When the certificate ends."""
    return _certificate(pair).not_valid_after_utc


def is_issued(pair: KeyPair | None, authority: KeyPair, common_name: str, hosts: Collection[str]) -> bool:
    """Whether the certificate can be read, is signed by the authority's key, and has the name and all hosts.

    More hosts than these are fine: nodes come and go.
    """
    if pair is None or not _belong_together(pair):
        return False
    certificate = _certificate(pair)
    try:
        certificate.verify_directly_issued_by(_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    # An address has several spellings, and the certificate has the address.
    wanted = {str(_general_name(host).value) for host in hosts}
    return _common_name(certificate) == common_name and wanted <= _hosts(certificate)


def _authority(key: ec.EllipticCurvePrivateKey, common_name: str, now: dt.datetime) -> KeyPair:
    certificate = (
        _builder(common_name, _name(common_name), key.public_key(), AUTHORITY_DAYS, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pair(key, certificate)


def _builder(
    common_name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, now: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(common_name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> KeyPair:
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(encoded.decode(), certificate.public_bytes(serialization.Encoding.PEM).decode())


def _belong_together(pair: KeyPair) -> bool:
    try:
        return _key(pair).public_key() == _certificate(pair).public_key()
    except (ValueError, TypeError):
        return False


def _key(pair: KeyPair) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pair.key.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("The key is of another kind than those that are made here.")
    return key


def _certificate(pair: KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate.encode())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _common_name(certificate: x509.Certificate) -> str:
    attributes = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attributes[0].value) if attributes else ""


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _hosts(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return addresses | set(names.get_values_for_type(x509.DNSName))
