"""Which lines `mainstem produce` sends (R21)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from mainstem.cli import produce as command
from mainstem.cli.main import app
from mainstem.errors import BadInput, ClusterRefused
from mainstem.interruption import Interruption
from mainstem.kafka.client import Partition, Topic
from mainstem.records.sending import ANY_PARTITION, Sent


class TwoPartitions:
    """A cluster that has every topic, with two partitions."""

    def topic(self, name: str) -> Topic:
        return Topic(name, [Partition(index, 1, [1], [1]) for index in range(2)])


class PlayedSender:
    """Acknowledges each record but those of `failed`, and is interrupted before number `interrupted_at`."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes | None, bytes | None, int]] = []
        self.failed: dict[str, int] = {}
        self.interrupted_at = -1
        self.resume_at = 0

    def send(self, records: Any, partition: int, _headers: Any) -> None:
        for value, key, *_ in records:
            if len(self.sent) == self.interrupted_at:
                raise KeyboardInterrupt
            self.sent.append((value, key, partition))

    def finish(self) -> Sent:
        return Sent(len(self.sent), len(self.sent) - sum(self.failed.values()), self.failed, len(self.sent))

    def give_up(self) -> Sent:
        return replace(self.finish(), resume_at=self.resume_at)


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> PlayedSender:
    played = PlayedSender()
    monkeypatch.setattr(command, "connect", lambda *_: TwoPartitions())
    monkeypatch.setattr(command, "Sender", lambda *_: played)
    monkeypatch.setattr(Interruption, "install", lambda *_: None)
    return played


def files(folder: Path) -> list[str]:
    """Two files of two lines; the last line does not end."""
    texts = {"one": b"a:1\nb:2:3\n", "two": b"c:4\nd"}
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return [str(folder / name) for name in texts]


LINES = [b"a:1", b"b:2:3", b"c:4", b"d"]


@pytest.mark.parametrize("skip", [0, 1, 2, 3, 4, 9])
def test_skipped_lines_are_counted_over_all_files_and_not_sent(
    sender: PlayedSender, tmp_path: Path, skip: int
) -> None:
    result = CliRunner().invoke(app, ["produce", "t", *files(tmp_path), "--skip", str(skip)])
    assert result.exit_code == 0, result.output
    assert sender.sent == [(value, None, ANY_PARTITION) for value in LINES[skip:]]


def test_a_line_that_does_not_fit_is_named_by_its_number_also_after_skipped_ones(
    sender: PlayedSender, tmp_path: Path
) -> None:
    options = ["--key-separator", ":", "--skip", "1", "--partition", "1"]
    result = CliRunner().invoke(app, ["produce", "t", *files(tmp_path), *options])
    assert isinstance(result.exception, BadInput)
    assert f"Line 2 of {tmp_path / 'two'} was not sent: it has no ':'" in str(result.exception)
    assert "(2 records were sent and acknowledged before it.)" in str(result.exception)
    assert sender.sent == [(b"2:3", b"b", 1), (b"4", b"c", 1)]


def test_what_is_not_acknowledged_is_counted_and_ends_with_an_error(
    sender: PlayedSender, tmp_path: Path
) -> None:
    sender.failed = {"It is full.": 2, "There is no leader.": 1}
    result = CliRunner().invoke(app, ["produce", "t", *files(tmp_path)])
    assert isinstance(result.exception, ClusterRefused)
    assert str(result.exception) == (
        "3 of 4 records were not acknowledged by topic t: It is full (2); There is no leader (1)."
    )
    assert "Sent" not in result.output


def test_an_interrupted_run_says_how_it_is_resumed(sender: PlayedSender, tmp_path: Path) -> None:
    sender.interrupted_at, sender.resume_at = 2, 1
    result = CliRunner().invoke(app, ["produce", "t", *files(tmp_path), "--skip", "1"])
    assert result.exit_code == 130
    shown = " ".join(result.output.split())
    assert "2 of 2 records were acknowledged" in shown
    assert shown.endswith("--skip 2 (records that may be stored twice: up to 1)")


