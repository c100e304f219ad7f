"""Encrypted listeners, with Python's own TLS as the client."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest
from structlog.testing import capture_logs
from tests.support.certificates import Authority
from tests.support.waiting import let_pass_async
from tests.unit.broker.server.peers import Script, frame_of, until

from mainstem_broker.cluster.znodes import Endpoint
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.errors import StartupError
from mainstem_broker.runtime.disk_reads import DiskReads
from mainstem_broker.security.principals import ANONYMOUS
from mainstem_broker.security.scram_decoys import ScramDecoys
from mainstem_broker.server import tls_handshakes
from mainstem_broker.server.connection_limits import ConnectionLimits
from mainstem_broker.server.listener_security import ListenerSecurity
from mainstem_broker.server.listeners import Listener, SocketOptions
from mainstem_broker.server.tls_context import openssl_name

AUTHORITY = Authority()
OTHER_AUTHORITY = Authority()
SERVER = AUTHORITY.issue()
ENDPOINT = Endpoint("SSL", "SSL", "127.0.0.1", 0)
REQUEST_BYTES_MAX = 8 * 1024 * 1024


def config_of(settings: Mapping[str, str]) -> BrokerConfig:
    return BrokerConfig({"broker.id": "1", "zookeeper.connect": "z:2181", **settings})


def security_of(config: BrokerConfig, audited: list[dict[str, str]] | None = None) -> ListenerSecurity:
    """`audited` takes the fields of records for the audit log."""
    records = [] if audited is None else audited
    return ListenerSecurity(
        config,
        ENDPOINT,
        lambda user, kind: ScramDecoys().credential(kind, user),
        lambda **fields: records.append(fields),
    )


class Encrypted:
    """A listener with TLS on a free port of loopback, whose frames are those of `Script`."""

    def __init__(
        self,
        tmp_path: Path,
        settings: Mapping[str, str] | None = None,
        *,
        file: Path | None = None,
        send_buffer_bytes: int = -1,
    ) -> None:
        self.audited: list[dict[str, str]] = []
        self.key_file = tmp_path / "server.pem"
        self.key_file.write_text(SERVER)
        config = config_of({"ssl.keystore.location": str(self.key_file), **(settings or {})})
        self.limits = ConnectionLimits(lambda: config)
        options = SocketOptions(send_buffer_bytes, -1, 1000, REQUEST_BYTES_MAX)
        self.listener = Listener(
            ENDPOINT, options, self.limits, DiskReads(), security_of(config, self.audited)
        )
        self.address: tuple[str, int] = self.listener._socket.getsockname()
        self.listener.listen()
        self.listener.start(Script(file).handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    async def connect(self, context: ssl.SSLContext | None = None) -> Client:
        streams = await asyncio.open_connection(
            *self.address, ssl=context or AUTHORITY.client_context(), limit=1 << 24
        )
        return Client(*streams)

    @property
    def open_count(self) -> int:
        return self.limits._open

    def reload(self) -> None:
        security = self.listener.security
        assert security is not None
        assert security.tls is not None
        security.tls.reload_if_changed()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, text: str) -> bytes:
        self._writer.write(frame_of(text.encode()))
        return await self.answer()

    def send(self, *texts: str) -> None:
        self._writer.write(b"".join(frame_of(text.encode()) for text in texts))

    async def answer(self) -> bytes:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def end(self) -> bytes:
        return await self._reader.read()

    def server_certificate(self) -> bytes:
        der: bytes = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return der

    def version(self) -> str:
        version: str = self._writer.get_extra_info("ssl_object").version()
        return version

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass


def reasons(logs: list[Any], event: str = "TLS handshake failed") -> list[str]:
    return [entry["reason"] for entry in logs if entry["event"] == event]


# --- Frames ---


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_frames_of_every_size_go_both_ways(tmp_path: Path, version: ssl.TLSVersion) -> None:
    context = AUTHORITY.client_context()
    context.maximum_version = context.minimum_version = version
    with Encrypted(tmp_path) as encrypted:
        client = await encrypted.connect(context)
        for size in (0, 1, 16_000, 16_384, 70_000, 300_000, 3_000_000, 7_000_000, 10):
            text = os.urandom((size + 1) // 2).hex()[:size]
            assert await client.ask(f"echo {text}") == text.encode(), f"of {size} bytes"
        assert client.version() == version.name.replace("_", ".")
        await client.close()


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([number % 700 for number in range(5_000)], id="many of one read"),
        pytest.param([3, 500_000, 2, 70_000] * 5, id="large ones between small ones"),
    ],
)
async def test_frames_are_answered_in_order(tmp_path: Path, sizes: list[int]) -> None:
    with Encrypted(tmp_path) as encrypted:
        client = await encrypted.connect()
        texts = [f"{number} " + "x" * size for number, size in enumerate(sizes)]
        client.send(*(f"echo {text}" for text in texts))
        for text in texts:
            assert await client.answer() == text.encode()
        await client.close()


async def test_slices_of_files_come_whole_to_a_slow_reader(tmp_path: Path) -> None:
    content = os.urandom(500_000)
    (tmp_path / "records").write_bytes(content)
    with Encrypted(tmp_path, file=tmp_path / "records", send_buffer_bytes=20_000) as encrypted:
        client = await encrypted.connect()
        client.send(*["slices 0:500000,100:50,7:300000"] * 4)
        for _ in range(4):
            await let_pass_async(0.01, "the reader is slow")
            expected = b"<" + content + b"|" + content[100:150] + b"|" + content[7:300_007] + b"|"
            assert await client.answer() == expected
        await client.close()


async def test_a_slice_beyond_the_end_of_its_file_closes_the_connection(tmp_path: Path) -> None:
    (tmp_path / "records").write_bytes(bytes(50_000))
    with Encrypted(tmp_path, file=tmp_path / "records") as encrypted:
        client = await encrypted.connect()
        client.send("slices 0:60000")
        await client.end()
        await until(lambda: encrypted.open_count == 0)
        await client.close()


async def test_requests_behind_one_that_is_held_are_answered_after_it(tmp_path: Path) -> None:
    with Encrypted(tmp_path) as encrypted:
        script = Script()
        encrypted.listener._handle = script.handle
        client = await encrypted.connect()
        client.send("hold a", *(f"echo {number} {'x' * 40_000}" for number in range(20)))
        await until(script.waiting)
        client.send("echo last")
        script.let_go("a")
        assert await client.answer() == b"after a"
        for number in range(20):
            assert (await client.answer()).startswith(f"{number} ".encode())
        assert await client.answer() == b"last"
        await client.close()


async def test_a_client_that_says_goodbye_is_forgotten_and_one_that_vanishes_too(tmp_path: Path) -> None:
    with Encrypted(tmp_path) as encrypted:
        for vanish in (False, True):
            client = await encrypted.connect()
            assert await client.ask("echo x") == b"x"
            assert encrypted.open_count == 1
            if vanish:
                client._writer.transport.abort()
            else:
                await client.close()
            await until(lambda: encrypted.open_count == 0)


async def test_the_server_says_goodbye_so_that_a_cut_differs_from_an_end(tmp_path: Path) -> None:
    with Encrypted(tmp_path) as encrypted:
        context = AUTHORITY.client_context()

        def talk() -> bytes:
            with context.wrap_socket(
                socket.create_connection(encrypted.address),
                server_hostname="127.0.0.1",
                suppress_ragged_eofs=False,
            ) as client:
                client.sendall(frame_of(b"close"))
                return client.recv(1)

        assert await asyncio.to_thread(talk) == b"", "without close_notify this raises SSLEOFError"


# --- Handshakes ---


async def test_plain_bytes_are_refused_with_one_line_in_the_log(tmp_path: Path) -> None:
    with Encrypted(tmp_path) as encrypted, capture_logs() as logs:
        reader, writer = await asyncio.open_connection(*encrypted.address)
        writer.write(frame_of(b"echo x"))
        assert await reader.read() == b""
        assert encrypted.open_count == 0
        writer.close()
    (reason,) = reasons(logs)
    assert reason == (
        "the client does not speak TLS, and this listener does: it has to set security.protocol, or use"
        " another port"
    )
    assert encrypted.audited == [
        {
            "outcome": "denied",
            "host": "127.0.0.1",
            "operation": "TlsHandshake",
            "listener": "SSL",
            "reason": reason,
        }
    ]


@asynccontextmanager
async def plain_listener() -> AsyncIterator[tuple[str, int]]:
    """The address of a listener without TLS."""
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)
    config = config_of({})
    options = SocketOptions(-1, -1, 50, 100 * 1024 * 1024)
    listener = Listener(endpoint, options, ConnectionLimits(lambda: config), DiskReads())
    listener.listen()
    listener.start(Script().handle)
    yield listener._socket.getsockname()
    listener.close()


@pytest.mark.parametrize("version", [b"\x03\x01", b"\x03\x03"], ids=["as OpenSSL", "as Java"])
async def test_tls_is_known_by_any_version_of_its_first_record(version: bytes) -> None:
    async with plain_listener() as address:
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"\x16" + version + b"\x01\x2c" + bytes(300))
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
    (reason,) = reasons(logs, "connection closed")
    assert reason.startswith("The client speaks TLS, and this listener does not")


@pytest.mark.parametrize(
    "data", [b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" + bytes(70_000), b"\x16\x03\x01\xff\xff"]
)
async def test_what_only_begins_like_a_handshake_ends_without_an_error_of_ours(
    tmp_path: Path, data: bytes
) -> None:
    with Encrypted(tmp_path) as encrypted, capture_logs() as logs:
        reader, writer = await asyncio.open_connection(*encrypted.address)
        writer.write(data)
        writer.write_eof()
        try:
            await reader.read()
        except OSError:
            pass
        await until(lambda: encrypted.open_count == 0)
        writer.close()
    assert not [entry for entry in logs if entry["log_level"] == "error"]


async def test_versions_before_tls_1_2_are_refused(tmp_path: Path) -> None:
    context = AUTHORITY.client_context()
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with Encrypted(tmp_path) as encrypted, pytest.raises((ssl.SSLError, OSError)):
        await encrypted.connect(context)


async def test_a_handshake_has_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_handshakes, "HANDSHAKE_S_MAX", 0.05)
    with Encrypted(tmp_path) as encrypted, capture_logs() as logs:
        silent, writer = await asyncio.open_connection(*encrypted.address)
        slow, slow_writer = await asyncio.open_connection(*encrypted.address)
        slow_writer.write(b"\x16\x03")
        assert await silent.read() == b""
        assert await slow.read() == b""
        writer.close()
        slow_writer.close()
        for _ in range(20):  # on a busy machine some take longer
            client = await encrypted.connect()
            await let_pass_async(0.1, "twice the time that a handshake may take")
            with suppress(asyncio.IncompleteReadError):
                assert await client.ask("echo still here") == b"still here"
                break
        else:
            pytest.fail("the limit closes connections whose handshake is done")
        await client.close()
    assert reasons(logs) == ["it was not done within 0.05 s"], "the others are counted"


async def test_half_open_handshakes_are_limited_and_others_still_come_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_handshakes, "HANDSHAKES_MAX", 20)
    monkeypatch.setattr(tls_handshakes, "HANDSHAKE_S_MIN", 0.2)
    with Encrypted(tmp_path) as encrypted:
        silent = [socket.create_connection(encrypted.address) for _ in range(60)]
        client = await asyncio.wait_for(encrypted.connect(), 10)
        assert await client.ask("echo through") == b"through"
        assert encrypted.listener._handshakes is not None
        assert len(encrypted.listener._handshakes) <= 20
        assert encrypted.open_count <= 21
        await client.close()
        for one in silent:
            one.close()


async def test_an_address_has_a_share_of_the_handshakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R40: a flood of one address neither closes the handshakes of another nor delays them."""
    monkeypatch.setattr(tls_handshakes, "HANDSHAKES_PER_ADDRESS_MAX", 5)
    monkeypatch.setattr(tls_handshakes, "HANDSHAKE_S_MIN", 60.0)  # however busy the machine is
    with Encrypted(tmp_path) as encrypted, capture_logs() as logs:
        handshakes = encrypted.listener._handshakes
        assert handshakes is not None
        silent = [await asyncio.open_connection(*encrypted.address) for _ in range(20)]
        await until(lambda: encrypted.open_count == 5)
        client = Client(
            *await asyncio.open_connection(
                *encrypted.address, ssl=AUTHORITY.client_context(), local_addr=("127.0.0.2", 0)
            )
        )
        assert await client.ask("echo through") == b"through"
        await client.close()
        assert len(handshakes) == 5
        monkeypatch.setattr(tls_handshakes, "HANDSHAKE_S_MIN", 0.0)
        last = await encrypted.connect()
        assert await last.ask("echo in place of the oldest") == b"in place of the oldest"
        assert len(handshakes) == 4
        await last.close()
        for _, writer in silent:
            writer.close()
    assert reasons(logs) == [
        "too many handshakes of its address are under way",
        "too many handshakes of its address are under way, and this is the oldest",
    ]


