"""Whatever arrives on a socket, the broker answers with a protocol error or closes, and serves on.

After each test the same process, under the same pid, still takes and gives a record.
"""

from __future__ import annotations

import random
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster
from tests.support.messages import Message
from tests.support.record_batches import HEADER, encode_batch
from tests.support.topics import TopicFactory
from tests.support.wire import (
    Connection,
    encode_request,
    fetch,
    fetch_fields,
    list_offset,
    produce,
    produce_fields,
    request,
)

GOOD: Final = encode_batch([Message(b"good", b"key"), Message(b"better", b"key")])
fuzz = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def topic(new_topic: TopicFactory) -> str:
    return new_topic()


@pytest.fixture
def address(new_topic: TopicFactory, topic: str) -> str:
    return new_topic.leader_address(topic)


@pytest.fixture(autouse=True)
def still_serves(local_stack: Cluster, topic: str, address: str) -> Iterator[None]:
    """After the test: same processes, and a record goes in and comes out."""
    before = {broker_id: local_stack.broker_pid(broker_id) for broker_id in local_stack.brokers}
    yield
    assert {broker_id: local_stack.broker_pid(broker_id) for broker_id in local_stack.brokers} == before
    with Connection(address) as connection:
        answer = produce(connection, topic, 0, GOOD)
        assert answer.error_code == ErrorCode.none
        read = fetch(connection, topic, 0, answer.base_offset)
        assert read.records[HEADER.size :] == GOOD[HEADER.size :]


# Record batches


def _with_byte(batch: bytes, position: int, value: int) -> bytes:
    return batch[:position] + bytes([value]) + batch[position + 1 :]


BAD_BATCHES: Final[dict[str, bytes | None]] = {
    "null": None,
    "empty": b"",
    "a few bytes": b"abc",
    "half a header": GOOD[:30],
    "a header alone": GOOD[: HEADER.size],
    "the last byte missing": GOOD[:-1],
    "wrong crc": encode_batch([Message(b"x")], crc=0xDEADBEEF),
    "a flipped byte in the records": _with_byte(GOOD, len(GOOD) - 2, GOOD[-2] ^ 1),
    "a flipped byte in the header": _with_byte(GOOD, 30, GOOD[30] ^ 1),
    "magic 0": encode_batch([Message(b"x")], magic=0),
    "magic 1": encode_batch([Message(b"x")], magic=1),
    "magic 3": encode_batch([Message(b"x")], magic=3),
    "magic -1": encode_batch([Message(b"x")], magic=-1),
    "a negative length": GOOD[:8] + struct.pack(">i", -1) + GOOD[12:],
    "a length of 0": GOOD[:8] + struct.pack(">i", 0) + GOOD[12:],
    "a length beyond the request": GOOD[:8] + struct.pack(">i", 1 << 30) + GOOD[12:],
    "no records": encode_batch([]),
    "fewer records than offsets": encode_batch([Message(b"x")], last_offset_delta=9),
    "more records than offsets": encode_batch([Message(b"x"), Message(b"y")], last_offset_delta=0),
    "a negative record count": encode_batch([Message(b"x")], record_count=-1),
    "a codec that does not exist": encode_batch([Message(b"x")], attributes=7),
    "a control batch": encode_batch([Message(b"x")], attributes=1 << 5),
    "zeros": bytes(200),
    "noise": random.Random(1).randbytes(500),
}


@pytest.mark.parametrize("batch", BAD_BATCHES.values(), ids=BAD_BATCHES)
@pytest.mark.parametrize("acks", [1, -1])
def test_a_bad_batch_is_refused_and_nothing_of_it_is_stored(
    reference: bool, address: str, topic: str, batch: bytes | None, acks: int
) -> None:
    if reference and batch is None:
        pytest.skip("Apache Kafka never answers this one")
    with Connection(address) as connection:
        try:
            answer = produce(connection, topic, 0, batch, acks=acks)
        except ConnectionError:
            pass
        else:
            if answer.error_code == ErrorCode.none:
                # "No batch" may be taken for nothing to store.
                assert not batch
    with Connection(address) as connection:
        assert list_offset(connection, topic, 0, -1).offset == 0


