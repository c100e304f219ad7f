"""Requests that cannot be read are refused with the status of the client's error, and no other (R31)."""

from __future__ import annotations

import pytest
from tests.unit.registry.test_server_access import ALICE, instance
from yarl import URL

from mainstem_registry.errors import RegistryError
from mainstem_registry.requests import parse_schema_request

NO_LEADER = "http://127.0.0.1:1"


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
    assert refused.value.code == 422
