"""The same work without a client: what the broker can do, where a client's own work is the limit.

Batches to produce are those that librdkafka made: fetched from a partition it has filled, and sent again as
they are, but for the base offset, which the CRC does not cover. Records that are fetched are received and not
decoded; batch headers are walked, to know the next offset. Requests have the versions that librdkafka's have.
"""

from __future__ import annotations

import datetime as dt
import io
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self
from uuid import UUID

from kio.schema.fetch.v16 import request as fetch_request
from kio.schema.fetch.v16.response import FetchResponse
from kio.schema.metadata.v12 import request as metadata_request
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.produce.v10 import request as produce_request
from kio.schema.produce.v10.response import ProduceResponse
from kio.serial import entity_reader, entity_writer

from bench.processes import cpu_seconds, own_cpu_seconds
from bench.system import Cluster, System
from bench.workloads import ANSWER_SECONDS, Miscounted, Throughput

FETCH_BYTES: Final = 1 << 20
RETRY_SECONDS: Final = 0.002
IN_FLIGHT_REQUESTS: Final = 5  # what Kafka's own producer has
_BATCH_PREFIX: Final = struct.Struct(">qi")  # base offset, and the size without these 12 bytes
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT: Final = 23


class BareSocket:
    """A blocking connection to the broker of a system, or to one of a cluster's, at `address`.

    Raises (from every method):
        Miscounted: the broker answers with an error, or with less than there is.
        ConnectionError: the broker closed the connection.
    """

    def __init__(self, system: Cluster, address: str | None = None) -> None:
        host, _, port = (address or system.bootstrap_servers).rpartition(":")
        self._system = system
        self._socket = socket.create_connection((host, int(port)), ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._topic_ids: dict[str, UUID] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def largest_batch(self, topic: str, offset: int = 0) -> tuple[bytes, int]:
        """The largest batch in one fetch from `offset` of partition 0 on, and its number of records."""
        records = self._fetch(topic, offset)
        batches = _batches(records)
        start, size, count = max(batches, key=lambda batch: batch[1])
        # A producer's base offset is 0: Apache Kafka refuses another.
        return bytes(8) + records[start + 8 : start + size], count

    def batches(self, topic: str, *, messages: int) -> list[bytes]:
        """All batches of partition 0 below offset `messages`, ready to be sent again."""
        batches: list[bytes] = []
        offset = 0
        while offset < messages:
            records = self._fetch(topic, offset)
            batches += [bytes(8) + records[start + 8 : start + size] for start, size, _ in _batches(records)]
            offset = _next_offset(records)
        return batches

    def produce_batches(self, topic: str, batches: Sequence[bytes]) -> None:
        """Produce each batch once, with acks=1, a few in flight."""
        for number, batch in enumerate(batches):
            self._socket.sendall(_produce_frame(topic, batch))
            if number >= IN_FLIGHT_REQUESTS:
                self._expect_produced()
        for _ in range(min(len(batches), IN_FLIGHT_REQUESTS)):
            self._expect_produced()

    def fetch_all(self, topic: str, *, messages: int, message_bytes: int) -> Throughput:
        """Fetch partition 0 from its beginning to offset `messages`, one request after another."""
        broker_cpu, client_cpu, began = self._begin()
        offset = 0
        while offset < messages:
            records = self._fetch(topic, offset)
            if not records:
                raise Miscounted(f"{self._system.name} gave nothing from offset {offset} of {messages} on.")
            offset = _next_offset(records)
        return self._end(offset, message_bytes, broker_cpu, client_cpu, began)

    def produce_all(
        self, topic: str, *, messages: int, message_bytes: int, batch: bytes, count: int
    ) -> Throughput:
        """Produce `batch`, of `count` records, with acks=1 until there are `messages`, a few in flight."""
        frame = _produce_frame(topic, batch)
        return self._produce_frames(lambda: frame, messages, message_bytes, count)

    def produce_each(
        self,
        topic: str,
        next_batch: Callable[[], bytes],
        messages: int,
        message_bytes: int,
        count: int,
        acks: int,
    ) -> Throughput:
        """As `produce_all`, but each request holds another batch of the same size."""
        first = next_batch()
        frame = bytearray(_produce_frame(topic, first, acks))
        place = frame.index(first)
        waiting = first

        def next_frame() -> bytes:
            nonlocal waiting
            frame[place : place + len(waiting)] = waiting
            sent, waiting = bytes(frame), next_batch()
            return sent

        return self._produce_frames(next_frame, messages, message_bytes, count)

    def ask(self, request: Any, response_type: Any) -> Any:
        """The answer to any request."""
        self._socket.sendall(_frame(request))
        return _decode(response_type, self._receive())

    def _produce_frames(
        self, next_frame: Callable[[], bytes], messages: int, message_bytes: int, count: int
    ) -> Throughput:
        requests = -(-messages // count)
        broker_cpu, client_cpu, began = self._begin()
        for number in range(requests):
            self._socket.sendall(next_frame())
            if number >= IN_FLIGHT_REQUESTS:
                self._expect_produced()
        for _ in range(min(requests, IN_FLIGHT_REQUESTS)):
            self._expect_produced()
        return self._end(requests * count, message_bytes, broker_cpu, client_cpu, began)

    def produce_one_by_one(self, topic: str, *, batch: bytes, requests: int) -> list[float]:
        """Milliseconds from each request to its answer, each sent after the one before."""
        frame = _produce_frame(topic, batch)
        latencies: list[float] = []
        for _ in range(requests):
            began = time.perf_counter()
            self._socket.sendall(frame)
            answer = self._receive()
            latencies.append((time.perf_counter() - began) * 1000)
            self._check_produced(answer)
        return latencies

    def is_produced(self, topic: str, batch: bytes) -> bool:
        """Whether the broker takes `batch` by now; false while it does not know or lead the partition."""
        self._socket.sendall(_produce_frame(topic, batch))
        answer = _decode(ProduceResponse, self._receive())
        return bool(answer.responses[0].partition_responses[0].error_code == 0)

    def _begin(self) -> tuple[float, float, float]:
        return _cpu_seconds(self._system), own_cpu_seconds(), time.perf_counter()

    def _end(
        self, messages: int, message_bytes: int, broker_cpu: float, client_cpu: float, began: float
    ) -> Throughput:
        return Throughput(
            messages,
            message_bytes,
            time.perf_counter() - began,
            _cpu_seconds(self._system) - broker_cpu,
            own_cpu_seconds() - client_cpu,
        )

    def _fetch(self, topic: str, offset: int) -> bytes:
        self._socket.sendall(_fetch_frame(self._topic_id(topic), offset))
        answer = _decode(FetchResponse, self._receive())
        partition = answer.responses[0].partitions[0]
        if partition.error_code != 0:
            raise Miscounted(f"{self._system.name} answers Fetch with {partition.error_code!r}.")
        return partition.records or b""

    def _topic_id(self, topic: str) -> UUID:
        if topic not in self._topic_ids:
            topic_request = metadata_request.MetadataRequestTopic(topic_id=None, name=topic)
            request = metadata_request.MetadataRequest(
                topics=(topic_request,),
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            )
            answer = self.ask(request, MetadataResponse).topics[0]
            if answer.topic_id is None:
                raise Miscounted(f"{self._system.name} knows no topic {topic}: {answer.error_code!r}.")
            self._topic_ids[topic] = answer.topic_id
        return self._topic_ids[topic]

    def _expect_produced(self) -> None:
        self._check_produced(self._receive())

    def _check_produced(self, frame: bytes) -> None:
        error = _decode(ProduceResponse, frame).responses[0].partition_responses[0].error_code
        if error != 0:
            raise Miscounted(f"{self._system.name} answers Produce with {error!r}.")

    def _receive(self) -> bytes:
        prefix = self._socket.recv(4, socket.MSG_WAITALL)
        if len(prefix) < 4:
            raise ConnectionError(f"{self._system.name} closed the connection.")
        (size,) = struct.unpack(">i", prefix)
        frame = bytearray(size)
        with memoryview(frame) as view:
            received = 0
            while received < size:
                count = self._socket.recv_into(view[received:])
                if count == 0:
                    raise ConnectionError(f"{self._system.name} closed the connection.")
                received += count
        return bytes(frame)


def restart_until_first_acknowledgement(system: System, topic: str) -> float:
    """Seconds from the start of the broker's process to its first acknowledged batch.

    `topic` holds something already; the broker was stopped cleanly, and whatever else belongs to the system
    runs on.
    """
    with BareSocket(system) as bare:
        batch, _ = bare.largest_batch(topic)
    system.stop_broker()
    began = time.perf_counter()
    system.spawn_broker()
    while time.perf_counter() - began < ANSWER_SECONDS:
        try:
            with BareSocket(system) as bare:
                while not bare.is_produced(topic, batch):
                    time.sleep(RETRY_SECONDS)
                return time.perf_counter() - began
        except OSError:  # it does not listen yet, or closes again
            time.sleep(RETRY_SECONDS)
    raise Miscounted(f"{system.name} acknowledged nothing for {ANSWER_SECONDS} s after its start.")


def _fetch_frame(topic_id: UUID, offset: int) -> bytes:
    partition = fetch_request.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
    )
    body = fetch_request.FetchRequest(
        max_wait=dt.timedelta(milliseconds=500),
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(fetch_request.FetchTopic(topic_id=topic_id, partitions=(partition,)),),
        forgotten_topics_data=(),
        rack_id="",
    )
    return _frame(body)


def _cpu_seconds(system: Cluster) -> float:
    return sum(cpu_seconds(pid) for pid in system.broker_pids)


def _produce_frame(topic: str, batch: bytes, acks: int = 1) -> bytes:
    data = produce_request.PartitionProduceData(index=0, records=batch)
    body = produce_request.ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout=dt.timedelta(seconds=30),
        topic_data=(produce_request.TopicProduceData(name=topic, partition_data=(data,)),),
    )
    return _frame(body)


