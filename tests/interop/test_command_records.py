"""`mainstem produce` and `mainstem consume` against a running cluster (R10, R13, R36)."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from confluent_kafka.admin import AdminClient
from tests.support.clusters import ReachableCluster, SharedCluster, StartCluster, partition_directory
from tests.support.command_line import (
    MAINSTEM,
    environment,
    mainstem,
    mainstem_fails,
    mainstem_here,
    mainstem_json,
)
from tests.support.messages import Message
from tests.support.record_batches import HEADER, batch_positions, encode_batch
from tests.support.topics import TopicFactory, unique_name
from tests.support.waiting import wait_until
from tests.support.wire import Connection, produce


def consume_json(cluster: ReachableCluster, topic: str, *arguments: str) -> list[dict[str, Any]]:
    ended = mainstem_here("consume", topic, "--output", "json", *arguments, cluster=cluster)
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_lines_go_in_and_come_out_in_order(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    topic = new_topic()
    lines = b"".join(b"line %d\n" % number for number in range(10_000))
    sent = mainstem_json("produce", topic, cluster=local_stack, stdin=lines)
    assert (sent["records"], sent["acknowledged"], sent["failed"]) == (10_000, 10_000, {})
    assert mainstem("consume", topic, cluster=local_stack).stdout == lines


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_json_lines_of_files_are_sent_with_keys_times_and_headers(
    compression: str, local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic(partitions=3)
    events = [{"user": f"u{number % 5}", "at": 1_769_853_600_000 + number} for number in range(100)]
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for number, file in enumerate(files):
        part = events[number * 50 : number * 50 + 50]
        file.write_text("".join(json.dumps(event) + "\n" for event in part))
    mainstem(
        *("produce", topic, "--file", str(files[0]), "--file", str(files[1])),
        *("--key-field", "user", "--timestamp-field", "at"),
        *("--compression", compression, "--header", "source=test", "--acks", "1"),
        cluster=local_stack,
    )
    records = consume_json(local_stack, topic)
    assert sorted(record["timestamp_ms"] for record in records) == [event["at"] for event in events]
    assert all(record["key"] == json.loads(record["value"])["user"] for record in records)
    assert all(record["headers"] == [{"name": "source", "value": "test"}] for record in records)
    places = {(record["key"], record["partition"]) for record in records}
    assert len(places) == 5  # one partition per key


def test_a_bad_line_stops_with_its_number_and_what_went_before_is_sent(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic()
    file = tmp_path / "events.jsonl"
    file.write_text('{"id": 1}\n{"id": 2}\n{"id": \n{"id": 4}\n')
    sentence = mainstem_fails("produce", topic, str(file), "--json-lines", cluster=local_stack, exit_code=2)
    assert sentence.startswith(f"Line 3 of {file} was not sent: it is not a JSON value")
    assert sentence.endswith("(2 records were sent and acknowledged before it.)")
    assert [json.loads(record["value"])["id"] for record in consume_json(local_stack, topic)] == [1, 2]


def test_what_is_not_acknowledged_is_counted_and_ends_with_an_error(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    topic = new_topic(config={"max.message.bytes": "10000"})
    lines = b"small\n" + b"x" * 20_000 + b"\n" + b"small\n"
    sentence = mainstem_fails("produce", topic, cluster=local_stack, stdin=lines)
    assert sentence.startswith(f"1 of 3 records were not acknowledged by topic {topic}: ")
    assert "larger than max.message.bytes of the topic (10,000)" in sentence
    assert f"`mainstem config set --topic {topic} max.message.bytes=N`" in sentence
    assert [record["value"] for record in consume_json(local_stack, topic)] == ["small", "small"]


def test_many_small_records_fit_a_topic_that_takes_only_small_batches(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    topic = new_topic(config={"max.message.bytes": "10000"})
    lines = b"".join(b"%0100d\n" % number for number in range(5_000))
    mainstem("produce", topic, cluster=local_stack, stdin=lines)
    assert mainstem("consume", topic, cluster=local_stack).stdout == lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", "5"], "has partitions 0 to 0, not 5"),
        (["--file", "/no/such/file"], "/no/such/file is not a file"),
        (["--key-separator", ":", "--json-lines"], "--key-field"),
        (["--header", "novalue"], "--header takes NAME=VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_options_that_cannot_be_sent_are_refused_first(
    arguments: list[str], message: str, local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    assert message in mainstem_fails("produce", new_topic(), *arguments, cluster=local_stack, exit_code=2)


def test_producing_to_an_unknown_topic_does_not_create_it(local_stack: SharedCluster) -> None:
    topic = unique_name("never-made")
    sentence = mainstem_fails("produce", topic, cluster=local_stack, stdin=b"a\n", exit_code=2)
    assert sentence.startswith(f"There is no topic {topic}")
    assert topic not in mainstem("topic", "list", cluster=local_stack).stdout.decode()


def test_reading_begins_at_the_chosen_place(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    topic = new_topic()
    events = [{"at": 1_769_853_600_000 + 1000 * number} for number in range(10)]
    lines = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    mainstem("produce", topic, "--timestamp-field", "at", cluster=local_stack, stdin=lines)

    def offsets(*arguments: str) -> list[int]:
        return [record["offset"] for record in consume_json(local_stack, topic, *arguments)]

    assert offsets() == list(range(10))
    assert offsets("--from", "7") == [7, 8, 9]
    assert offsets("--from", "-2") == [8, 9]
    assert offsets("--from", "2026-01-31T10:00:04Z") == [4, 5, 6, 7, 8, 9]
    assert offsets("--from", "2030-01-01") == []
    assert offsets("--from", "end") == []
    assert offsets("--max-records", "3") == [0, 1, 2]
    assert offsets("--from", "10") == []
    beyond = mainstem_fails("consume", topic, "--from", "11", cluster=local_stack, exit_code=2)
    assert beyond == "Offset 11 lies beyond its end (10)."
    wrong = mainstem_fails("consume", topic, "--from", "tomorrow", cluster=local_stack, exit_code=2)
    assert "--from does not understand 'tomorrow'" in wrong


def test_one_partition_can_be_read_alone(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    topic = new_topic(partitions=3)
    for number in range(3):
        line = b"in %d\n" % number
        mainstem("produce", topic, "--partition", str(number), cluster=local_stack, stdin=line)
    assert mainstem("consume", topic, "--partition", "2", cluster=local_stack).stdout == b"in 2\n"
    assert len(consume_json(local_stack, topic)) == 3
    wrong = mainstem_fails("consume", topic, "--partition", "3", cluster=local_stack, exit_code=2)
    assert wrong == f"Topic {topic} has partitions 0 to 2, not 3."


def test_a_follower_sees_records_as_they_come_and_ctrl_c_ends_it_cleanly(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    topic = new_topic()
    with subprocess.Popen(
        [*MAINSTEM, "consume", topic, "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(local_stack),
    ) as follower:
        assert follower.stdout is not None
        for number in range(3):
            mainstem("produce", topic, cluster=local_stack, stdin=b"%d\n" % number)
            assert follower.stdout.readline() == b"%d\n" % number
        follower.send_signal(signal.SIGINT)
        _, errors = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert errors == b""


def test_a_reader_that_has_had_enough_ends_it_silently(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    topic = new_topic()
    lines = b"".join(b"%0100d\n" % number for number in range(50_000))
    mainstem("produce", topic, cluster=local_stack, stdin=lines)
    with subprocess.Popen(
        [*MAINSTEM, "consume", topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(local_stack),
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == lines[:101]
        reader.stdout.close()
        assert reader.stderr is not None
        assert reader.stderr.read() == b""
    assert reader.returncode == 0


def test_on_a_terminal_records_cannot_steer_it(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    topic = new_topic()
    mainstem("produce", topic, cluster=local_stack, stdin=b"\x1b[31mred\x07 \xff\n")
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [*MAINSTEM, "consume", topic, "--until-end"],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=environment(local_stack),
        ):
            os.close(theirs)
            shown = os.read(ours, 1000)
    finally:
        os.close(ours)
    assert shown == b"\\x1b[31mred\\x07 \\xff\r\n"


def test_json_records_copy_a_topic_with_tombstones_bytes_and_headers(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    source, copy = new_topic(), new_topic()
    lines = (
        b'{"key": "a", "value": null, "headers": [{"name": "h", "value": "x"}]}\n'
        b'{"key": "a", "value_base64": "/w==", "timestamp_ms": 1769853600000}\n'
    )
    mainstem_here("produce", source, "--json-records", cluster=local_stack, stdin=lines)
    shown = mainstem_here("consume", source, "--until-end", "-o", "json", cluster=local_stack).stdout
    mainstem_here("produce", copy, "--json-records", cluster=local_stack, stdin=shown)

    def content(topic: str) -> list[tuple[object, ...]]:
        names = ("key", "value", "value_base64", "timestamp_ms", "headers")
        return [tuple(record.get(name) for name in names) for record in consume_json(local_stack, topic)]

    assert content(copy) == content(source)
    assert len(content(copy)) == 2


def test_lines_copy_a_topic_byte_for_byte(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    """R36. Only a line feed ends a line, as for kcat."""
    source, copy = new_topic(), new_topic()
    values = [b"a\r", b"\r", b"b\r\r", b"", "\x85 \u2028 \v\f\x1c".encode(), b"c\rd", b"\xff\0"]
    with Connection(new_topic.leader_address(source)) as leader:
        produce(leader, source, 0, encode_batch([Message(value) for value in values]))
    shown = mainstem_here("consume", source, "--until-end", cluster=local_stack).stdout
    mainstem_here("produce", copy, cluster=local_stack, stdin=shown)
    assert mainstem_here("consume", copy, "--until-end", cluster=local_stack).stdout == shown
    assert shown == b"".join(value + b"\n" for value in values)


def test_a_record_without_a_time_is_copied_with_the_time_of_sending(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    """KIP-32: a timestamp of -1 is none."""
    source, copy = new_topic(), new_topic()
    with Connection(new_topic.leader_address(source)) as leader:
        produce(leader, source, 0, encode_batch([Message(b"v", timestamp_ms=-1)]))
    shown = mainstem_here("consume", source, "--until-end", "-o", "json", cluster=local_stack).stdout
    assert json.loads(shown)["timestamp_ms"] is None
    mainstem_here("produce", copy, "--json-records", cluster=local_stack, stdin=shown)
    (record,) = consume_json(local_stack, copy)
    assert record["value"] == "v"
    assert record["timestamp_ms"] > 1_700_000_000_000


def test_several_topics_are_read_with_a_format(local_stack: SharedCluster, new_topic: TopicFactory) -> None:
    first, second = new_topic(), new_topic()
    for topic in (first, second):
        mainstem("produce", topic, "--key-separator", ":", cluster=local_stack, stdin=b"k:v\n")
    read = mainstem("consume", first, second, "--until-end", "--format", r"%t %k=%s\n", cluster=local_stack)
    assert sorted(read.stdout.decode().splitlines()) == sorted([f"{first} k=v", f"{second} k=v"])


@contextmanager
def producing(
    cluster: ReachableCluster, topic: str, fifo: Path
) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO]]:
    """`mainstem produce` of lines from a FIFO, and the FIFO's other end once the command reads."""
    os.mkfifo(fifo)
    with subprocess.Popen(
        [*MAINSTEM, "produce", topic, str(fifo)], stderr=subprocess.PIPE, env=environment(cluster)
    ) as producer:
        try:
            with fifo.open("wb", buffering=0) as lines:
                yield producer, lines
        finally:
            producer.kill()