@pytest.mark.parametrize("position", range(21))
def test_any_byte_of_the_batch_frame_may_be_wrong(address: str, topic: str, position: int) -> None:
    """Offset, length, leader epoch, magic, CRC: not covered by the CRC, and still harmless."""
    with Connection(address) as connection:
        try:
            answer = produce(connection, topic, 0, _with_byte(GOOD, position, GOOD[position] ^ 0x55))
        except ConnectionError:
            return
        if answer.error_code == ErrorCode.none:
            # The broker gives offset and leader epoch itself, whatever the producer wrote (trap T8).
            assert position < 8 or 12 <= position < 16
            assert fetch(connection, topic, 0, 0).records[HEADER.size :] == GOOD[HEADER.size :]
            assert answer.base_offset == 0


@pytest.mark.parametrize("rest", [b"\x00", GOOD[:40]], ids=["a byte", "half a batch"])
def test_what_follows_a_whole_batch_is_not_stored(address: str, topic: str, rest: bytes) -> None:
    """Apache Kafka takes the whole batch and drops the rest; to refuse both is as good."""
    with Connection(address) as connection:
        answer = produce(connection, topic, 0, GOOD + rest)
        stored = 2 if answer.error_code == ErrorCode.none else 0
        assert list_offset(connection, topic, 0, -1).offset == stored
        assert (fetch(connection, topic, 0, 0, max_wait_ms=0).records or b"")[HEADER.size :] == (
            GOOD[HEADER.size :] if stored else b""
        )


def test_records_that_are_not_what_their_codec_says_get_an_answer(address: str, topic: str) -> None:
    """Stored unopened or refused: both are sound, since every reader finds out."""
    with Connection(address) as connection:
        produce(connection, topic, 0, encode_batch([Message(b"x")], attributes=1, records=b"not gzip"))


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_decompression_bomb_does_not_fill_the_brokers_memory(
    local_stack: Cluster, new_topic: TopicFactory, codec: str
) -> None:
    """With a codec of the topic's own the broker must open what it gets: 600 MB out of 600 KB, or less."""
    topic = new_topic(config={"compression.type": "lz4"})
    address = new_topic.leader_address(topic)
    leader = next(broker_id for broker_id, own in local_stack.brokers.items() if own == address)
    before = _peak_memory_mb(local_stack.broker_pid(leader))

    with Connection(address) as connection:
        produce(
            connection, topic, 0,
            encode_batch([Message(b"x")], attributes={"gzip": 1, "zstd": 4}[codec], records=_bomb(codec)),
        )  # fmt: skip

    assert _peak_memory_mb(local_stack.broker_pid(leader)) < before + 400


def _bomb(codec: str) -> bytes:
    compressor = (
        zlib.compressobj(9, wbits=31) if codec == "gzip" else zstandard.ZstdCompressor().compressobj()
    )
    return b"".join(compressor.compress(bytes(10_000_000)) for _ in range(60)) + compressor.flush()


def _peak_memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1000


def test_one_bad_partition_does_not_spoil_the_others(
    new_topic: TopicFactory, topic: str, address: str
) -> None:
    fields = produce_fields(topic, 0, GOOD)
    fields["topic_data"] = [
        {"name": topic, "partition_data": [{"index": 0, "records": GOOD}, {"index": 99, "records": GOOD}]},
        {"name": "no-such-topic", "partition_data": [{"index": 0, "records": GOOD}]},
    ]
    with Connection(address) as connection:
        answer = connection.ask("produce", 9, **fields)
    codes = {
        (response.name, partition.index): partition.error_code
        for response in answer.responses
        for partition in response.partition_responses
    }
    assert codes == {
        (topic, 0): ErrorCode.none,
        (topic, 99): ErrorCode.unknown_topic_or_partition,
        ("no-such-topic", 0): ErrorCode.unknown_topic_or_partition,
    }


