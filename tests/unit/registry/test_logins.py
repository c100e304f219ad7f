"""Who may use the HTTP API: users whose passwords the brokers check (R38)."""

from __future__ import annotations

import asyncio
import base64

import pytest
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed
from structlog.testing import capture_logs

from mainstem_registry import logins as module
from mainstem_registry.client_security import Brokers
from mainstem_registry.errors import RegistryError
from mainstem_registry.logins import (
    ACCEPTED_MAX,
    ACCEPTED_S,
    PARALLEL_LOGINS_MAX,
    REFUSED_LINES_S,
    BrokerLogin,
    LoginRefused,
    Logins,
    parse_basic,
)

ADDRESS, PASSWORD = "10.0.0.7", "a-secret-of-alice"


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


ALICE = basic(f"alice:{PASSWORD}")


class FakeBrokers:
    """Knows alice. It counts logins, and holds them while `gate` is closed."""

    def __init__(self) -> None:
        self.password = PASSWORD
        self.logins = 0
        self.parallel = self.parallel_max = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.all_taken = asyncio.Event()
        self.failure: Exception | None = None

    async def __call__(self, user: str, password: str) -> None:
        self.logins += 1
        self.parallel += 1
        self.parallel_max = max(self.parallel, self.parallel_max)
        if self.parallel == PARALLEL_LOGINS_MAX:
            self.all_taken.set()
        try:
            await self.gate.wait()
        finally:
            self.parallel -= 1
        if self.failure is not None:
            raise self.failure
        if not user.startswith("alice") or password != self.password:
            raise LoginRefused


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def refusal(logins: Logins, header: str | None) -> tuple[int, str]:
    with pytest.raises(RegistryError) as refused:
        await logins.user_of(header, ADDRESS)
    return refused.value.code, refused.value.message


def test_basic_authentication_is_parsed_and_nothing_else_is() -> None:
    assert parse_basic(ALICE) == ("alice", PASSWORD)
    assert parse_basic(basic("alice:a:b").replace("Basic", "bASIC")) == ("alice", "a:b")
    assert parse_basic(basic("ännchen:ö")) == ("ännchen", "ö")
    for header in (
        None,
        "",
        "Basic",
        "Basic !",
        "Basic \udcff",
        basic("alice"),
        basic(":x"),
        "Bearer abc",
        "Basic /w==",
    ):
        assert parse_basic(header) is None


def test_no_name_smuggles_another_field_into_a_login_by_plain() -> None:
    """A message of PLAIN separates its fields by NUL (RFC 4616, R38)."""
    assert parse_basic(basic(f"x\0alice\0{PASSWORD}:y")) is None
    assert parse_basic(basic(f"alice:{PASSWORD}\0")) is None


async def test_an_unknown_user_a_wrong_password_and_no_password_get_the_same_answer() -> None:
    logins = Logins(FakeBrokers())
    assert await logins.user_of(ALICE, ADDRESS) == "alice"
    answers = [
        await refusal(logins, header) for header in (basic("bob:x"), basic("alice:x"), None, "Bearer abc")
    ]
    assert len(set(answers)) == 1
    assert answers[0][0] == 401


async def test_an_accepted_login_holds_for_a_short_time_and_a_refused_one_not_at_all() -> None:
    brokers, clock = FakeBrokers(), Clock()
    logins = Logins(brokers, clock)
    for _ in range(3):
        await logins.user_of(ALICE, ADDRESS)
    assert brokers.logins == 1
    brokers.password = "another"
    clock.now += ACCEPTED_S
    assert (await refusal(logins, ALICE))[0] == 401
    brokers.password = PASSWORD
    assert await logins.user_of(ALICE, ADDRESS) == "alice"
    assert brokers.logins == 3


async def test_a_password_of_one_user_is_none_of_another_with_the_same_characters() -> None:
    brokers = FakeBrokers()
    logins = Logins(brokers)
    await logins.user_of(ALICE, ADDRESS)
    assert (await refusal(logins, basic(f"alicea:{PASSWORD[1:]}")))[0] == 401