async def test_handshakes_that_come_at_once_are_spread_over_turns_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R40: each step takes up to a millisecond."""
    monkeypatch.setattr(tls_handshakes, "TURN_S", 0.0)
    turn = 0
    turns_of_steps: list[int] = []
    go_on = tls_handshakes._Handshake.go_on

    def count(handshake: tls_handshakes._Handshake) -> None:
        turns_of_steps.append(turn)
        go_on(handshake)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(tls_handshakes._Handshake, "go_on", count)
    with Encrypted(tmp_path) as encrypted:
        counting = asyncio.ensure_future(count_turns())
        clients = await asyncio.gather(*[encrypted.connect() for _ in range(20)])
        for client in clients:
            assert await client.ask("echo done") == b"done"
            await client.close()
        counting.cancel()
    assert len(turns_of_steps) >= 40, "two steps each"
    assert len(set(turns_of_steps)) == len(turns_of_steps)


async def test_a_handshake_that_fails_in_an_unknown_way_ends_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R40: whatever one client makes of it, the listener goes on."""
    go_on = tls_handshakes._Handshake.go_on
    failures = iter([MemoryError()])

    def fail_once(handshake: tls_handshakes._Handshake) -> None:
        if (failure := next(failures, None)) is not None:
            handshake.fail(None)
            raise failure
        go_on(handshake)

    monkeypatch.setattr(tls_handshakes._Handshake, "go_on", fail_once)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    with Encrypted(tmp_path) as encrypted:
        with pytest.raises(OSError):
            await encrypted.connect()
        client = await asyncio.wait_for(encrypted.connect(), 10)
        assert await client.ask("echo on") == b"on"
        await client.close()


