"""What one client may cost: each attack sends at most 1 MB, and the broker serves others as if nothing
happened.

While an attack runs, another client sends requests one after another. Each of them is answered within
`WAIT_MS_MAX`, the broker's memory grows by less than `GROWTH_MB_MAX` and comes back, errors are the
protocol's own, and the log of the attacked topic contains what was acknowledged and takes more (R2, R13).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import cramjam
import pytest
from kio.schema.errors import ErrorCode
from tests.faults.other_client import OtherClient, memory_mb
from tests.support.clusters import Cluster, RunCluster
from tests.support.messages import Message
from tests.support.record_batches import encode_batch, read_headers
from tests.support.topics import TopicFactory
from tests.support.waiting import let_pass, wait_until
from tests.support.wire import Connection, encode_request, fetch, list_offset, produce, request

SENT_BYTES_MAX: Final = 1_000_000
WAIT_MS_MAX: Final = 100
GROWTH_MB_MAX: Final = 64
BOMB_WAIT_MS_MAX: Final = 250
"""Measured on two idle cores: 98, 57 and 61 ms at Python's interval between threads, 79, 38 and 37 ms at
ours; 160 beside other tests. What inflates to 32 MiB is copied by single calls that hold the interpreter's
lock."""
KEPT_MB_MAX: Final = 48
"""What the allocator may keep for the next burst."""
ATTACK_SECONDS: Final = 60.0
NOW_MS: Final = int(time.time() * 1000)
GOOD: Final = encode_batch([Message(b"good", b"key", (), NOW_MS), Message(b"better", b"key", (), NOW_MS)])
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
MANY_RECORDS: Final = 2_000_000
INT32_MAX: Final = 2**31 - 1


@dataclass
class Target:
    """The broker, the topic that is attacked, and how many bytes the attack has sent."""

    address: str
    topic: str
    sent_bytes: int = 0
    stack: ExitStack = field(default_factory=ExitStack)

    def connect(self) -> Connection:
        return self.stack.enter_context(Connection(self.address, timeout_seconds=ATTACK_SECONDS))

    def send(self, connection: Connection, data: bytes) -> None:
        self.sent_bytes += len(data)
        assert self.sent_bytes <= SENT_BYTES_MAX, "an attack has a megabyte"
        connection.send_bytes(data)

    def ask(self, connection: Connection, name: str, version: int, **fields: Any) -> Any:
        self.sent_bytes += len(encode_request(request(name, version, **fields), 1)) + 4
        assert self.sent_bytes <= SENT_BYTES_MAX, "an attack has a megabyte"
        return connection.ask(name, version, **fields)

    def produce(self, batch: bytes) -> ErrorCode:
        self.sent_bytes += len(batch)
        assert self.sent_bytes <= SENT_BYTES_MAX, "an attack has a megabyte"
        answer = produce(self.connect(), self.topic, 0, batch)
        return ErrorCode(answer.error_code)


# --- Batches that cost more to read than to send ---


def many_records(
    codec: int, *, max_timestamp: int = NOW_MS, timestamp: int = NOW_MS, count: int = MANY_RECORDS
) -> bytes:
    """A small batch of that many records of seven bytes: no key, no value, all at the same time."""
    record = b"\x0c\x00\x00\x00\x01\x01\x00"
    plain = record * count
    compressed = {
        GZIP: lambda: bytes(cramjam.gzip.compress(plain, level=9)),
        LZ4: lambda: bytes(cramjam.lz4.compress(plain)),
        ZSTD: lambda: bytes(cramjam.zstd.compress(plain, level=3)),
    }[codec]()
    return encode_batch(
        [Message(b"", None, (), timestamp)],
        attributes=codec,
        max_timestamp=max_timestamp,
        last_offset_delta=count - 1,
        record_count=count,
        records=compressed,
    )


def bomb(codec: int, plain_bytes: int = 600_000_000) -> bytes:
    compressors: dict[int, Any] = {GZIP: cramjam.gzip.Compressor, ZSTD: cramjam.zstd.Compressor}
    compressor = compressors[codec](9)
    for _ in range(plain_bytes // 10_000_000):
        compressor.compress(bytes(10_000_000))
    return encode_batch([Message(b"x")], attributes=codec, records=bytes(compressor.finish()))


def garbage(codec: int, count: int, payload: bytes = b"garbage") -> bytes:
    return encode_batch(
        [Message(b"x")], attributes=codec, last_offset_delta=count - 1, record_count=count, records=payload
    )


def produces(batch: Callable[[], bytes], *expected: ErrorCode, times: int = 1) -> Callable[[Target], None]:
    def attack(target: Target) -> None:
        data = batch()
        for _ in range(times):
            assert target.produce(data) in expected

    return attack


def looks_up(timestamp_ms: int, times: int = 1) -> Callable[[Target], None]:
    """Looks a time up in a batch of many records, which is legitimate to store."""

    def attack(target: Target) -> None:
        assert target.produce(many_records(ZSTD, count=1_000_000)) == ErrorCode.none
        connection = target.connect()
        for _ in range(times):
            match = list_offset(connection, target.topic, 0, timestamp_ms)
            assert (match.error_code, match.offset, match.timestamp) == (ErrorCode.none, 0, NOW_MS)

    return attack


# --- Requests and connections ---


def pipelines_metadata(target: Target) -> None:
    """Requests for the metadata of all topics, whose answers are not read."""
    payload = encode_request(request("metadata", 1, topics=None), 1)
    target.send(target.connect(), (struct.pack(">i", len(payload)) + payload) * 400)
    let_pass(3, "the attack lasts")


def announces_large_frames(target: Target) -> None:
    for _ in range(500):
        target.send(target.connect(), struct.pack(">i", 90_000_000) + bytes(1_000))
    let_pass(1, "the attack lasts")


def opens_connections(target: Target) -> None:
    for _ in range(800):
        target.connect()


def raw(api_key: int, version: int, body: bytes, *, is_flexible: bool) -> bytes:
    payload = struct.pack(">hhih", api_key, version, 1, -1) + (b"\0" if is_flexible else b"") + body
    return struct.pack(">i", len(payload)) + payload


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def array(count: int, item: bytes) -> bytes:
    """A compact array."""
    return varint(count + 1) + item * count


def one_topic(count: int, partition: bytes) -> bytes:
    """An array of one topic, with as many partitions."""
    return array(1, b"\2t" + array(count, partition) + b"\0")


def sends_too_many(
    api_key: int, version: int, body: Callable[[int], bytes], count: int
) -> Callable[[Target], None]:
    """A flexible request with an array of `count` elements, which closes its connection."""

    def attack(target: Target) -> None:
        frame = raw(api_key, version, body(count), is_flexible=True)
        connection = target.connect()
        target.send(connection, frame)
        assert connection.is_closed_by_broker()

    return attack


def takes_a_producers_id(target: Target) -> None:
    """InitProducerId with the id of another producer, which goes on undisturbed (KIP-360)."""
    connection = target.connect()
    victim = connection.ask("init_producer_id", 4, transactional_id=None, transaction_timeout=1000,
                            producer_id=-1, producer_epoch=-1)  # fmt: skip
    thief = target.ask(connection, "init_producer_id", 4, transactional_id=None, transaction_timeout=1000,
                       producer_id=victim.producer_id, producer_epoch=victim.producer_epoch)  # fmt: skip
    assert thief.error_code == ErrorCode.none
    assert thief.producer_id != victim.producer_id


@dataclass(frozen=True)
class Attack:
    run: Callable[[Target], None]
    config: Mapping[str, str] = field(default_factory=dict)
    wait_ms_max: float = WAIT_MS_MAX


TOO_LARGE: Final = (ErrorCode.message_too_large, ErrorCode.invalid_record, ErrorCode.corrupt_message)
RECENT_ONLY: Final = {"message.timestamp.before.max.ms": "3600000"}

ATTACKS: Final = {
    "nothing": Attack(lambda _: let_pass(3, "as long as an attack")),
    "two million records without a largest timestamp": Attack(
        produces(lambda: many_records(ZSTD, max_timestamp=-1), *TOO_LARGE)
    ),
    "a million records without a largest timestamp, gzip": Attack(
        produces(lambda: many_records(GZIP, max_timestamp=-1, count=1_000_000), ErrorCode.none)
    ),
    "a million records without a largest timestamp, lz4": Attack(
        produces(lambda: many_records(LZ4, max_timestamp=-1, count=1_000_000), ErrorCode.none)
    ),
    "two million records whose timestamps are checked": Attack(
        produces(lambda: many_records(ZSTD), *TOO_LARGE), RECENT_ONLY
    ),
    "a million records that are too old": Attack(
        produces(lambda: many_records(ZSTD, count=1_000_000, timestamp=5), ErrorCode.invalid_timestamp),
        RECENT_ONLY,
    ),
    "a million records whose timestamps are checked": Attack(
        produces(lambda: many_records(ZSTD, count=1_000_000), ErrorCode.none), RECENT_ONLY
    ),
    "a look-up by time in a million records": Attack(looks_up(NOW_MS - 1000)),
    "three look-ups of the largest timestamp in a million records": Attack(looks_up(-3, times=3)),
    "a count of 2^31-1": Attack(produces(lambda: garbage(NONE, INT32_MAX), ErrorCode.invalid_record)),
    "a count of two": Attack(produces(lambda: garbage(NONE, 2), ErrorCode.invalid_record)),
    "a record that is none": Attack(produces(lambda: garbage(NONE, 1), *TOO_LARGE)),
    **{
        f"a count of 2^31-1 with codec {codec}": Attack(
            produces(lambda codec=codec: garbage(codec, INT32_MAX), *TOO_LARGE)  # type: ignore[misc]
        )
        for codec in (GZIP, SNAPPY, LZ4, ZSTD)
    },
    **{
        f"garbage with codec {codec}": Attack(
            produces(lambda codec=codec: garbage(codec, 3), *TOO_LARGE)  # type: ignore[misc]
        )
        for codec in (GZIP, LZ4, ZSTD)
    },
    "a gzip bomb that must be compressed anew": Attack(
        produces(lambda: bomb(GZIP), *TOO_LARGE), {"compression.type": "lz4"}, BOMB_WAIT_MS_MAX
    ),
    "a zstd bomb that must be compressed anew": Attack(
        produces(lambda: bomb(ZSTD), *TOO_LARGE, times=4), {"compression.type": "lz4"}, BOMB_WAIT_MS_MAX
    ),
    "a zstd bomb whose timestamps are checked": Attack(
        produces(lambda: bomb(ZSTD), *TOO_LARGE), RECENT_ONLY, BOMB_WAIT_MS_MAX
    ),
    "a count of 2^31-1 in half a megabyte that begins as zstd does": Attack(
        produces(lambda: garbage(ZSTD, INT32_MAX, b"\x28\xb5\x2f\xfd" + bytes(458_760)), *TOO_LARGE)
    ),
    "three hundred thousand names of topics": Attack(
        sends_too_many(3, 9, lambda count: array(count, b"\2!\0") + b"\0\0\0\0", 330_000)
    ),
    "two hundred thousand partitions whose offsets are fetched": Attack(
        sends_too_many(9, 7, lambda count: b"\2g" + one_topic(count, bytes(4)) + b"\0\0", 200_000)
    ),
    "four hundred answers that nobody reads": Attack(pipelines_metadata),
    "five hundred large frames that do not come": Attack(announces_large_frames),
    "eight hundred connections at once": Attack(opens_connections),
    "the id of another producer": Attack(takes_a_producers_id),
}


@pytest.fixture(scope="module")
def attacked_stack(run_cluster: RunCluster) -> Iterator[Cluster]:
    """One broker with three thousand partitions."""
    with run_cluster(1) as cluster, TopicFactory(cluster) as new_topic:
        for _ in range(12):
            new_topic(250)
        yield cluster


@pytest.mark.parametrize("name", ATTACKS)
def test_one_client_cannot_make_others_wait(attacked_stack: Cluster, name: str) -> None:
    attack = ATTACKS[name]
    (broker_id, address) = next(iter(attacked_stack.brokers.items()))
    pid = attacked_stack.broker_pid(broker_id)
    with TopicFactory(attacked_stack) as new_topic:
        target = Target(address, new_topic(config=attack.config))
        other = OtherClient(address, new_topic(), pid)
        other.start()
        wait_until(lambda: other.requests > 100, "the other client is served")
        before_mb = memory_mb(pid)
        other.reset()
        try:
            with target.stack:
                attack.run(target)
                let_pass(0.2, "what the attack has left behind is dealt with")
        finally:
            other.stop()
        growth_mb = other.memory_max_mb - before_mb
        print(  # noqa: T201  # the table of attacks
            f"{name}: {target.sent_bytes} bytes; others waited {other.longest_wait_ms:.0f} ms at most over"
            f" {other.requests} requests; memory grew by {growth_mb:.0f} MB;"
            f" the machine paused for {other.longest_pause_ms:.0f} ms at most"
        )
        assert attacked_stack.broker_pid(broker_id) == pid
        _the_log_is_intact(address, target.topic)
        assert other.longest_wait_ms < attack.wait_ms_max
        assert growth_mb < GROWTH_MB_MAX
        wait_until(lambda: memory_mb(pid) < before_mb + KEPT_MB_MAX, "the memory comes back", seconds=20)


def _the_log_is_intact(address: str, topic: str) -> None:
    """What is stored is what was counted, and the log takes and gives another batch."""
    with Connection(address) as connection:
        end_offset = list_offset(connection, topic, 0, -1).offset
        assert end_offset <= MANY_RECORDS
        answer = produce(connection, topic, 0, GOOD)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, end_offset)
        assert next(read_headers(fetch(connection, topic, 0, end_offset).records)).record_count == 2