@pytest.mark.parametrize("acks", [2, -2, 7])
def test_acks_that_do_not_exist_are_refused(address: str, topic: str, acks: int) -> None:
    with Connection(address) as connection:
        assert produce(connection, topic, 0, GOOD, acks=acks).error_code == ErrorCode.invalid_required_acks


# Frames


@pytest.mark.parametrize(
    "length", [-1, -(1 << 31), 0, 1, 3, 7, (1 << 31) - 1, 1 << 30, int.from_bytes(b"GET ", "big")]
)
def test_a_frame_of_an_impossible_length_closes_the_connection(address: str, length: int) -> None:
    with Connection(address) as connection:
        connection.send_bytes(struct.pack(">i", length) + b"\x00" * 64)
        assert connection.is_closed_by_broker()


def test_an_oversized_frame_is_refused_before_it_is_sent(address: str) -> None:
    """By its length alone: a gigabyte is not received first."""
    with Connection(address, timeout_seconds=5) as connection:
        connection.send_bytes(struct.pack(">i", 1_000_000_000))
        assert connection.is_closed_by_broker()


@pytest.mark.parametrize("part", [1, 3, 4, 5, 10, 40, -1])
def test_half_a_frame_and_an_end_does_no_harm(address: str, topic: str, part: int) -> None:
    payload = encode_request(request("produce", 9, **produce_fields(topic, 0, GOOD)), 1)
    frame = struct.pack(">i", len(payload)) + payload
    for _ in range(5):
        with Connection(address) as connection:
            connection.send_bytes(frame[:part])
    with Connection(address) as connection:
        assert list_offset(connection, topic, 0, -1).offset == 0


def test_a_frame_in_single_bytes_is_understood(address: str, topic: str) -> None:
    payload = encode_request(request("produce", 9, **produce_fields(topic, 0, GOOD)), 77)
    with Connection(address) as connection:
        for byte in struct.pack(">i", len(payload)) + payload:
            connection.send_bytes(bytes([byte]))
        assert connection.receive_frame()[:4] == struct.pack(">i", 77)


def test_many_frames_in_one_packet_are_all_answered_in_order(address: str, topic: str) -> None:
    frames = b""
    for number in range(100):
        payload = encode_request(request("produce", 9, **produce_fields(topic, 0, GOOD)), number)
        frames += struct.pack(">i", len(payload)) + payload
    with Connection(address) as connection:
        connection.send_bytes(frames)
        answered = [int.from_bytes(connection.receive_frame()[:4], "big") for _ in range(100)]
    assert answered == list(range(100))


@pytest.mark.parametrize("api_key", [4, 5, 6, 7, 93, 999, 32_767, -1])
def test_an_unknown_request_closes_the_connection(address: str, api_key: int) -> None:
    with Connection(address) as connection:
        connection.send_frame(struct.pack(">hhih", api_key, 0, 1, -1))
        assert connection.is_closed_by_broker()


@pytest.mark.parametrize("api_key", [0, 1, 2, 3, 19, 20, 21, 32, 37, 44, 60])
@pytest.mark.parametrize("version", [-1, 99, 32_767])
def test_an_unknown_version_closes_the_connection(address: str, api_key: int, version: int) -> None:
    with Connection(address) as connection:
        connection.send_frame(struct.pack(">hhih", api_key, version, 1, -1) + bytes(20))
        assert connection.is_closed_by_broker()


@pytest.mark.parametrize("length", [0x7FFF_FFFF, 1_000_000])
def test_a_body_that_promises_more_than_it_holds_closes_the_connection(address: str, length: int) -> None:
    """An array of two thousand million topics costs nothing until it is there."""
    with Connection(address) as connection:
        # Metadata v1: an array of topic names in the old encoding.
        connection.send_frame(struct.pack(">hhihi", 3, 1, 1, -1, length))
        assert connection.is_closed_by_broker()


