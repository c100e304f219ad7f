"""Schemas from a registry with TLS and logins (R31, R38)."""

from __future__ import annotations

import http.client
import io
import json
import ssl
import urllib.error
from collections.abc import Sequence
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority
from tests.support.guarded_registry import USER_INFO, guarded_registry
from tests.unit.loader.fake_cluster import FakeCluster
from tests.unit.loader.test_load_topic import Loads

from mainstem_loader.chosen_offsets import ChosenOffsets
from mainstem_loader.columns import ColumnError
from mainstem_loader.errors import RegistryUnreachableError, SettingsError
from mainstem_loader.payload import schema_source
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.payload.schema_ids import UNUSABLE_IDS_MAX
from mainstem_loader.payload.schema_source import SchemaSource
from mainstem_loader.rewrite_rows import replay_dead_letters
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.executors import InProcessExecutor

LOGIN = {"basic.auth.user.info": USER_INFO}


def test_the_login_is_sent_and_a_refusal_is_not_tried_again() -> None:
    with guarded_registry() as registry:
        assert SchemaSource(registry.url, LOGIN).writer_schema(1)
        for properties in ({}, {"basic.auth.user.info": "alice:x"}):
            registry.logins.clear()
            with pytest.raises(RegistryUnreachableError, match=r"correct basic\.auth\.user\.info") as refused:
                SchemaSource(registry.url, properties).writer_schema(1)
            assert "alice:x" not in str(refused.value)
            assert len(registry.logins) == 1  # repeated tries look like an attack


def test_the_login_is_not_sent_on_to_where_an_answer_redirects() -> None:
    with guarded_registry() as registry, guarded_registry() as elsewhere:
        registry.redirects_to = elsewhere.url
        with pytest.raises(RegistryUnreachableError):
            SchemaSource(registry.url, LOGIN).writer_schema(1)
        assert elsewhere.logins == [None]


def test_a_certificate_is_verified_by_the_authorities_of_the_properties(tmp_path: Path) -> None:
    authority, own, trust = Authority(), tmp_path / "own.pem", tmp_path / "ca.pem"
    own.write_text(authority.issue())
    trust.write_text(authority.trust)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    with guarded_registry(context) as registry:
        trusted = LOGIN | {"schema.registry.ssl.ca.location": str(trust)}
        assert SchemaSource(registry.url, trusted).writer_schema(1)
        with pytest.raises(RegistryUnreachableError, match=r"schema.registry.ssl.ca.location .* names whom"):
            SchemaSource(registry.url, LOGIN).writer_schema(1)


Answer = tuple[int, object] | Exception
DOWN = ConnectionRefusedError(111, "Connection refused")
A_NUMBER: Answer = (200, {"schema": '{"type":"record","name":"R","fields":[{"name":"n","type":"int"}]}'})
CUT = http.client.IncompleteRead(b"{", 70)
TRIES = schema_source.TRIES


class CutBody(io.BytesIO):
    """A body that ends before its length."""

    def read(self, _: int | None = -1) -> bytes:
        raise CUT


def play_registry(
    monkeypatch: pytest.MonkeyPatch, answers: Sequence[Answer], retry_after: str = ""
) -> list[str]:
    """Let a registry give these answers, the last one for all that follow; refusals have the header
    `Retry-After`. Returns the requested URLs.
    """
    requested: list[str] = []
    headers = Message()
    headers["Retry-After"] = retry_after

    def urlopen(request: Any, **_: Any) -> io.BytesIO:
        answer = answers[min(len(requested), len(answers) - 1)]
        requested.append(request.full_url)
        if isinstance(answer, Exception):
            raise answer
        status, content = answer
        if content is CUT:
            body: io.BytesIO = CutBody()
        else:
            body = io.BytesIO(content if isinstance(content, bytes) else json.dumps(content).encode())
        if status != 200:
            raise urllib.error.HTTPError(request.full_url, status, "", headers, body)
        return body

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    monkeypatch.setattr(schema_source, "RETRY_S", 0.0)
    return requested


@pytest.mark.parametrize(
    ("answers", "tries", "refusal"),
    [
        ([A_NUMBER], 1, None),
        ([DOWN, (503, b""), (200, b"starting"), A_NUMBER], 4, None),
        ([CUT, (200, CUT), http.client.BadStatusLine("x"), A_NUMBER], 4, None),
        ([(429, b""), (408, b""), (425, b""), A_NUMBER], 4, None),
        ([(404, {"error_code": 40403})], 1, ColumnError),
        ([(404, CUT), A_NUMBER], 2, None),
        # That of a web server that is none, and so says nothing of the schema.
        ([(404, b"<html>")], 1, RegistryUnreachableError),
        ([(404, {"error_code": 404})], 1, RegistryUnreachableError),
        ([(403, b"")], 1, RegistryUnreachableError),
        ([(500, b"")], TRIES, RegistryUnreachableError),
        ([(429, b"")], TRIES, RegistryUnreachableError),
        ([DOWN], TRIES, RegistryUnreachableError),
        ([(200, {"subjects": []})], TRIES, RegistryUnreachableError),
        ([(200, {"schema": "{", "schemaType": "AVRO"})], 1, ColumnError),
        ([(200, {"schema": "{}", "schemaType": "JSON"})], 1, ColumnError),
    ],
)
def test_only_the_registry_itself_says_that_a_schema_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, answers: list[Answer], tries: int, refusal: type[Exception] | None
) -> None:
    """Records whose schema does not exist are dead letters. While nobody says so they wait."""
    requested = play_registry(monkeypatch, answers)
    source = SchemaSource("http://registry/")
    if refusal is None:
        assert source.writer_schema(1)
    else:
        with pytest.raises(refusal):
            source.writer_schema(1)
    assert requested == ["http://registry/schemas/ids/1"] * tries