async def test_a_login_has_limited_time_however_much_the_client_sends() -> None:
    """R40: bytes make a connection that is not idle, but no login."""
    user = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
    config = config_of(
        {"sasl.enabled.mechanisms": "PLAIN", "listener.name.sasl_plaintext.plain.sasl.jaas.config": user}
    )
    endpoint = Endpoint("SASL_PLAINTEXT", "SASL_PLAINTEXT", "127.0.0.1", 0)
    security = ListenerSecurity(config, endpoint, lambda user, kind: ScramDecoys().credential(kind, user))
    options = SocketOptions(-1, -1, 1000, REQUEST_BYTES_MAX)
    listener = Listener(endpoint, options, ConnectionLimits(lambda: config), DiskReads(), security)
    listener.listen()
    listener.start(Script().handle)
    with capture_logs() as logs:
        known = Client(*await asyncio.open_connection(*listener._socket.getsockname()))
        assert await known.ask("echo hello") == b"hello"
        (connection,) = listener.connections
        assert connection.login is not None
        assert connection.login.choose("PLAIN", 1, 0.0)
        connection.login.respond(b"\0alice\0secret")
        assert security.logins is not None
        security.logins._login_s_max = 0.1  # only now, so that a busy machine does not end the first login
        stranger = Client(*await asyncio.open_connection(*listener._socket.getsockname()))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            while True:
                await stranger.ask("echo still here")
        assert await known.ask("echo goes on") == b"goes on"
        await stranger.close()
        await known.close()
    listener.close()
    assert reasons(logs, "connection closed") == ["the client has not logged in within 0.1 s"]


