"""The order of a login's requests, with a mechanism that takes passwords in plain text."""

from __future__ import annotations

import pytest

from mainstem_broker.security.exchanges import Exchange, LoginFailed
from mainstem_broker.security.login import Login
from mainstem_broker.security.plain import PlainServer, client_message, users_of
from mainstem_broker.security.principals import Principal

METADATA_KEY = 3
USERS = users_of({"user_alice": "a", "user_bob": "b"})
ALICE, BOB, WRONG = client_message("alice", "a"), client_message("bob", "b"), client_message("alice", "x")


class PlayedToken(Exchange):
    """An exchange that a token of this duration ends at once, or that a refused one ends in two steps."""

    def __init__(self, session_ms: int) -> None:
        super().__init__()
        self.session_ms = session_ms

    def respond(self, message: bytes) -> bytes:
        if message == b"refused":
            self.refusal = "The token has expired."
            return b"{}"
        self.user = self.claimed_user = "alice"
        return b""


class Case:
    """A login, and what it has said of itself."""

    def __init__(self, session_ms: int = 0) -> None:
        self.logged_in: list[tuple[Principal, int]] = []
        self.failed: list[str] = []
        self.token_ms = 3_000
        self.login = Login(
            {
                "PLAIN": lambda: PlainServer(USERS),
                "OTHER": lambda: PlainServer(USERS),
                "TOKEN": lambda: PlayedToken(self.token_ms),
            },
            session_ms,
            lambda principal, ms: self.logged_in.append((principal, ms)),
            self.failed.append,
        )

    def is_under_way(self) -> bool:
        return self.login.is_under_way

    def log_in(self, message: bytes = ALICE, now_s: float = 0.0, mechanism: str = "PLAIN") -> None:
        assert self.login.choose(mechanism, 1, now_s), self.failed
        self.login.respond(message)


def test_a_wrong_password_fails_the_login_and_logs_nobody_in() -> None:
    case = Case()
    with pytest.raises(LoginFailed):
        case.log_in(WRONG)
    assert case.failed
    assert not case.logged_in
    assert case.is_under_way()
    with pytest.raises(LoginFailed):
        case.login.respond(ALICE)
    assert not case.logged_in, "the exchange that failed is over"


def test_a_message_without_a_handshake_is_refused() -> None:
    with pytest.raises(LoginFailed, match="No login is under way"):
        Case().login.respond(ALICE)


# --- Logging in again (KIP-368) ---


def test_without_a_limit_a_second_login_is_refused_and_the_first_stays() -> None:
    case = Case()
    case.log_in()
    with pytest.raises(LoginFailed, match="has logged in already"):
        case.login.choose("PLAIN", 1, 100.0)
    with pytest.raises(LoginFailed, match="No login is under way"):
        case.login.respond(ALICE)
    assert not case.is_under_way()
    assert not case.failed


def test_with_a_limit_the_client_hears_it_and_logs_in_again() -> None:
    case = Case(session_ms=5_000)
    assert case.login.choose("PLAIN", 1, 0.0)
    assert case.login.respond(ALICE) == (b"", 5_000)
    assert case.login.choose("PLAIN", 1, 4.0)
    assert case.is_under_way()
    assert not case.login.allows(METADATA_KEY), "nothing else may come in between"
    case.login.respond(ALICE)
    assert not case.is_under_way()
    assert case.logged_in == [(Principal("alice"), 5_000)] * 2


def test_a_second_login_must_be_by_the_same_user() -> None:
    case = Case(session_ms=5_000)
    case.log_in()
    with pytest.raises(LoginFailed, match="as another user"):
        case.log_in(BOB, now_s=4.0)
    assert case.failed == ["The client logs in again as another user."]
    assert len(case.logged_in) == 1


@pytest.mark.parametrize(
    ("mechanism", "now_s", "reason"), [("OTHER", 4.0, "by another mechanism"), ("PLAIN", 0.5, "too soon")]
)
def test_a_second_login_must_be_by_the_same_mechanism_and_not_too_soon(
    mechanism: str, now_s: float, reason: str
) -> None:
    case = Case(session_ms=5_000)
    case.log_in()
    assert not case.login.choose(mechanism, 1, now_s)
    assert reason in case.failed[0]


def test_a_second_login_that_fails_ends_the_connection() -> None:
    case = Case(session_ms=5_000)
    case.log_in()
    with pytest.raises(LoginFailed):
        case.log_in(WRONG, now_s=4.0)
    assert case.failed
    assert case.is_under_way()


# --- What the client proves has an end ---


@pytest.mark.parametrize(("session_ms", "expected_ms"), [(0, 3_000), (5_000, 3_000), (2_000, 2_000)])
def test_a_session_ends_at_the_latest_when_its_token_expires(session_ms: int, expected_ms: int) -> None:
    """As in Kafka, also without connections.max.reauth.ms (R38)."""
    case = Case(session_ms)
    assert case.login.choose("TOKEN", 1, 0.0)
    assert case.login.respond(b"") == (b"", expected_ms)
    assert case.logged_in == [(Principal("alice"), expected_ms)]


def test_a_client_with_a_token_logs_in_again_also_without_a_limit() -> None:
    case = Case()
    case.log_in(mechanism="TOKEN")
    case.token_ms = 60_000
    case.log_in(now_s=2.0, mechanism="TOKEN")
    assert case.logged_in == [(Principal("alice"), 3_000), (Principal("alice"), 60_000)]


def test_a_client_that_does_not_read_why_it_is_refused_leaves_the_reason_in_the_log() -> None:
    """aiokafka goes on with its next request, which then was the reason in the log."""
    case = Case()
    case.log_in(b"refused", mechanism="TOKEN")
    assert not case.login.allows(METADATA_KEY)
    case.login.fail("API key 3 came in place of a step of the login.")
    assert case.failed == ["The token has expired."]


@pytest.mark.parametrize("session_ms", [0, 5_000])
def test_a_token_that_has_expired_already_logs_nobody_in(session_ms: int) -> None:
    """KAFKA-13848: its session would have no end."""
    case = Case(session_ms)
    case.token_ms = 0
    with pytest.raises(LoginFailed, match="has expired"):
        case.log_in(mechanism="TOKEN")
    assert not case.logged_in