@pytest.mark.parametrize(
    ("retry_after", "wait_s"),
    [("7", 7.0), ("3600", 30.0), ("", 0.0), ("-1", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0)],
)
def test_a_registry_that_limits_requests_says_when_to_try_again(
    monkeypatch: pytest.MonkeyPatch, retry_after: str, wait_s: float
) -> None:
    """RFC 9110, section 10.2.3. A date means the usual wait, as does none."""
    waits_s: list[float] = []
    play_registry(monkeypatch, [(429, b""), DOWN, A_NUMBER], retry_after)
    monkeypatch.setattr("time.sleep", waits_s.append)
    assert SchemaSource("http://registry").writer_schema(1)
    assert waits_s == [wait_s, 0.0]


def test_records_behind_a_burst_of_values_without_ids_are_loaded_and_replayed(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R28: their id is new to the task, and the burst has used up what it looks up."""
    loads = Loads(cluster, tmp_path)
    loads.send(*(b"\0" + number.to_bytes(4, "big") + b"?" for number in range(1000, 1600)))
    loads.send(*(b"\0\0\0\0\1" + bytes([2 * number]) for number in range(50)))
    more: dict[str, Any] = {
        "payload": PayloadFormat.AVRO,
        "schema_registry": "http://registry",
        "max_rejected_share": 1,
    }
    play_registry(monkeypatch, [(404, {"error_code": 40403})])
    assert loads.load(**more).dead_lettered == 650
    requested = play_registry(monkeypatch, [A_NUMBER, (404, {"error_code": 40403})])
    report = replay_dead_letters(loads.settings(**more), ChosenOffsets(), InProcessExecutor())
    assert (report.loaded, report.dead_lettered) == (50, 600)
    assert [row["n"] for row in loads.rows("n")] == list(range(50))
    assert len(requested) == 1 + UNUSABLE_IDS_MAX


def test_a_registry_that_is_down_fails_the_load_and_the_next_one_loads_everything(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R28: no record becomes a dead letter for that."""
    loads = Loads(cluster, tmp_path)
    loads.send(b"\0\0\0\0\1\2", b"\0\0\0\0\1\4")
    avro: dict[str, Any] = {"payload": PayloadFormat.AVRO, "schema_registry": "http://registry"}
    play_registry(monkeypatch, [DOWN])
    with pytest.raises(RegistryUnreachableError, match=r"Connection refused.*check its address"):
        loads.load(**avro)
    assert loads.files() == set()
    play_registry(monkeypatch, [A_NUMBER])
    assert loads.load(**avro).loaded == 2
    assert [row["n"] for row in loads.rows("n")] == [1, 2]


def test_a_registry_without_descriptors_fails_the_load_and_commits_nothing(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R28: the registry passes over format=serialized, and nothing is wrong with the records."""
    loads = Loads(cluster, tmp_path)
    loads.send(b"\0\0\0\0\1\0\x08\1")
    text = 'syntax = "proto3"; message M { int32 n = 1; }'
    play_registry(monkeypatch, [(200, {"schema": text, "schemaType": "PROTOBUF"})])
    with pytest.raises(RegistryUnreachableError, match="does not give the descriptor"):
        loads.load(payload=PayloadFormat.PROTOBUF, schema_registry="http://registry")
    assert loads.files() == set()


@pytest.mark.parametrize(
    "properties",
    [{"basic.auth.user.info": "hunter2"}, {"schema.registry.ssl.ca.location": "/none"}],
    ids=["login", "authorities"],
)
def test_a_load_is_refused_before_it_reads_if_a_property_cannot_be_used(properties: dict[str, str]) -> None:
    settings = LoadSettings(
        "127.0.0.1:1",
        "orders",
        "warehouse",
        payload=PayloadFormat.AVRO,
        schema_registry="https://registry:8081",
        client_properties=properties,
    )
    with pytest.raises(SettingsError, match=next(iter(properties))) as refused:
        settings.check()
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize("host", ["registry:8081", "registry"])
def test_a_login_in_the_url_of_the_registry_is_refused_and_not_shown(host: str) -> None:
    settings = LoadSettings(
        "127.0.0.1:1",
        "orders",
        "warehouse",
        payload=PayloadFormat.AVRO,
        schema_registry=f"https://ann:hunter2@{host}",
    )
    with pytest.raises(SettingsError, match=r"the client property basic\.auth\.user\.info") as refused:
        settings.check()
    assert "hunter2" not in str(refused.value)