def test_an_interrupted_run_is_resumed_without_a_gap(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    """R36. Ctrl-C comes while the command waits for the next line of a FIFO."""
    topic = new_topic()
    lines = [b"%d\n" % number for number in range(500)]
    with producing(local_stack, topic, tmp_path / "fifo") as (producer, fifo):
        fifo.write(b"".join(lines[:300]))
        wait_until(lambda: len(consume_json(local_stack, topic)) == 300, "the lines are sent")
        producer.send_signal(signal.SIGINT)
        _, said = producer.communicate(timeout=60)
    assert producer.returncode == 130
    assert "Interrupted: 300 of 300 records were acknowledged." in said.decode()
    hint = re.search(r"--skip (\d+)$", said.decode().strip())
    assert hint is not None, said
    mainstem("produce", topic, "--skip", hint[1], cluster=local_stack, stdin=b"".join(lines))
    assert mainstem("consume", topic, cluster=local_stack).stdout == b"".join(lines)


EXPLAINED_S_MAX = 20
"""The command looks after 5 s, and takes seconds to start on a busy machine; without the looks it is 60 s."""


def test_brokers_that_are_away_are_explained_and_block_no_command(
    own_stack: StartCluster, tmp_path: Path
) -> None:
    """R36. Records time out after 60 s, and requests to a broker that hangs too."""
    cluster = own_stack(3)
    mainstem_here("topic", "create", "t", "-c", "min.insync.replicas=3", cluster=cluster)
    cluster.kill_broker(3)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def in_sync() -> int:
        return len(admin.list_topics("t", timeout=60).topics["t"].partitions[0].isrs)

    wait_until(lambda: in_sync() == 2, "the dead broker is out of the in-sync set")
    with producing(cluster, "t", tmp_path / "fifo") as (producer, fifo):
        fifo.write(b"a\n")
        fifo.close()
        started = time.monotonic()
        assert producer.stderr is not None
        said = producer.stderr.readline().decode()
        assert time.monotonic() - started < EXPLAINED_S_MAX
    assert said.startswith(
        "Note: topic t accepts no records, because partition 0 has 2 in-sync replicas of 3"
    )
    assert "start the missing brokers" in said

    os.kill(cluster.broker_pid(1), signal.SIGSTOP)  # it accepts connections and answers nothing
    try:
        started = time.monotonic()
        assert "t" in mainstem_here("topic", "list", cluster=cluster).stdout.decode()
        assert time.monotonic() - started < EXPLAINED_S_MAX
    finally:
        os.kill(cluster.broker_pid(1), signal.SIGCONT)


def test_records_that_retention_will_delete_are_counted(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    """R4, R36."""
    topic = new_topic(config={"retention.ms": "3600000"})
    lines = b"".join(b'{"at": %d}\n' % at for at in (1_000, 2_000, int(time.time() * 1000)))
    ended = mainstem("produce", topic, "--timestamp-field", "at", cluster=local_stack, stdin=lines)
    said = " ".join(ended.stderr.decode().split())
    assert f"2 records have timestamps older than retention.ms of topic {topic} (1h)" in said
    assert f"`mainstem config set --topic {topic} retention.ms=-1`" in said


def test_a_client_property_that_the_client_does_not_know_is_refused(
    local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    sentence = mainstem_fails("topic", "list", "-X", "no.such=1", cluster=local_stack, exit_code=2)
    assert "does not accept a property" in sentence
    assert "no.such" in sentence


def test_a_flipped_byte_in_the_middle_of_a_log_is_never_shown(own_stack: StartCluster) -> None:
    """R6. The broker was stopped in order, so it does not read its old files again."""
    cluster = own_stack()
    with TopicFactory(cluster) as new_topic:
        topic = new_topic()
        with Connection(new_topic.leader_address(topic)) as leader:
            for _ in range(20):
                produce(leader, topic, 0, encode_batch([Message(b"value " * 20)] * 5))
        cluster.stop_broker(1)
        (segment,) = partition_directory(cluster, topic).glob("*.log")
        data = bytearray(segment.read_bytes())
        positions = {header.base_offset: position for position, header in batch_positions(bytes(data))}
        data[positions[40] + HEADER.size + 30] ^= 0x01
        segment.write_bytes(data)
        cluster.start_broker(1)
        ended = mainstem("consume", topic, "--output", "json", cluster=cluster, exit_code=1)
    assert "offset 40" in ended.stderr.decode()
    offsets = [json.loads(line)["offset"] for line in ended.stdout.splitlines()]
    assert offsets == list(range(len(offsets)))
    assert len(offsets) <= 40
