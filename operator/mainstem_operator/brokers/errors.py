"""What can go wrong with a request to brokers."""

from __future__ import annotations


class BrokersRefused(Exception):
    """A broker answered with an error; `code` is the name of Kafka's error, `str()` its sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BrokersUnreachable(Exception):
    """No broker answered."""
