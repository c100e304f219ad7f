"""`mainstem log verify|offsets|transactions` on files, some of them hostile (R6, R9)."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import DEFAULTS, NOW_MS, append, open_log, settings
from tests.unit.broker.log.transactional import TRANSACTIONAL, abort, commit, write
from typer.testing import CliRunner, Result

from mainstem.cli import log_dump, log_files, log_transactions, log_verify
from mainstem.cli.log_files import record_lines
from mainstem.cli.main import app
from mainstem.errors import BadInput, CommandError
from mainstem_broker.group.classic.records import GroupKey, GroupMetadata, MemberMetadata
from mainstem_broker.group.consumer.records import CURRENT_KEY, ConsumerGroupKey, CurrentAssignment
from mainstem_broker.group.offsets.records import CommittedOffset, OffsetKey
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.protocol.batches import parse_batch_header
from mainstem_broker.protocol.records import Record
from mainstem_broker.txn import records as transaction_records
from mainstem_broker.txn.states import State
from mainstem_broker.txn.transaction import Transaction

TOPIC_ID = UUID(int=7)


def log_of(directory: Path) -> PartitionLog:
    return PartitionLog.open(
        directory, DEFAULTS, clean_shutdown=True, recovery_point=0, log_start_offset=0, now_ms=NOW_MS
    )


def add(log: PartitionLog, *records: tuple[bytes, bytes | None], producer_id: int = -1) -> None:
    content = [Message(value, key, (), NOW_MS) for key, value in records]
    attributes = TRANSACTIONAL if producer_id >= 0 else 0
    batch = encode_batch(
        content, attributes=attributes, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1
    )
    log.append_as_leader(batch, parse_batch_header(batch), 0, NOW_MS)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["log", *map(str, arguments)])


def rows(*arguments: str | Path) -> list[dict[str, Any]]:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def offsets(tmp_path: Path) -> Path:
    """Committed offsets, groups of both kinds, a transaction and a record that is none."""
    log = log_of(tmp_path / "data" / "__consumer_offsets-3")
    committed = CommittedOffset(42, 5, "by\x1bhand", NOW_MS)
    add(log, (OffsetKey("readers", "clicks", 2).encode(), committed.encode()))
    add(log, (OffsetKey("readers", "clicks", 2).encode(), None))
    member = MemberMetadata("m-1", None, "client", "/127.0.0.1", 1, 2, b"\0\1", b"\0\2")
    group = GroupMetadata("consumer", 3, "range", "m-1", NOW_MS, (member,))
    add(log, (GroupKey("readers").encode(), group.encode()))
    current = CurrentAssignment(epoch=4, assigned=frozenset({(TOPIC_ID, 1), (TOPIC_ID, 0)}))
    add(log, (ConsumerGroupKey(CURRENT_KEY, "movers", "m-2").encode(), current.encode()))
    add(log, (OffsetKey("readers", "clicks", 0).encode(), committed.encode()), producer_id=9)
    commit(log, 9)
    add(log, (struct.pack(">h", 99), b"of the future"))
    log.close()
    return log.directory


def test_offsets_and_groups_are_decoded(offsets: Path) -> None:
    shown = rows("offsets", offsets)
    assert [row["kind"] for row in shown] == [
        "offset",
        "offset",
        "classic group",
        "current assignment",
        "offset",
        "commit",
        "unknown",
    ]
    assert shown[0] == {
        "offset": 0,
        "timestamp_ms": NOW_MS,
        "transaction_of_producer": None,
        "kind": "offset",
        "group": "readers",
        "topic": "clicks",
        "partition": 2,
        "value": {
            "offset": 42,
            "leader_epoch": 5,
            "metadata": "by\x1bhand",
            "commit_ms": NOW_MS,
            "expire_ms": None,
            "topic_id": None,
        },
    }
    assert shown[1]["value"] is None
    assert shown[2]["value"]["members"][0]["subscription"] == "AAE="
    assert shown[3]["value"]["assigned"] == [[str(TOPIC_ID), 0], [str(TOPIC_ID), 1]]
    assert [row["transaction_of_producer"] for row in shown[4:]] == [9, 9, None]


def test_offsets_are_lines_of_text_that_cannot_steer_a_terminal(offsets: Path) -> None:
    text = run("offsets", offsets).stdout
    assert "\x1b" not in text
    for part in (
        "readers: clicks-2 at 42, committed 2025-06-15T15:06:40.000Z, by\\x1bhand\n",
        "readers: clicks-2 deleted\n",
        'readers: classic group {"protocol_type":"consumer","generation":3,',
        "movers: current assignment m-2 {",
        "clicks-0 at 42, committed 2025-06-15T15:06:40.000Z, by\\x1bhand (transaction of producer 9)\n",
        "commit marker (transaction of producer 9)\n",
        "of a kind that this version does not know\n",
    ):
        assert part in text


def test_the_partitions_of_the_topic_are_found_below_a_data_directory(offsets: Path) -> None:
    add(log_of(offsets.with_name("clicks-0")), (b"key", b"not an offset"))
    assert len(rows("offsets", offsets.parent)) == 7

    other = offsets.parent.with_name("other")
    add(log_of(other / "clicks-0"), (b"key", b"value"))
    result = run("offsets", other)
    assert isinstance(result.exception, BadInput)
    assert str(result.exception) == f"{other} holds no partition of __consumer_offsets."


def test_a_record_in_another_format_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    log = log_of(tmp_path / "__consumer_offsets-0")
    key = OffsetKey("readers", "clicks", 0).encode()
    add(log, (key, b"\0\3nonsense"), (b"", b""), (key, CommittedOffset(1, 0, "", NOW_MS).encode()))
    log.close()
    result = run("offsets", log.directory)
    assert isinstance(result.exception, CommandError)
    assert "clicks-0 at 1" in result.stdout
    for offset in (0, 1):
        assert f"at byte 0: the record of offset {offset} cannot be decoded: " in result.stderr


def test_transactional_ids_are_decoded(tmp_path: Path) -> None:
    log = log_of(tmp_path / "__transaction_state-0")
    key = transaction_records.encode_key("enricher-1")
    partitions = frozenset({("orders", 1), ("clicks", 0)})
    transaction = Transaction(5, 2, 60_000, State.ONGOING, partitions, NOW_MS, NOW_MS - 1)
    add(log, (key, transaction_records.encode_value(transaction)))
    add(log, (key, None))
    log.close()
    first, second = rows("transactions", log.directory)
    assert first == {
        "offset": 0,
        "timestamp_ms": NOW_MS,
        "transaction_of_producer": None,
        "transactional_id": "enricher-1",
        "state": "Ongoing",
        "producer_id": 5,
        "producer_epoch": 2,
        "timeout_ms": 60_000,
        "partitions": ["clicks-0", "orders-1"],
        "started_ms": NOW_MS - 1,
        "updated_ms": NOW_MS,
        "previous_producer_id": -1,
        "next_producer_id": -1,
        "client_version": 0,
    }
    assert (second["transactional_id"], second["state"]) == ("enricher-1", None)
    text = run("transactions", log.directory).stdout
    assert "enricher-1 Ongoing, producer 5, epoch 2: clicks-0, orders-1\n" in text
    assert "enricher-1 deleted\n" in text


def test_transactions_of_a_partition_are_shown(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, 7)
    abort(log, 7)
    write(log, 8)
    log.close()
    (row,) = rows("transactions", tmp_path)
    assert row["log"] == str(log.directory)
    assert [one["producer_id"] for one in row["open"]] == [8]
    assert [(one["first_offset"], one["last_offset"]) for one in row["aborted"]] == [(0, 1)]
    assert [one["producer_id"] for one in row["producers"]] == [7, 8]
    lines = [line.split() for line in run("transactions", log.directory).stdout.splitlines()]
    assert lines[:2] == [[str(log.directory)], ["1", "open,", "1", "aborted,", "0", "committed"]]
    assert [line[:5] for line in lines[3:5]] == [
        ["open", "8", "0", "2", "2"],
        ["aborted", "7", "0", "0", "1"],
    ]


def test_verify_checks_logs_and_the_data_directory_around_them(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, [b"a"])
    log.close()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 5\n")
    result = run("verify", tmp_path)
    assert result.exit_code != 0
    text = " ".join(result.stderr.split())
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    assert f"✗ {checkpoint}: it has offset 5 for t-0, which ends at 1: records that were flushed" in text
    # The directory is not meant when one of its partitions is named.
    (row,) = rows("verify", log.directory)
    assert row == {"log": str(log.directory), "segments": 1, "bytes": 69, "problems": []}


def test_r9_the_entries_of_an_index_are_shown(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings(index_interval_bytes=1))
    for number in range(3):
        append(log, [b"x" * 50], timestamp_ms=NOW_MS + number)
    log.close()
    index, time_index = (log.directory / f"{0:020d}{suffix}" for suffix in (".index", ".timeindex"))
    batches = rows("dump", log.directory)
    assert rows("dump", index) == [
        {"offset_index": str(index), "offset": batch["base_offset"], "position": batch["position"]}
        for batch in batches[1:]
    ]
    assert rows("dump", time_index)[0] == {
        "time_index": str(time_index),
        "timestamp": NOW_MS + 1,
        "offset": 1,
    }
    lines = [line.split() for line in run("dump", index).stdout.splitlines()]
    assert lines[0] == [str(index), "(2", "entries)"]
    assert lines[1:3] == [["Offset", "Position"], ["1", str(batches[1]["position"])]]
    assert "Latest timestamp" in run("dump", time_index).stdout


@pytest.mark.parametrize("command", ["verify", "dump", "transactions"])
def test_logs_that_a_broker_deletes_are_passed_over(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is renamed before the folders are listed, the other removed after that."""
    staying, renamed, removed = (log_of(tmp_path / f"{name}-0") for name in ("a", "b", "c"))
    for log in (staying, renamed, removed):
        append(log, [b"x"])
        log.close()
    renamed.directory.rename(tmp_path / f"b-0.{uuid4().hex}-delete")
    listed = log_files.logs_under

    def remove_after_listing(path: Path) -> Iterator[Path]:
        logs = list(listed(path))
        shutil.rmtree(removed.directory)
        return iter(logs)

    for module in (log_verify, log_dump, log_transactions):
        monkeypatch.setattr(module, "logs_under", remove_after_listing)
    result = run(command, tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("width", [80, 120])
def test_lines_are_no_longer_than_the_terminal_is_wide(tmp_path: Path, width: int) -> None:
    record = Record(1_234_567_890, NOW_MS, None, None)
    lines = record_lines(record, 123_456, "payments-of-customers: clicks-0 at 42, " + "x" * 300, width)
    assert [line for line in lines.splitlines() if len(line) > width] == []
    assert "".join(lines.split()).count("x") == 300
    log = open_log(tmp_path)
    write(log, 7)
    log.close()
    shown = run("transactions", log.directory).stdout.splitlines()[1:]
    assert [line for line in shown if len(line) > width] == []


def hostile_files(chance: random.Random) -> list[bytes]:
    good = encode_batch([Message(b"v", b"k", (), NOW_MS)])
    return [
        b"",
        b"\0",
        good[:-1],
        good + b"\xff" * 100,
        b"\xff" * 1000,
        b"\0" * 1000,
        good[:8] + struct.pack(">i", 2**31 - 1) + good[12:],
        good[:8] + struct.pack(">i", -1) + good[12:],
        good[:57] + struct.pack(">i", 2**31 - 1) + good[61:],
        *(chance.randbytes(chance.randrange(200)) for _ in range(3)),
        *(
            good[:at] + bytes((chance.randrange(256),)) + good[at + 1 :]
            for at in (chance.randrange(len(good)) for _ in range(8))
        ),
    ]


def test_hostile_files_give_sentences(tmp_path: Path) -> None:
    """Every command ends with 0 or a sentence, never with a traceback."""
    chance = random.Random(20261123)
    folder = tmp_path / "__transaction_state-0"
    folder.mkdir()
    snapshot, index = (folder / f"{0:020d}{suffix}" for suffix in (".snapshot", ".txnindex"))
    (tmp_path / "t-0").symlink_to(folder)
    commands: list[tuple[str | Path, ...]] = [
        ("verify", folder.parent, snapshot, index),
        ("dump", "--records", folder),
        ("offsets", folder),
        ("transactions", folder),  # as __transaction_state
        ("transactions", tmp_path / "t-0"),  # as any other partition
    ]
    for content in hostile_files(chance):
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            (folder / f"{0:020d}{suffix}").write_bytes(content)
        for name in ("leader-epoch-checkpoint", "partition.metadata", "../meta.properties"):
            (folder / name).write_bytes(content)
        for command in commands:
            result = run(*command)
            assert result.exception is None or isinstance(result.exception, CommandError), (command, content)


def test_a_path_without_logs_is_one_sentence(tmp_path: Path) -> None:
    for command in ("verify", "offsets", "transactions"):
        for path, sentence in ((tmp_path, "holds no segment"), (tmp_path / "x", "does not exist")):
            result = run(command, path)
            assert isinstance(result.exception, BadInput)
            assert sentence in str(result.exception)