async def test_half_open_handshakes_count_as_connections(tmp_path: Path) -> None:
    with Encrypted(tmp_path, {"max.connections.per.ip": "2"}) as encrypted:
        silent = [await asyncio.open_connection(*encrypted.address) for _ in range(2)]
        reader, writer = await asyncio.open_connection(*encrypted.address)
        assert await reader.read() == b""
        writer.close()
        for _, one in silent:
            one.close()
        await until(lambda: encrypted.open_count == 0)
        await (await encrypted.connect()).close()


# --- Who clients are ---


async def test_clients_are_anonymous_where_no_certificate_is_demanded(tmp_path: Path) -> None:
    with Encrypted(tmp_path) as encrypted:
        client = await encrypted.connect()
        await client.ask("echo x")
        (connection,) = encrypted.listener.connections
        assert connection.principal == ANONYMOUS
        await client.close()


DEMANDING = {"ssl.client.auth": "required", "ssl.truststore.certificates": AUTHORITY.trust}


def alice(folder: Path) -> ssl.SSLContext:
    """Of a client that shows a certificate of Alice."""
    own = folder / "alice.pem"
    own.write_text(AUTHORITY.issue("alice@example.com", common_name="Alice"))
    return AUTHORITY.client_context(own)


@pytest.mark.parametrize(
    ("rules", "principal"), [("DEFAULT", r"CN=Alice,OU=.*,O=Example"), ("RULE:^CN=(.*?),.*$/$1/L", "alice")]
)
async def test_a_client_certificate_names_the_principal_by_the_rules(
    tmp_path: Path, rules: str, principal: str
) -> None:
    with Encrypted(tmp_path, DEMANDING | {"ssl.principal.mapping.rules": rules}) as encrypted:
        client = await encrypted.connect(alice(tmp_path))
        await client.ask("echo x")
        (connection,) = encrypted.listener.connections
        assert re.fullmatch(principal, connection.principal.name)
        await client.close()


