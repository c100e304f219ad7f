"""Requests that cannot be read are refused with the status of the client's error, and no other (R31)."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from urllib.parse import unquote

import pytest
from tests.unit.registry.test_server_access import ALICE, instance
from yarl import URL

from mainstem_registry import operations, server
from mainstem_registry.errors import RegistryError
from mainstem_registry.records import ConfigKey, ConfigValue, Record, VersionKey, VersionValue
from mainstem_registry.requests import parse_schema_request
from mainstem_registry.schemas.schema import Reference, SchemaText
from mainstem_registry.server import BODY_BYTES_MAX
from mainstem_registry.state import RegistryState

NO_LEADER = "http://127.0.0.1:1"


def version_of(subject: str, avro_type: str) -> Record:
    """The first version of a subject."""
    return Record(VersionKey(subject, 1), VersionValue(1, SchemaText("AVRO", f'"{avro_type}"')))


async def test_a_body_that_is_not_in_its_encoding_is_an_error_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers = ALICE | {"Content-Encoding": "gzip"}
    async with instance(monkeypatch, NO_LEADER) as client:
        for method, path in (
            ("POST", "/subjects/s/versions"),
            ("POST", "/subjects/s"),
            ("POST", "/compatibility/subjects/s/versions"),
            ("PUT", "/config"),
            ("PUT", "/mode/s"),
        ):
            answer = await client.request(method, path, data=b"not gzip", headers=headers)
            assert (answer.status, (await answer.json(content_type=None))["error_code"]) == (400, 400)


async def test_a_path_that_is_not_utf8_names_no_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise %FF and %25FF would be one subject."""
    async with instance(monkeypatch, NO_LEADER) as client:
        for path in ("/subjects/%FF/versions", "/config/a%FE", "/subjects?subjectPrefix=%ED%A0%80"):
            url = URL(str(client.make_url("")).rstrip("/") + path, encoded=True)
            answer = await client.session.get(url, headers=ALICE)
            assert answer.status == 400, path
        answer = await client.get("/subjects/%25FF/versions", headers=ALICE)
        assert answer.status == 404


@pytest.mark.parametrize(
    "references",
    ["{}", '""', "false", '[{"name": "a", "subject": "b", "version": true}]', "[1]"],
)
def test_references_of_another_form_are_refused(references: str) -> None:
    with pytest.raises(RegistryError) as refused:
        parse_schema_request(f'{{"schema": "x", "references": {references}}}'.encode())
    assert refused.value.code == 400


async def test_one_slash_at_the_end_of_a_path_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Jersey, on which Confluent's registry is built."""
    async with instance(monkeypatch, NO_LEADER) as client:
        for path in (
            "/subjects/",
            "/schemas/types/",
            "/config/",
            "/config/s/?defaultToGlobal=true",
            "/mode/",
        ):
            assert (await client.get(path, headers=ALICE)).status == 200, path
        answer = await client.get("/subjects/s/versions/", headers=ALICE)
        assert (await answer.json(content_type=None))["error_code"] == 40401
        answer = await client.post("/subjects/s/versions/", data=b"{", headers=ALICE)
        assert answer.status == 400
        assert (await client.get("/subjects//", headers=ALICE)).status == 404
        metrics = await (await client.get("/metrics", headers=ALICE)).text()
        assert 'route="/subjects"' in metrics
        assert 'route="/subjects/"' not in metrics