async def test_neither_requests_nor_guesses_take_many_connections_of_the_brokers() -> None:
    brokers = FakeBrokers()
    logins = Logins(brokers)
    brokers.gate.clear()
    requests = [asyncio.create_task(logins.user_of(ALICE, ADDRESS)) for _ in range(50)]
    guesses = [asyncio.create_task(logins.user_of(basic(f"alice:{n}"), ADDRESS)) for n in range(50)]
    await brokers.all_taken.wait()
    requests[0].cancel()  # a client that goes away takes nothing from those that wait with it
    brokers.gate.set()
    assert await asyncio.gather(*requests[1:]) == ["alice"] * 49
    assert all(
        isinstance(answer, RegistryError) for answer in await asyncio.gather(*guesses, return_exceptions=True)
    )
    assert brokers.parallel_max == PARALLEL_LOGINS_MAX
    assert brokers.logins == 51


async def test_what_is_remembered_is_bounded_and_no_password() -> None:
    brokers, clock = FakeBrokers(), Clock()
    logins = Logins(brokers, clock)
    for number in range(ACCEPTED_MAX + 10):
        await logins.user_of(basic(f"alice{number}:{PASSWORD}"), ADDRESS)
    assert len(logins._accepted) == ACCEPTED_MAX
    assert PASSWORD not in repr(logins._accepted)
    clock.now += ACCEPTED_S
    await logins.user_of(ALICE, ADDRESS)
    assert len(logins._accepted) == 1


@pytest.mark.parametrize(
    "failure",
    [KafkaConnectionError("no route"), OSError("refused"), TimeoutError(), ValueError("wrong signature")],
)
async def test_brokers_that_cannot_say_are_no_refusal_and_no_admission(failure: Exception) -> None:
    brokers = FakeBrokers()
    logins = Logins(brokers)
    brokers.failure = failure
    assert (await refusal(logins, ALICE))[0] == 50301
    brokers.failure = None
    assert await logins.user_of(ALICE, ADDRESS) == "alice"


async def test_refused_logins_are_logged_without_names_and_passwords_and_not_each() -> None:
    clock = Clock()
    logins = Logins(FakeBrokers(), clock)
    with capture_logs() as lines:
        for _ in range(100):
            with pytest.raises(RegistryError) as refused:
                await logins.user_of(basic("my-password:alice"), ADDRESS)
        clock.now += REFUSED_LINES_S
        await refusal(logins, basic("my-password:alice"))
    assert [(line["event"], line["address"], line["count"]) for line in lines] == [
        ("login refused", ADDRESS, 1), ("login refused", ADDRESS, 100)
    ]  # fmt: skip
    assert "my-password" not in repr(lines)
    assert "my-password" not in refused.value.message


async def test_a_broker_that_cannot_be_reached_leaves_the_question_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[str, int]] = []

    class Connection:
        def close(self) -> None: ...

    async def connect(host: str, port: int, **arguments: object) -> Connection:
        tried.append((host, port))
        assert arguments["sasl_plain_username"] == "alice"
        if port == 1:
            raise KafkaConnectionError("no route")
        if arguments["sasl_plain_password"] != PASSWORD:
            raise SaslAuthenticationFailed("alice")
        return Connection()

    monkeypatch.setattr(module, "create_conn", connect)
    log_in = BrokerLogin(Brokers("a:1,[::1]:2,c:3", "SASL_PLAINTEXT", mechanism="PLAIN"))
    await log_in("alice", PASSWORD)
    with pytest.raises(LoginRefused):
        await log_in("alice", "x")
    assert tried == [("a", 1), ("::1", 2)] * 2  # the first that answers decides
    with pytest.raises(KafkaConnectionError):
        await BrokerLogin(Brokers("a:1", "SASL_PLAINTEXT", mechanism="PLAIN"))("alice", PASSWORD)