async def test_a_subject_without_a_rule_is_refused(tmp_path: Path) -> None:
    settings = DEMANDING | {"ssl.principal.mapping.rules": "RULE:^CN=(bob),.*$/$1/"}
    with Encrypted(tmp_path, settings) as encrypted, capture_logs() as logs:
        client = await encrypted.connect(alice(tmp_path))
        assert await client.end() == b""
        assert encrypted.open_count == 0
        await client.close()
    (reason,) = reasons(logs, "client certificate refused")
    assert reason == "no rule of ssl.principal.mapping.rules makes a name of its subject"


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (None, "peer did not return a certificate"),
        (OTHER_AUTHORITY.issue("m@example.com"), "the client's certificate is not accepted: unable to get"),
        (AUTHORITY.expired(), "the client's certificate is not accepted: certificate has expired"),
    ],
)
async def test_clients_without_a_valid_certificate_are_refused_with_the_reason(
    tmp_path: Path, own: str | None, reason: str
) -> None:
    path = None
    if own is not None:
        path = tmp_path / "own.pem"
        path.write_text(own)
    with Encrypted(tmp_path, DEMANDING) as encrypted, capture_logs() as logs:
        try:  # with TLS 1.3 the client has finished before the server has seen its certificate
            client = await encrypted.connect(AUTHORITY.client_context(path))
            with pytest.raises((OSError, EOFError)):
                await client.ask("echo x")
        except OSError:
            pass
        await until(lambda: encrypted.open_count == 0)
    assert len(reasons(logs)) == 1
    assert reasons(logs)[0].startswith(reason)
    assert [record["reason"] for record in encrypted.audited] == reasons(logs)


# --- Certificates that change ---