async def test_a_method_that_a_path_does_not_have_is_refused_with_those_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RFC 9110, section 15.5.6."""
    async with instance(monkeypatch, NO_LEADER) as client:
        answer = await client.put("/subjects/s/versions/1", headers=ALICE)
        assert (answer.status, answer.headers["Allow"]) == (405, "DELETE, GET, HEAD, OPTIONS")
        assert await answer.json(content_type=None) == {
            "error_code": 405,
            "message": "HTTP 405 Method Not Allowed",
        }
        answer = await client.options("/config", headers=ALICE)
        assert (answer.status, answer.headers["Allow"]) == (200, "DELETE, GET, HEAD, OPTIONS, PUT")
        assert await answer.read() == b""
        assert (await client.head("/subjects", headers=ALICE)).status == 200
        assert (await client.options("/nothing", headers=ALICE)).status == 404


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "application/vnd.schemaregistry.v1+json"),
        ("*/*", "application/vnd.schemaregistry.v1+json"),
        ("text/html, image/gif, *; q=.2, */*; q=.2", "application/vnd.schemaregistry.v1+json"),
        ("application/json", "application/json"),
        ("Application/JSON; charset=utf-8", "application/json"),
        (
            "application/json;q=0.5, application/vnd.schemaregistry+json",
            "application/vnd.schemaregistry+json",
        ),
        ("application/*", "application/vnd.schemaregistry.v1+json"),
        ("application/json; q=nan", "application/json"),
        ("text/html", None),
        ("application/json;q=0", None),
    ],
)
async def test_the_content_type_of_an_answer_is_one_that_the_client_accepts(
    monkeypatch: pytest.MonkeyPatch, accept: str, content_type: str | None
) -> None:
    async with instance(monkeypatch, NO_LEADER) as client:
        answer = await client.get("/subjects", headers=ALICE | {"Accept": accept})
        if content_type is None:
            assert (answer.status, (await answer.json(content_type=None))["error_code"]) == (406, 406)
        else:
            assert (answer.status, answer.content_type) == (200, content_type)
        assert (await client.get("/metrics", headers=ALICE | {"Accept": accept})).status == 200


async def test_a_body_of_another_content_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with instance(monkeypatch, NO_LEADER) as client:
        for content_type, status in (
            ("application/x-www-form-urlencoded", 415),
            ("text/plain", 415),
            ("application/json; charset=utf-8", 400),
            ("application/vnd.schemaregistry.v1+json", 400),
            ("application/octet-stream", 400),
        ):
            headers = ALICE | {"Content-Type": content_type}
            answer = await client.post("/subjects/s/versions", data=b"{", headers=headers)
            content = await answer.json(content_type=None)
            assert (answer.status, content["error_code"]) == (status, status), content_type


async def test_a_body_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with instance(monkeypatch, NO_LEADER) as client:
        body = io.BytesIO(b" " * (BODY_BYTES_MAX + 1))
        answer = await client.post("/subjects/s/versions", data=body, headers=ALICE)
        assert (answer.status, (await answer.json(content_type=None))["error_code"]) == (413, 413)


async def test_a_client_that_stops_in_the_middle_of_a_body_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "BODY_TIMEOUT_S", 0.05)
    async with instance(monkeypatch, NO_LEADER) as client:
        stopped = asyncio.Event()

        async def half() -> AsyncIterator[bytes]:
            yield b"{"
            await stopped.wait()

        answer = await client.post("/subjects/s/versions", data=half(), headers=ALICE)
        assert (answer.status, (await answer.json(content_type=None))["error_code"]) == (408, 408)
        stopped.set()


async def test_a_page_is_named_by_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jersey answers 404 to a parameter that is no number, and takes `maybe` for false."""
    async with instance(monkeypatch, NO_LEADER) as client:
        for query, status in (
            ("offset=0&limit=-1", 200),
            ("offset=&limit=", 200),
            ("offset=x", 404),
            ("limit=1.5", 404),
            ("limit=2147483647", 200),
            ("limit=2147483648", 404),
            ("limit=-2147483648", 200),
            ("limit=-2147483649", 404),
            ("deleted=maybe", 200),
            ("deleted", 200),
        ):
            assert (await client.get(f"/subjects?{query}", headers=ALICE)).status == status, query


