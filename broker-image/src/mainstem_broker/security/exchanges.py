"""What a SASL mechanism is to a login: messages of the client in, answers out, and a user at the end."""

from __future__ import annotations

from typing import Protocol


class LoginFailed(Exception):
    """A client did not prove who it is. The message is for the log, and says nothing secret.

    What the client hears does not depend on it, so that it cannot tell an unknown user from a wrong password.
    """


class Exchange(Protocol):
    """One login by one mechanism, on the broker's side."""

    @property
    def user(self) -> str | None:
        """Who has proved to be who they are; None until then."""
        ...

    @property
    def claimed_user(self) -> str | None:
        """Who the client says it is, for the log."""
        ...

    @property
    def session_ms(self) -> int | None:
        """How long what was proved is valid; None for no end."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why the login fails, if the client is answered once more before it does (RFC 7628)."""
        ...

    def respond(self, message: bytes) -> bytes:
        """The answer to the client's next message.

        Raises:
            LoginFailed: the login is over.
        """
        ...