def test_records_without_an_acknowledgement_may_be_stored_all_the_same(
    sender: PlayedSender, tmp_path: Path
) -> None:
    sender.interrupted_at, sender.resume_at, sender.failed = 3, 1, {"It was interrupted.": 2}
    result = CliRunner().invoke(app, ["produce", "t", *files(tmp_path)])
    shown = " ".join(result.output.split())
    assert "1 of 3 records were acknowledged" in shown
    assert shown.endswith("--skip 1 (records that may be stored twice: up to 2)")


VALUES = [b"a\r", b"\r", b"b\r\r", b"", b"\x85 \xe2\x80\xa8 \v\f\x1c\x1d\x1e", b"c\rd", b"\xff\0", b"e"]
"""Values that hold, or end with, what other programs take for the end of a line; the last is none of them."""


def test_only_a_line_feed_ends_a_line(sender: PlayedSender, tmp_path: Path) -> None:
    """R36. Lines that `consume` wrote are sent as they were. A file of Windows is reported."""
    path = tmp_path / "values"
    path.write_bytes(b"\n".join(VALUES))
    result = CliRunner().invoke(app, ["produce", "t", str(path)])
    assert result.exit_code == 0, result.output
    assert [value for value, *_ in sender.sent] == VALUES
    assert "Note: 3 lines end with a carriage return" in " ".join(result.output.split())


def test_keys_and_values_keep_what_is_not_a_line_feed(sender: PlayedSender, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%b\t%b\n" % (value, value) for value in VALUES))
    result = CliRunner().invoke(app, ["produce", "t", str(path), "--key-separator", "\t"])
    assert result.exit_code == 0, result.output
    assert [(value, key) for value, key, _ in sender.sent] == [(value, value) for value in VALUES]


def test_a_carriage_return_after_a_json_record_is_not_part_of_it(
    sender: PlayedSender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TwoPartitions, "topic_settings", lambda *_: None, raising=False)
    path = tmp_path / "records"
    path.write_bytes(b'{"value": "a\\r"}\r\n')
    result = CliRunner().invoke(app, ["produce", "t", str(path), "--json-records"])
    assert result.exit_code == 0, result.output
    assert [value for value, *_ in sender.sent] == [b"a\r"]
    assert "carriage return" not in result.output


@pytest.mark.parametrize("partition", [2, 3])
def test_a_partition_that_the_topic_does_not_have_is_refused_before_a_record_is_sent(
    sender: PlayedSender, tmp_path: Path, partition: int
) -> None:
    result = CliRunner().invoke(app, ["produce", "t", *files(tmp_path), "--partition", str(partition)])
    assert isinstance(result.exception, BadInput)
    assert str(result.exception) == f"Topic t has partitions 0 to 1, not {partition}."
    assert sender.sent == []


KEPT_FOR_1_S = {"retention.ms": "1000"}


@pytest.mark.parametrize(
    ("settings", "old"),
    [
        (KEPT_FOR_1_S, 2),
        ({**KEPT_FOR_1_S, "cleanup.policy": "compact,delete"}, 2),
        ({**KEPT_FOR_1_S, "cleanup.policy": "compact"}, 0),
        ({**KEPT_FOR_1_S, "message.timestamp.type": "LogAppendTime"}, 0),
        ({"retention.ms": "-1"}, 0),
        ({"retention.ms": str(10**14)}, 0),
        ({}, 0),
    ],
)
def test_records_that_retention_deletes_at_once_are_reported(
    sender: PlayedSender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], old: int
) -> None:
    """By their timestamps; a record without one gets that of its arrival."""
    entries = {name: SimpleNamespace(value=value) for name, value in settings.items()}
    monkeypatch.setattr(TwoPartitions, "topic_settings", lambda *_: entries, raising=False)
    lines = [{"value": "a", "timestamp_ms": 1}, {"value": "b", "timestamp_ms": 2}, {"value": "c"}]
    path = tmp_path / "records"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = CliRunner().invoke(app, ["produce", "t", str(path), "--json-records"])
    assert result.exit_code == 0, result.output
    assert len(sender.sent) == 3
    shown = " ".join(result.output.split())
    assert ("2 records have timestamps older than retention.ms of topic t (1s)" in shown) == bool(old)
    assert ("will be deleted soon" in shown) == bool(old)
