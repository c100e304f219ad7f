from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.errors import InvalidSetting
from mainstem_broker.security.exchanges import LoginFailed
from mainstem_broker.security.jaas import parse_jaas
from mainstem_broker.security.plain import PlainServer, client_message, users_of

JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required\n username="admin"'
    '  password="admin-secret"'
    ' user_admin="admin-secret" user_alice="a \\"quoted\\" ;secret" user_bob=bare;'
)


def server() -> PlainServer:
    return PlainServer(users_of(parse_jaas(JAAS, "sasl.jaas.config")))


@pytest.mark.parametrize(
    ("user", "password"), [("admin", "admin-secret"), ("alice", 'a "quoted" ;secret'), ("bob", "bare")]
)
def test_users_of_the_settings_log_in_with_their_password(user: str, password: str) -> None:
    for message in (client_message(user, password), f"{user}\0{user}\0{password}".encode()):
        exchange = server()
        assert exchange.respond(message) == b""
        assert exchange.user == user


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0admin",
        b"\0admin\0",
        b"\0\0",
        b"\0\0admin-secret",
        b"\0admin\0wrong",
        b"\0nobody\0admin-secret",
        b"bob\0admin\0admin-secret",
        b"\0admin\0admin-secret\0",
        b"\0admin\0admin-secret\0more",
        b"\xff\0\xff\0\xff",
    ],
)
def test_anything_else_fails(message: bytes) -> None:
    exchange = server()
    with pytest.raises(LoginFailed) as failed:
        exchange.respond(message)
    assert exchange.user is None
    assert "secret" not in str(failed.value)


@given(st.binary(max_size=100))
def test_arbitrary_messages_log_nobody_in(message: bytes) -> None:
    exchange = server()
    with pytest.raises(LoginFailed):
        exchange.respond(message)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Module",
        "Module required",
        'Module required a="b"',
        'Module required a="b',
        "Module sometimes a=b;",
        'M required a="b"; c',
    ],
)
def test_jaas_that_cannot_be_read_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse_jaas(text.replace("b", "hunter2"), "the.setting")
    assert "the.setting" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        r"M required username=\"admin\" password=\"se cret\";",
        r'M required username="admin" password="se cret";',
        r"M required username='admin' password='se\ cret';",
    ],
)
def test_quotes_may_be_escaped_as_javas_files_of_properties_allow(text: str) -> None:
    assert parse_jaas(text, "x") == {"username": "admin", "password": "se cret"}


def test_an_escaped_quote_within_quotes_is_part_of_the_value() -> None:
    assert parse_jaas(r'M required password="a=\"b\"";', "x") == {"password": 'a="b"'}


def test_a_module_without_options_has_none() -> None:
    assert parse_jaas("Module required;", "x") == {}