@pytest.mark.parametrize("length", [-2, -100, -(1 << 31)])
def test_an_array_of_negative_length_is_none_or_the_end(address: str, length: int) -> None:
    """Apache Kafka reads every negative length as "no array", which for Metadata means all topics."""
    with Connection(address) as connection:
        connection.send_frame(struct.pack(">hhihi", 3, 1, 1, -1, length))
        assert connection.has_answer_within(5)


# Noise


@fuzz
@given(noise=st.binary(max_size=600))
def test_random_bytes(address: str, noise: bytes) -> None:
    with Connection(address) as connection:
        connection.send_bytes(noise)


@fuzz
@given(noise=st.binary(max_size=600))
def test_random_bytes_in_a_frame(address: str, noise: bytes) -> None:
    with Connection(address) as connection:
        connection.send_frame(noise)
        _expect_an_answer_or_the_end(connection)


@fuzz
@given(
    api_key=st.sampled_from([0, 1, 2, 3, 18, 19, 20, 21, 32, 37, 44, 60]),
    version=st.integers(0, 14),
    body=st.binary(max_size=300),
)
def test_random_bodies_of_known_requests(address: str, api_key: int, version: int, body: bytes) -> None:
    with Connection(address) as connection:
        connection.send_frame(struct.pack(">hhih", api_key, version, 1, -1) + body)
        _expect_an_answer_or_the_end(connection)


def _requests(topic: str) -> list[Any]:
    return [
        request("produce", 9, **produce_fields(topic, 0, GOOD)),
        request("produce", 3, **produce_fields(topic, 0, GOOD)),
        request("fetch", 4, **fetch_fields([(topic, 0, 0)], version=4, max_wait_ms=0)),
        request("fetch", 12, **fetch_fields([(topic, 0, 0)], max_wait_ms=0)),
        request(
            "list_offsets",
            7,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        ),
        request("describe_configs", 4, resources=[{"resource_type": 2, "resource_name": topic}],
                include_synonyms=True, include_documentation=True),
    ]  # fmt: skip


@fuzz
@given(data=st.data())
def test_requests_with_some_bytes_changed(address: str, topic: str, data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(_requests(topic)))
    payload = bytearray(encode_request(message, 1))
    # Keep key and version: the body is what is spoilt here.
    for position in data.draw(st.lists(st.integers(8, len(payload) - 1), min_size=1, max_size=4)):
        payload[position] = data.draw(st.integers(0, 255))
    with Connection(address) as connection:
        connection.send_frame(bytes(payload))
        if payload[:2] != b"\x00\x00":  # a Produce may now say acks=0, which has no answer
            _expect_an_answer_or_the_end(connection)


def _expect_an_answer_or_the_end(connection: Connection) -> None:
    # A spoilt Fetch may say that it waits for long: not to hang is all that is asked of it then.
    connection.has_answer_within(0.5)


def test_hundreds_of_connections_come_and_go(address: str) -> None:
    connections = [Connection(address) for _ in range(300)]
    try:
        assert all(
            connection.ask("api_versions", 0).error_code == ErrorCode.none for connection in connections
        )
    finally:
        for connection in connections:
            connection.close()


def test_noise_beside_a_good_client_does_not_disturb_it(address: str, topic: str) -> None:
    stop = threading.Event()

    def disturb() -> None:
        randomness = random.Random(3)
        while not stop.is_set():
            try:
                with Connection(address) as connection:
                    connection.send_bytes(randomness.randbytes(randomness.randrange(200)))
            except OSError:
                continue

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        with Connection(address) as connection:
            offsets = [produce(connection, topic, 0, GOOD).base_offset for _ in range(300)]
    finally:
        stop.set()
        disturber.join()
    assert offsets == list(range(0, 600, 2))


# Names and settings