async def test_a_new_certificate_is_shown_to_new_connections_and_old_ones_go_on(tmp_path: Path) -> None:
    with Encrypted(tmp_path) as encrypted, capture_logs() as logs:
        before = await encrypted.connect()
        encrypted.key_file.write_text(AUTHORITY.issue())
        encrypted.reload()
        after = await encrypted.connect()
        assert after.server_certificate() != before.server_certificate()
        assert await before.ask("echo old") == b"old"
        assert await after.ask("echo new") == b"new"
        await before.close()
        await after.close()
        encrypted.reload()
    assert [entry["event"] for entry in logs].count("certificates reloaded") == 1


@pytest.mark.parametrize("content", ["", "no PEM", SERVER.split("-----END")[0], AUTHORITY.trust])
async def test_a_file_that_cannot_be_used_changes_nothing_and_is_reported_once(
    tmp_path: Path, content: str
) -> None:
    with Encrypted(tmp_path) as encrypted, capture_logs() as logs:
        encrypted.key_file.write_text(content)
        for _ in range(3):
            encrypted.reload()
        client = await encrypted.connect()
        assert await client.ask("echo kept") == b"kept"
        await client.close()
        encrypted.key_file.unlink()
        encrypted.reload()
        encrypted.key_file.write_text(AUTHORITY.issue())
        encrypted.reload()
    events = [entry["event"] for entry in logs if entry["event"].startswith("certificates")]
    assert events == ["certificates not reloaded"] * 2 + ["certificates reloaded"]


async def test_the_swap_of_a_mounted_secret_is_noticed(tmp_path: Path) -> None:
    """Kubernetes replaces the symbolic link `..data`, through which all files of a volume are reached."""

    def write(version: str, pem: str) -> None:
        folder = tmp_path / "secret" / version
        folder.mkdir(parents=True)
        key, _, chain = pem.partition("-----BEGIN CERTIFICATE")
        (folder / "tls.key").write_text(key)
        (folder / "tls.crt").write_text("-----BEGIN CERTIFICATE" + chain)
        (folder / "ca.crt").write_text(AUTHORITY.trust)
        (tmp_path / "secret" / "..new").symlink_to(version)
        (tmp_path / "secret" / "..new").replace(tmp_path / "secret" / "..data")

    write("1", SERVER)
    for name in ("tls.key", "tls.crt", "ca.crt"):
        (tmp_path / "secret" / name).symlink_to(f"..data/{name}")
    folder = str(tmp_path / "secret")
    settings = {"ssl.keystore.location": folder, "ssl.truststore.location": folder}
    with Encrypted(tmp_path, settings) as encrypted:
        first = await encrypted.connect()
        write("2", AUTHORITY.issue())
        encrypted.reload()
        second = await encrypted.connect()
        assert first.server_certificate() != second.server_certificate()
        await first.close()
        await second.close()