@pytest.mark.parametrize("subject", ["a%2Fb", "a%20b", "a+b", "%C3%A9", "%3A.ctx%3As", "a%25b", "..%2F.."])
async def test_a_subject_of_any_name_is_looked_for_by_this_name(
    monkeypatch: pytest.MonkeyPatch, subject: str
) -> None:
    async with instance(monkeypatch, NO_LEADER) as client:
        url = URL(str(client.make_url("")).rstrip("/") + f"/subjects/{subject}/versions", encoded=True)
        answer = await client.session.get(url, headers=ALICE)
        content = await answer.json(content_type=None)
        assert content == {"error_code": 40401, "message": f"Subject '{unquote(subject)}' not found."}


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("s/versions/latest", {"is_compatible": False}),
        ("s/versions/1", {"is_compatible": False}),
        ("s/versions/2", {"error_code": 40402, "message": "Version 2 not found."}),
        ("new/versions", {"is_compatible": True}),
        ("new/versions/latest", {"is_compatible": True}),
        ("new/versions/1", {"error_code": 40401, "message": "Subject 'new' not found."}),
    ],
)
async def test_a_new_subject_is_compatible_with_any_schema(
    monkeypatch: pytest.MonkeyPatch, path: str, answer: dict[str, object]
) -> None:
    """Clients check a schema against `latest` before they register a subject's first version."""
    async with instance(monkeypatch, NO_LEADER, records=[version_of("s", "int")]) as client:
        checked = await client.post(
            f"/compatibility/subjects/{path}", json={"schema": '"string"'}, headers=ALICE
        )
        assert await checked.json(content_type=None) == answer


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/subjects?subjectPrefix=:*:", ["clicks", "orders"]),
        ("/subjects?subjectPrefix=:*:cl", ["clicks"]),
        ("/subjects?subjectPrefix=:.:o", ["orders"]),
        ("/subjects?subjectPrefix=:.prod:", []),
        ("/subjects/:.:clicks/versions", [1]),
        ("/schemas/ids/1/subjects?subject=:.:clicks", ["clicks"]),
        ("/schemas/ids/1/subjects?subject=:.:", ["clicks", "orders"]),
        ("/config/:.:clicks", {"compatibilityLevel": "FULL"}),
        ("/mode/:.:clicks?defaultToGlobal=true", {"mode": "READWRITE"}),
    ],
)
async def test_a_subject_may_have_the_name_of_the_default_context(
    monkeypatch: pytest.MonkeyPatch, path: str, answer: object
) -> None:
    """Confluent's command sends `:*:`; an empty list would look like an empty registry."""
    level = Record(ConfigKey("clicks"), ConfigValue("FULL"))
    records = [version_of("clicks", "int"), version_of("orders", "int"), level]
    async with instance(monkeypatch, NO_LEADER, records=records) as client:
        read = await client.get(path, headers=ALICE)
        assert await read.json(content_type=None) == answer
        (listed,) = await (await client.get("/schemas?subjectPrefix=:*:cl", headers=ALICE)).json()
        assert listed["subject"] == "clicks"
    body = b'{"schema": "x", "references": [{"name": "a", "subject": ":.:b", "version": 1}]}'
    assert parse_schema_request(body).schema.references == (Reference("a", "b", 1),)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", 400),
        ("{", 400),
        ("[" * 100_000, 400),
        ("[]", 400),
        ('"text"', 400),
        ("5", 400),
        ("null", 422),
        ("{}", 42201),
        ('{"schema": null}', 42201),
        ('{"schema": " "}', 42201),
        ('{"schema": 5}', 42201),
        ('{"schema": {"type": "int"}}', 400),
        ('{"schema": "x", "schemaType": 5}', 42201),
        ('{"schema": "x", "schemaType": ["AVRO"]}', 400),
        ('{"schema": "x", "id": "one"}', 400),
        ('{"schema": "x", "version": true}', 400),
        ('{"schema": "x", "version": -7}', 422),
    ],
    ids=range(17),
)
def test_a_body_of_another_form_is_refused_with_the_code_of_confluents_registry(body: str, code: int) -> None:
    with pytest.raises(RegistryError) as refused:
        parse_schema_request(body.encode())
    assert refused.value.code == code


async def test_a_level_or_mode_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with instance(monkeypatch, NO_LEADER) as client:
        for path, body in (("/config", {"compatibility": {}}), ("/mode", {"mode": ["IMPORT"]})):
            answer = await client.put(path, json=body, headers=ALICE)
            assert (answer.status, (await answer.json(content_type=None))["error_code"]) == (400, 400)


@pytest.mark.parametrize("schema_type", ["AVRO", "JSON", "PROTOBUF"])
def test_a_schema_that_is_nested_a_thousand_times_is_refused(schema_type: str) -> None:
    depth = 1000
    text = {
        "AVRO": '{"type":"array","items":' * depth + '"int"' + "}" * depth,
        "JSON": '{"not":' * depth + "{}" + "}" * depth,
        "PROTOBUF": 'syntax = "proto3";' + "message M {" * depth + "}" * depth,
    }[schema_type]
    with pytest.raises(RegistryError) as refused:
        operations.parsed(RegistryState(), SchemaText(schema_type, text))
    assert refused.value.code == 42201
