"""`mainstem consume` as a member of a group: what is committed was written out (R17)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import pytest
from typer.testing import CliRunner

from mainstem.cli import consume as command
from mainstem.cli.main import app
from mainstem.kafka.client import Partition, Topic


class Message:
    """What is shown of a record."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def value(self) -> bytes:
        return self._value


class OneTopic:
    """A cluster that has every topic, with one partition."""

    def topic(self, name: str) -> Topic:
        return Topic(name, [Partition(0, 1, [1], [1])])


class Group:
    """A member that reads two batches, and the output, which ends at one of the records."""

    has_joined = True

    def __init__(self, unwritable: bytes | None) -> None:
        self.done: list[tuple[str, list[bytes]]] = []
        self._unwritable = unwritable

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def records(self) -> Iterator[list[Message]]:
        yield [Message(b"a"), Message(b"b")]
        yield [Message(b"c")]

    def mark_written(self, records: Sequence[Message]) -> None:
        self.done.append(("marked", [record.value() for record in records]))

    def write(self, text: bytes) -> None:
        if self._unwritable is not None and self._unwritable in text:
            raise BrokenPipeError
        self.done.append(("written", text.split()))

    def flush(self) -> None:
        self.done.append(("flushed", []))


@pytest.mark.parametrize(
    ("unwritable", "batches"),
    [(None, [[b"a", b"b"], [b"c"]]), (b"c", [[b"a", b"b"]]), (b"b", [])],
)
def test_offsets_of_a_group_are_committed_after_their_records_are_written(
    monkeypatch: pytest.MonkeyPatch, unwritable: bytes | None, batches: list[list[bytes]]
) -> None:
    """A process that is killed between the two reads some records again, and loses none."""
    group = Group(unwritable)
    monkeypatch.setattr(command, "connect", lambda *_: OneTopic())
    monkeypatch.setattr(command, "GroupReader", lambda *_: group)
    monkeypatch.setattr(command, "stdout_bytes", lambda: group)
    monkeypatch.setattr(command, "drop_stdout", lambda: None)
    arguments = ["consume", "t", "--group", "g", "--follow", "--format", "%s\n"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    expected: list[tuple[str, Any]] = []
    for batch in batches:
        expected += [("written", batch), ("flushed", []), ("marked", batch)]
    assert group.done == expected