# --- Settings ---


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "The listener SSL has no certificate: set ssl.keystore.location"),
        (
            {"ssl.keystore.location": "/nowhere/x.pem"},
            "ssl.keystore.location (/nowhere/x.pem) cannot be read",
        ),
        (
            {"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "y"},
            "ssl.keystore.key with ssl.keystore.certificate.chain cannot be used",
        ),
        ({"ssl.client.auth": "required"}, "has ssl.client.auth, but no certificates to trust"),
        ({"ssl.truststore.certificates": "x"}, "ssl.truststore.certificates cannot be used"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_NOTHING"}, "ssl.cipher.suites names none that OpenSSL has"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    tmp_path: Path, settings: dict[str, str], reason: str
) -> None:
    if not any(name.startswith("ssl.keystore") for name in settings) and settings:
        (tmp_path / "server.pem").write_text(SERVER)
        settings = {"ssl.keystore.location": str(tmp_path / "server.pem"), **settings}
    with pytest.raises(StartupError) as raised:
        security_of(config_of(settings))
    assert reason in str(raised.value)


def in_one_line(pem: str) -> str:
    return pem.replace("\n", " ")


def by_form(form: Callable[[str], str]) -> dict[str, str]:
    """Settings with all keys and certificates in that form."""
    key, _, chain = SERVER.partition("-----BEGIN CERTIFICATE")
    own = {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE" + chain}
    trust = {"ssl.truststore.certificates": AUTHORITY.trust + OTHER_AUTHORITY.trust}
    return {name: form(pem) for name, pem in (own | trust).items()}


@pytest.mark.parametrize(
    "form",
    [
        in_one_line,
        lambda pem: pem.replace("\n", ""),
        lambda pem: pem.replace("\n", "\r\n    "),
        lambda pem: f"# Autorit\u00e9: \u2014\n{pem}\n# Fin \u2014",
        lambda pem: f"Bag Attributes\n    friendlyName: x{pem}",
    ],
    ids=["spaces", "nothing", "indented", "comments-beyond-ascii", "attributes"],
)
def test_pem_may_have_any_white_space_and_text_between_its_blocks(
    tmp_path: Path, form: Callable[[str], str]
) -> None:
    """As in Kafka's DefaultSslEngineFactory. Lines that a backslash joins have no line ends."""
    settings = by_form(form)
    in_files = {}
    for name, text in (("keystore", form(SERVER)), ("truststore", settings["ssl.truststore.certificates"])):
        in_files[f"ssl.{name}.location"] = str(tmp_path / name)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for given in (settings, in_files):
        security = security_of(config_of({**given, "ssl.client.auth": "required"}))
        assert security.tls is not None
        assert security.tls.context.cert_store_stats()["x509_ca"] == 2


def test_a_certificate_that_is_cut_off_or_damaged_is_refused() -> None:
    settings = by_form(in_one_line)
    trust = settings["ssl.truststore.certificates"]
    for damaged in (trust[:-40], trust.replace("MII", "M\u00c9I", 1)):
        with pytest.raises(StartupError, match=r"ssl\.truststore\.certificates cannot be used"):
            security_of(config_of({**settings, "ssl.truststore.certificates": damaged}))


@pytest.mark.parametrize("key_format", ["PKCS8", "TraditionalOpenSSL"])  # the second one has headers
def test_an_encrypted_key_needs_its_password_and_nobody_is_asked_for_it(key_format: str) -> None:
    from cryptography.hazmat.primitives import serialization

    key, _, chain = SERVER.partition("-----BEGIN CERTIFICATE")
    encrypted = (
        serialization.load_pem_private_key(key.encode(), None)
        .private_bytes(
            serialization.Encoding.PEM,
            getattr(serialization.PrivateFormat, key_format),
            serialization.BestAvailableEncryption(b"secret"),
        )
        .decode()
    )
    settings = {
        "ssl.keystore.key": encrypted,
        "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE" + chain,
    }
    assert security_of(config_of({**settings, "ssl.key.password": "secret"}))
    for wrong in ({}, {"ssl.key.password": "another"}):
        with pytest.raises(StartupError, match=r"ssl\.key\.password if the key is encrypted") as raised:
            security_of(config_of({**settings, **wrong}))
        assert "another" not in str(raised.value)


def test_a_listener_has_its_own_settings_before_the_general_ones() -> None:
    config = config_of(
        {
            "ssl.client.auth": "none",
            "listener.name.external.ssl.client.auth": "required",
            "listener.name.external.no.such": "1",
        }
    )
    assert config.listener("EXTERNAL").string("ssl.client.auth") == "required"
    assert config.listener("INTERNAL").string("ssl.client.auth") == "none"
    assert config.unknown == ["listener.name.external.no.such"]


@pytest.mark.parametrize(
    ("iana", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "DHE-RSA-AES128-GCM-SHA256"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
    ],
)
def test_cipher_suites_of_tls_1_2_are_named_as_openssl_names_them(iana: str, openssl: str) -> None:
    assert openssl_name(iana) == openssl
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers(openssl)
    assert openssl in [cipher["name"] for cipher in context.get_ciphers()]


@pytest.mark.parametrize(
    ("suites", "cipher", "version"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2"),
        ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384", "TLSv1.3"),
    ],
)
async def test_cipher_suites_decide_the_version_too(
    tmp_path: Path, suites: str, cipher: str, version: str
) -> None:
    with Encrypted(tmp_path, {"ssl.cipher.suites": suites}) as encrypted:
        client = await encrypted.connect()
        name, *_ = client._writer.get_extra_info("cipher")
        assert (name, client.version()) == (cipher, version)
        await client.close()
