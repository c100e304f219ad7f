from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from tests.support.certificates import Authority, certificate_of

from mainstem_broker.security.distinguished_names import subject_of

KEY = ec.generate_private_key(ec.SECP256R1())
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def certificate(*names: x509.RelativeDistinguishedName) -> bytes:
    subject = x509.Name(names)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the issuer")]))
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(BEGIN)
        .not_valid_after(BEGIN + timedelta(days=1))
        .sign(KEY, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )


def single(identifier: x509.ObjectIdentifier, value: str) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName([x509.NameAttribute(identifier, value)])


def test_the_most_specific_name_comes_first_as_java_prints_it() -> None:
    subject = certificate(
        single(NameOID.COUNTRY_NAME, "DE"),
        single(NameOID.ORGANIZATION_NAME, "Example"),
        single(NameOID.COMMON_NAME, "alice"),
    )
    assert subject_of(subject) == "CN=alice,O=Example,C=DE"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a,b", r"CN=a\,b"),
        ('a"b+c<d>e;f=g\\h', r"CN=a\"b\+c\<d\>e\;f\=g\\h"),
        (" a ", r"CN=\ a\ "),
        ("#a", r"CN=\#a"),
        ("Jürgen 日本", "CN=Jürgen 日本"),
    ],
)
def test_special_characters_are_escaped(name: str, text: str) -> None:
    assert subject_of(certificate(single(NameOID.COMMON_NAME, name))) == text


def test_names_that_the_rfc_does_not_list_are_numbers_and_bytes() -> None:
    subject = certificate(single(NameOID.EMAIL_ADDRESS, "a@b"), single(NameOID.COMMON_NAME, "x"))
    assert subject_of(subject) == "CN=x,1.2.840.113549.1.9.1=#1603614062"


def test_several_values_of_one_name_are_joined() -> None:
    names = x509.RelativeDistinguishedName(
        [x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.USER_ID, "b")]
    )
    assert subject_of(certificate(names)) in ("CN=a+UID=b", "UID=b+CN=a")


def test_a_certificate_without_a_subject_has_an_empty_one() -> None:
    assert subject_of(certificate()) == ""


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_damaged_certificates_are_refused_or_read_but_nothing_else(position: int, byte: int) -> None:
    damaged = bytearray(DAMAGED)
    damaged[position % len(damaged)] = byte
    try:
        subject_of(bytes(damaged))
    except ValueError:
        pass


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_read_but_nothing_else(data: bytes) -> None:
    try:
        subject_of(data)
    except ValueError:
        pass


DAMAGED = certificate_of(Authority().issue(common_name="alice"))
