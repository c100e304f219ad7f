"""The topic `_schemas`: written by the leader, read by every instance from its first record on.

A write is done when its records were read back, in the topic's order, and the state took them in. Consumers
see only what all in-sync replicas have, so what was read back survives the loss of a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, TopicAlreadyExistsError, for_code

from mainstem_registry.client_security import Brokers
from mainstem_registry.errors import StartupError, store_failed, store_timed_out
from mainstem_registry.records import WRITER, Key, NoopKey, NoopValue, Record, decode, encode, encode_key
from mainstem_registry.state import RegistryState

logger = structlog.get_logger(__name__)

REPLICAS_MAX: Final = 3
REQUEST_TIMEOUT_MS: Final = 10_000
READ_BACK_S: Final = 15.0
CATCH_UP_S: Final = 5.0
COMPACTION_LAG_MS: Final = 24 * 3600 * 1000
"""Compaction waits this long, so that a leader is there in time to repair what a former leader wrote last."""
RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the topic, for schemas of 1 MiB whose text is escaped in JSON."""
POLL_MS: Final = 500
QUIET_POLLS_PER_WARNING: Final = 20


@dataclass(slots=True)
class _Contents:
    """What was read of the topic."""

    state: RegistryState = field(default_factory=RegistryState)
    rejected: set[int] = field(default_factory=set)
    """Offsets of records that the state rejected."""
    spellings: dict[Key, set[bytes]] = field(default_factory=dict)
    """The other forms in which another registry wrote a key, if they have a value."""
    deleted: set[Key] = field(default_factory=set)
    """Keys with other forms whose last record is a tombstone in the form of this registry."""
    ignored: int = 0
    """Records that say nothing to this registry."""

    @property
    def leftovers(self) -> list[bytes]:
        """The forms of keys that compaction would keep, and bring back, after it removed the tombstone."""
        return sorted(form for key in self.deleted for form in self.spellings[key])

    def take(self, message: ConsumerRecord[bytes, bytes]) -> None:
        key = message.key or b""
        record = decode(key, message.value)
        if record is None:
            self.ignored += 1
            return
        self._note_form(key, record)
        if not self.state.apply(record, has_header=WRITER in message.headers):
            self.rejected.add(message.offset)
            logger.warning("record rejected", offset=message.offset, key=str(record.key))

    def _note_form(self, key: bytes, record: Record) -> None:
        is_ours = key == encode_key(record.key)
        if record.value is not None:
            # A tombstone in another form would now delete this value.
            self.deleted.discard(record.key)
            if not is_ours:
                self.spellings.setdefault(record.key, set()).add(key)
        elif record.key in self.spellings:
            if is_ours:
                self.deleted.add(record.key)
            else:
                self.spellings[record.key].discard(key)


