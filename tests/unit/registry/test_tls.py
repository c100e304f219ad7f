"""Certificates that are replaced while an instance runs (R38)."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.support.certificates import Authority, certificate_of

from mainstem_registry.errors import StartupError
from mainstem_registry.tls import TlsFiles


def server_context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def replace(path: Path, content: str) -> None:
    """As a writer that never leaves half a file."""
    other = path.with_suffix(".new")
    other.write_text(content)
    other.replace(path)


def shown_certificate(server: ssl.SSLContext, authority: Authority) -> bytes:
    """The certificate of a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = authority.client_context().wrap_bio(to_client, to_server, server_hostname="localhost")
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = client.getpeercert(binary_form=True)
    assert certificate
    return certificate


def test_a_certificate_that_is_replaced_is_shown_without_a_restart(tmp_path: Path) -> None:
    authority, path = Authority(), tmp_path / "server.pem"
    first, second = authority.issue(), authority.issue()
    path.write_text(first)
    files = TlsFiles(server_context, certificate=path)
    context = files.context
    assert shown_certificate(context, authority) == certificate_of(first)
    replace(path, second)
    files.reload_if_changed()
    assert files.context is context  # what listens with it has the new certificate
    assert shown_certificate(context, authority) == certificate_of(second)


def test_a_key_that_does_not_fit_changes_nothing_until_it_does(tmp_path: Path) -> None:
    """Certificate and key are two files, which nobody replaces at the same moment (R38)."""
    authority = Authority()
    pairs = []
    for _ in range(2):
        pem = authority.issue()
        at = pem.index("-----BEGIN CERTIFICATE-----")
        pairs.append((pem[:at], pem[at:]))
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    key.write_text(pairs[0][0])
    certificate.write_text(pairs[0][1])
    files = TlsFiles(server_context, certificate=certificate, key=key)
    replace(certificate, pairs[1][1])
    with capture_logs() as lines:
        files.reload_if_changed()
        files.reload_if_changed()
    assert [line["event"] for line in lines] == ["certificates not reloaded"]  # once
    assert shown_certificate(files.context, authority) == certificate_of(pairs[0][1])
    replace(key, pairs[1][0])
    files.reload_if_changed()
    assert shown_certificate(files.context, authority) == certificate_of(pairs[1][1])


def test_the_swap_of_a_folder_by_kubernetes_is_seen(tmp_path: Path) -> None:
    authority = Authority()
    first, second = authority.issue(), authority.issue()
    for name, content in (("one", first), ("two", second)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tls.pem").write_text(content)
    (tmp_path / "data").symlink_to("one")
    files = TlsFiles(server_context, certificate=tmp_path / "data" / "tls.pem")
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").replace(tmp_path / "data")
    files.reload_if_changed()
    assert shown_certificate(files.context, authority) == certificate_of(second)


def test_a_key_with_a_password_that_is_missing_does_not_wait_for_a_terminal(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    pem = Authority().issue()
    key = serialization.load_pem_private_key(pem.encode(), None)
    encryption = serialization.BestAvailableEncryption(b"a-password")
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    ).decode()
    path = tmp_path / "server.pem"
    path.write_text(locked + pem[pem.index("-----BEGIN CERTIFICATE-----") :])
    assert TlsFiles(server_context, certificate=path, key_password="a-password")
    with pytest.raises(StartupError, match="cannot be used as a certificate and its key"):
        TlsFiles(server_context, certificate=path)