def _frame(body: Any) -> bytes:
    header = body.__header_schema__(
        request_api_key=body.__api_key__,
        request_api_version=body.__version__,
        correlation_id=0,
        client_id="bench",
    )
    buffer = io.BytesIO()
    entity_writer(type(header))(buffer, header)
    entity_writer(type(body))(buffer, body)
    payload = buffer.getvalue()
    return struct.pack(">i", len(payload)) + payload


def _decode(response_type: Any, frame: bytes) -> Any:
    _, position = entity_reader(response_type.__header_schema__)(frame, 0)
    return entity_reader(response_type)(frame, position)[0]


def _batches(records: bytes) -> list[tuple[int, int, int]]:
    """Position, size and number of offsets of each whole batch."""
    batches: list[tuple[int, int, int]] = []
    position = 0
    while position + _BATCH_PREFIX.size <= len(records):
        _, rest = _BATCH_PREFIX.unpack_from(records, position)
        size = _BATCH_PREFIX.size + rest
        if position + size > len(records):
            break  # Apache Kafka cuts the last batch where the limit falls
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(records, position + _LAST_OFFSET_DELTA_AT)
        batches.append((position, size, delta + 1))
        position += size
    return batches


def _next_offset(records: bytes) -> int:
    position, _, count = _batches(records)[-1]
    base_offset, _ = _BATCH_PREFIX.unpack_from(records, position)
    return int(base_offset) + count