class Store:
    """Owns the state. `append` is for the leader alone; its caller lets one write happen at a time."""

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self._partition = TopicPartition(topic, 0)
        self._contents = _Contents()
        self.next_offset = 0
        """Of the first record that is not yet applied."""
        self.loaded = asyncio.Event()
        self._progress = asyncio.Condition()
        self._consumer: AIOKafkaConsumer | None = None
        self._producer: AIOKafkaProducer | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def state(self) -> RegistryState:
        return self._contents.state

    async def start(self) -> None:
        """Make the topic if it does not exist, and read it to its present end.

        Raises:
            StartupError: the cluster cannot be reached, or the topic is not compacted.
        """
        try:
            await self._prepare_topic()
            # Positions are set by hand: a reader that lost its place must begin anew, not skip.
            self._consumer = AIOKafkaConsumer(
                **self._brokers.arguments(),
                auto_offset_reset="none",
                enable_auto_commit=False,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                max_partition_fetch_bytes=RECORD_BYTES_MAX,
            )
            await self._consumer.start()
        except KafkaError as error:
            raise StartupError(
                f"The cluster at {self._brokers.bootstrap_servers} cannot be used ({error}):"
                " check --bootstrap-servers and the file of --client-config."
            ) from error
        self._consumer.assign([self._partition])
        self._reading = asyncio.create_task(self._read())
        await self.loaded.wait()

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._consumer is not None:
            await self._consumer.stop()
        await self._drop_producer()

    async def _prepare_topic(self) -> None:
        admin = AIOKafkaAdminClient(**self._brokers.arguments(), request_timeout_ms=REQUEST_TIMEOUT_MS)
        await admin.start()
        try:
            brokers = len((await admin.describe_cluster())["brokers"])
            replicas = min(REPLICAS_MAX, brokers)
            configs = {
                "cleanup.policy": "compact",
                "min.compaction.lag.ms": str(COMPACTION_LAG_MS),
                "max.message.bytes": str(RECORD_BYTES_MAX),
                "min.insync.replicas": str(max(1, replicas - 1)),
            }
            answer = await admin.create_topics(
                [NewTopic(self._topic, 1, replicas, topic_configs=configs)], timeout_ms=REQUEST_TIMEOUT_MS
            )
            code = answer.topic_errors[0][1]
            if code == TopicAlreadyExistsError.errno:
                await self._check_topic(admin)
            elif code != 0:
                raise StartupError(f"The topic {self._topic} cannot be created: {for_code(code).__name__}.")
            else:
                logger.info("topic created", topic=self._topic, replicas=replicas)
        finally:
            await admin.close()

    async def _check_topic(self, admin: AIOKafkaAdminClient) -> None:
        described = (await admin.describe_topics([self._topic]))[0]
        if len(described["partitions"]) != 1:
            raise StartupError(
                f"The topic {self._topic} has {len(described['partitions'])} partitions; a registry's has"
                " one, as its records have one order. Name another with --topic."
            )
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, self._topic)])
        settings = {entry[0]: entry[1] for answer in answers for entry in answer.resources[0][4]}
        policy = settings.get("cleanup.policy")
        if policy != "compact":
            raise StartupError(
                f"The topic {self._topic} has cleanup.policy={policy}, under which schemas would be deleted"
                " after a time: set it to compact."
            )

    # Reading.

    async def _read(self) -> None:
        while True:
            try:
                await self._read_from_beginning()
            except OffsetOutOfRangeError:
                # The log is shorter than what was read: some of the state is no longer true.
                logger.error("the topic lost records: reading it again", topic=self._topic)
                self.loaded.clear()
            except KafkaError as error:
                logger.warning("the topic cannot be read", topic=self._topic, error=str(error))
                await asyncio.sleep(1)

    async def _read_from_beginning(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        begin = (await consumer.beginning_offsets([self._partition]))[self._partition]
        end = (await consumer.end_offsets([self._partition]))[self._partition]
        consumer.seek(self._partition, begin)
        contents, quiet_polls = _Contents(), 0
        if not self.loaded.is_set():
            self._contents, self.next_offset = contents, begin
        while True:
            batches = await consumer.getmany(timeout_ms=POLL_MS)
            for message in batches.get(self._partition, ()):
                contents.take(message)
            position = await consumer.position(self._partition)
            quiet_polls = 0 if batches else quiet_polls + 1
            if quiet_polls and position < end:
                # Silence proves nothing: the broker may be slow. Only the end can have moved back, by a
                # truncation. Compaction cannot keep the reader from the end: it spares the newest segment,
                # and a batch keeps its last offset.
                if quiet_polls % QUIET_POLLS_PER_WARNING == 0:
                    logger.warning("the topic is read slowly", topic=self._topic, offset=position, end=end)
                end = (await consumer.end_offsets([self._partition]))[self._partition]
            if position >= end:
                await self._publish(contents, position)

    async def _publish(self, contents: _Contents, position: int) -> None:
        if not self.loaded.is_set():
            subjects = len(contents.state.subjects())
            logger.info("state loaded", offset=position, subjects=subjects, ignored_records=contents.ignored)
        async with self._progress:
            self._contents, self.next_offset = contents, position
            self.loaded.set()
            self._progress.notify_all()

    async def wait_for(self, offset: int, timeout_s: float = READ_BACK_S) -> None:
        """Wait until the record at `offset` is applied.

        Raises:
            RegistryError: that takes too long.
        """
        try:
            async with asyncio.timeout(timeout_s), self._progress:
                await self._progress.wait_for(lambda: self.next_offset > offset)
        except TimeoutError:
            raise store_timed_out("the topic could not be read in time. Try again.") from None

    async def catch_up(self) -> None:
        """Apply all that is in the topic now. What is missing then does not exist.

        Raises:
            RegistryError: the topic cannot be read.
        """
        assert self._consumer is not None
        try:
            end = (await self._consumer.end_offsets([self._partition]))[self._partition]
        except KafkaError as error:
            raise store_failed(str(error)) from error
        if self.next_offset < end:
            await self.wait_for(end - 1, CATCH_UP_S)

    # Writing.

    async def prepare_writes(self) -> None:
        """Read all that former leaders wrote, and repair what was rejected of it.

        Raises:
            RegistryError: the topic cannot be written.
        """
        await self._drop_producer()
        # A record of our own ends what was written before; it also keeps the highest id.
        await self.append([Record(NoopKey(), NoopValue(self.state.highest_id))])
        await self.repair()

    async def repair(self) -> None:
        """Write the counting record again for each key whose last record was rejected."""
        repairs = self.state.repairs()
        if repairs:
            logger.warning("repairing rejected records", keys=[str(record.key) for record in repairs])
            await self.append(repairs)

    async def append(self, records: Sequence[Record]) -> bool:
        """Append records and wait until they are applied; False if the state rejected any.

        What is deleted gets a tombstone for each form of its key in the topic.

        Raises:
            RegistryError: it is not known whether they were written; a later read shows it.
        """
        offsets = [await self._send(*encode(record)) for record in records]
        await self.wait_for(offsets[-1])
        for key in self._contents.leftovers:
            await self._send(key, None)
        return self._contents.rejected.isdisjoint(offsets)

    async def _send(self, key: bytes, value: bytes | None) -> int:
        try:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    **self._brokers.arguments(),
                    enable_idempotence=True,
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                    max_request_size=RECORD_BYTES_MAX,
                )
                await producer.start()
                self._producer = producer
            written = await self._producer.send_and_wait(
                self._topic, value, key, partition=0, headers=[WRITER]
            )
        except KafkaError as error:
            raise store_failed(f"{error or type(error).__name__}. Try again.") from error
        return int(written.offset)

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                await producer.stop()
            except KafkaError as error:
                logger.warning("the producer could not be closed", error=str(error))
