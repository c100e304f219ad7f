"""Messages as the paper's sample has them (§3): bytes with a payload, and sets of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """A message to be sent: a payload of bytes, and a key if its partition is to follow from one."""

    payload: bytes
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class ReceivedMessage(Message):
    """A message as a stream delivers it, and where it lies."""

    topic: str = ""
    partition: int = -1
    offset: int = -1


class MessageSet:
    """Messages that are sent by one call: `MessageSet(message, ...)`."""

    __slots__ = ("_messages",)

    def __init__(self, *messages: Message) -> None:
        for message in messages:
            if not isinstance(message.payload, bytes):
                raise TypeError(f"A payload is bytes, not {type(message.payload).__name__}: encode it first.")
        self._messages = messages

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)
