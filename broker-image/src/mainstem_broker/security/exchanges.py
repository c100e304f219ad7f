"""What a SASL mechanism is to a login: messages of the client in, answers out, and a user at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod


class LoginFailed(Exception):
    """A client did not prove who it is. The message is for the log, and says nothing secret.

    What the client hears does not depend on it, so that it cannot tell an unknown user from a wrong password.
    """


class Exchange(ABC):
    """One login by one mechanism, on the broker's side.

    Attributes:
        user: who has proved to be who they are; None until then.
        claimed_user: who the client says it is, for the log.
        session_ms: how long what was proved is valid; None for no end.
        refusal: why the login fails, if the client is answered once more before it does (RFC 7628).
    """

    def __init__(self) -> None:
        self.user: str | None = None
        self.claimed_user: str | None = None
        self.session_ms: int | None = None
        self.refusal: str | None = None

    @abstractmethod
    def respond(self, message: bytes) -> bytes:
        """The answer to the client's next message.

        Raises:
            LoginFailed: the login is over.
        """