BAD_NAMES: Final = [
    "",
    ".",
    "..",
    "../../etc/passwd",
    "a/b",
    "a\\b",
    "x" * 250,
    "größe",
    "a b",
    "a\x00b",
    "a\nb",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_what_is_no_topic_name_is_told_so_everywhere(local_stack: Cluster, address: str, name: str) -> None:
    before = sorted(path for path in local_stack.data_directory.rglob("*") if path.is_dir())
    with Connection(address) as connection:
        metadata = connection.ask(
            "metadata",
            9,
            topics=[{"name": name}],
            allow_auto_topic_creation=True,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        assert metadata.topics[0].error_code == ErrorCode.invalid_topic_exception
        created = connection.ask(
            "create_topics",
            5,
            topics=[
                {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            ],
            timeout=5_000,
            validate_only=False,
        )
        assert created.topics[0].error_code == ErrorCode.invalid_topic_exception
        refused = {ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception}
        assert produce(connection, name, 0, GOOD).error_code in refused
        assert fetch(connection, name, 0, 0).error_code in refused
        assert list_offset(connection, name, 0, -1).error_code in refused
        deleted = connection.ask("delete_topics", 5, topic_names=[name], timeout=1_000)
        assert deleted.responses[0].error_code in refused
    after = sorted(path for path in local_stack.data_directory.rglob("*") if path.is_dir())
    assert [
        path for path in after if path not in before and not re.search(r"topic-|/zookeeper/", str(path))
    ] == []


@pytest.mark.parametrize("partition", [-1, 1, 2**31 - 1])
def test_a_partition_that_does_not_exist_is_told_so(address: str, topic: str, partition: int) -> None:
    with Connection(address) as connection:
        for answer in (
            produce(connection, topic, partition, GOOD),
            fetch(connection, topic, partition, 0),
            list_offset(connection, topic, partition, -1),
        ):
            assert answer.error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("name", ["no.such.setting", "", "broker.id", "retention.ms "], ids=repr)
def test_a_setting_that_does_not_exist_is_refused(address: str, topic: str, name: str) -> None:
    with Connection(address) as connection:
        answer = connection.ask(
            "incremental_alter_configs",
            1,
            resources=[
                {
                    "resource_type": 2,
                    "resource_name": topic,
                    "configs": [{"name": name, "config_operation": 0, "value": "1"}],
                }
            ],
            validate_only=False,
        ).responses[0]
    assert answer.error_code in (ErrorCode.invalid_config, ErrorCode.invalid_request)
    assert answer.error_message


@pytest.mark.parametrize(
    ("resource_type", "resource_name"),
    [(2, "no-such-topic"), (4, "77"), (4, "not a number"), (99, "x"), (0, "x")],
)
def test_settings_of_what_does_not_exist_are_refused(
    address: str, resource_type: int, resource_name: str
) -> None:
    with Connection(address) as connection:
        try:
            described = connection.ask(
                "describe_configs",
                4,
                resources=[
                    {
                        "resource_type": resource_type,
                        "resource_name": resource_name,
                        "configuration_keys": None,
                    }
                ],
                include_synonyms=False,
                include_documentation=False,
            ).results[0]
        except ConnectionError:
            assert resource_type in (0, 99)
            return
        assert described.error_code != ErrorCode.none or resource_type == 4


@pytest.mark.parametrize("min_bytes", [-1, 0, 2**31 - 1])
@pytest.mark.parametrize("max_bytes", [-1, -(2**31), 0, 1, 2**31 - 1])
def test_fetch_limits_of_any_size_are_harmless(
    address: str, topic: str, min_bytes: int, max_bytes: int
) -> None:
    with Connection(address) as connection:
        produce(connection, topic, 0, GOOD)
        limits = {"min_bytes": min_bytes, "max_bytes": max_bytes, "partition_max_bytes": max_bytes}
        answer = connection.ask("fetch", 12, **fetch_fields([(topic, 0, 0)], max_wait_ms=100, **limits))
        if max_bytes >= 0:
            assert answer.responses[0].partitions[0].error_code == ErrorCode.none
