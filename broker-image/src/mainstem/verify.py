"""`mainstem verify`: sends numbered records, reads them, and says what was lost, doubled or out of order.

Brokers may be restarted or killed meanwhile: that is what it is for.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS, Cluster, sentence_of
from mainstem.errors import BadInput, ClusterUnreachable, CommandError
from mainstem.ledger import PartitionLedger, Verdict, judge
from mainstem.options import BootstrapServers, OutputChoice
from mainstem.output import Advance, Output, OutputFormat, facts
from mainstem.produce import Acks
from mainstem.sending import DELIVERY_TIMEOUT_MS
from mainstem.temporary_topic import temporary_topic
from mainstem.times import duration_ms

_RECORDS: Final = 100_000
_STEP: Final = 1000  # records sent between looks at what has arrived
_VALUE_BYTES: Final = 100
_SILENCE_SECONDS: Final = 30.0  # without a record of those that are due, after which they count as lost
_BEYOND_THE_END_SECONDS: Final = 0.5  # for what comes though all has arrived: doubled, then
_RECORDS_PER_CALL: Final = 500


class Unfaithful(CommandError):
    """The cluster broke a promise; each breach was told before."""


def verify(
    records: Annotated[
        int | None, typer.Option("--records", "-n", min=1, help=f"How many; else {_RECORDS:,}.")
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration", "-d", metavar="TIME", help="For so long (30s, 10m), instead of --records."
        ),
    ] = None,
    rate: Annotated[
        int | None, typer.Option("--rate", min=1, help="Most records a second; else as fast as it goes.")
    ] = None,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="Of the topic that is made for this.")
    ] = 6,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, help="Of it; else 3, or all brokers.")
    ] = None,
    acks: Annotated[
        Acks, typer.Option("--acks", help="Who must have a record. Only with all is nothing ever lost.")
    ] = Acks.ALL,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Send unique records, read them back, and tell what was lost, doubled or out of order.

    Makes a topic for this and deletes it again. Ends with exit code 1 when something is wrong. Ctrl-C ends
    the sending early; what was sent is verified all the same.
    """
    if records is not None and duration is not None:
        raise BadInput("--records and --duration exclude each other: leave one of them out.")
    seconds = None if duration is None else _seconds(duration)
    count = None if seconds is not None else records or _RECORDS
    cluster, out = Cluster(bootstrap_servers), Output(output)
    with temporary_topic(cluster, out, "verify", partitions, replication_factor) as topic:
        run = _Run(cluster, out, topic, partitions, acks)
        with out.progress("Sending", count) as advance, _interrupt_calls(run.stop_sending):
            run.send(count, seconds, rate, advance)
        with out.waiting("Waiting for what has not arrived yet"):
            run.finish()
    verdict = judge(run.ledgers)
    _show(out, verdict, run)
    if not verdict.flawless:
        raise Unfaithful(
            f"Of {verdict.acknowledged:,} acknowledged records {verdict.lost:,} were lost; "
            f"{verdict.doubled:,} came twice, and {verdict.reordered:,} out of order."
        )


@contextmanager
def _interrupt_calls(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C call `stop`: an exception could come while records are on their way into the account."""
    before = signal.signal(signal.SIGINT, lambda _number, _frame: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _seconds(text: str) -> float:
    found_ms = duration_ms(text)
    if not found_ms:
        raise BadInput(f"--duration takes a time as 30s, 10m or 1h30m, not {text!r}.")
    return found_ms / 1000


class _Run:
    """One verification: a producer, a consumer, and the account of every partition."""

    def __init__(self, cluster: Cluster, out: Output, topic: str, partitions: int, acks: Acks) -> None:
        self.ledgers = {number: PartitionLedger() for number in range(partitions)}
        self.reasons: dict[str, int] = {}
        self.seconds = 0.0
        self.trouble: str | None = None
        self._stopped = False
        self._cluster, self._topic = cluster, topic
        self._positions = dict.fromkeys(range(partitions), 0)
        self._producer: Producer = cluster.producer(
            {
                "acks": acks.value,
                "enable.idempotence": acks is Acks.ALL,
                "linger.ms": 5,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "delivery.report.only.error": True,
                "on_delivery": self._refused,
            },
            out.warn,
        )
        self._consumer: Consumer = cluster.consumer({}, out.warn)
        self._consumer.assign([TopicPartition(topic, number, 0) for number in self.ledgers])

    def send(self, count: int | None, seconds: float | None, rate: int | None, advance: Advance) -> None:
        """Send `count` records, or for `seconds`, until all are settled; reads meanwhile what arrives."""
        started = time.monotonic()
        step = _STEP if rate is None else max(1, min(_STEP, rate // 4))
        for number in self._numbers(count, seconds, rate):
            partition, sequence = number % len(self.ledgers), number // len(self.ledgers)
            self._produce(partition, (b"%d" % sequence).rjust(_VALUE_BYTES))
            self.ledgers[partition].sent = sequence + 1
            if (number + 1) % step == 0:
                self._producer.poll(0)
                self._read(0)
                advance(step)
        while self._producer.flush(0.2):
            self._read(0)
        self.seconds = time.monotonic() - started

    def _produce(self, partition: int, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, partition=partition)
            except BufferError:
                self._producer.poll(0)
                self._read(0.1)
            except KafkaException as exception:
                raise self._cluster.refusal(exception, "The producer gave up") from exception
            else:
                return

    def stop_sending(self) -> None:
        """Let what was sent be all."""
        self._stopped = True

    def _numbers(self, count: int | None, seconds: float | None, rate: int | None) -> Iterator[int]:
        started, number = time.monotonic(), 0
        while number != count and not self._stopped:
            yield number
            number += 1
            if rate is not None and number % max(1, rate // 100) == 0:
                while not self._stopped and (early := started + number / rate - time.monotonic()) > 0:
                    self._read(min(early, 0.1))
            if seconds is not None and number % 10 == 0 and time.monotonic() - started > seconds:
                return

    def finish(self) -> None:
        """Wait for what was acknowledged, and for what comes beyond the end."""
        last = time.monotonic()
        while time.monotonic() - last < _SILENCE_SECONDS:
            if self._read(0.1):
                last = time.monotonic()
            elif all(ledger.complete for ledger in self.ledgers.values()) and self._at_the_end():
                break
        self._read(_BEYOND_THE_END_SECONDS)
        self._consumer.close()

    def _at_the_end(self) -> bool:
        partitions = [TopicPartition(self._topic, number) for number in self.ledgers]
        try:
            (ends,) = self._cluster.offsets(partitions, OffsetSpec.latest())
        except ClusterUnreachable:
            return False  # a leader has just gone: who leads now is asked again
        return all(end is not None and self._positions[number] >= end for number, end in ends.items())

    def _read(self, seconds: float) -> int:
        """Note what has arrived within `seconds`; answers how many records that were."""
        read = 0
        while messages := self._consumer.consume(_RECORDS_PER_CALL, seconds):
            for message in messages:
                error = message.error()
                if error is not None:
                    self.trouble = sentence_of(error)
                    continue
                number = message.partition()
                self.ledgers[number].arrived(int(message.value()))
                self._positions[number] = message.offset() + 1
                read += 1
            seconds = 0
        return read

    def _refused(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.ledgers[message.partition()].refused.add(int(message.value() or b"0"))
            reason = sentence_of(error)
            self.reasons[reason] = self.reasons.get(reason, 0) + 1


def _show(out: Output, verdict: Verdict, run: _Run) -> None:
    value: dict[str, Any] = {
        **asdict(verdict),
        "not_acknowledged": run.reasons,
        "seconds": round(run.seconds, 3),
        "flawless": verdict.flawless,
    }
    refused = verdict.sent - verdict.acknowledged
    reasons = "; ".join(f"{reason.rstrip('.')} ({count:,})" for reason, count in run.reasons.items())
    headline = {
        "Sent": f"{verdict.sent:,} records in {run.seconds:.1f} s",
        "Acknowledged": verdict.acknowledged,
        **({"Not acknowledged": f"{refused:,}: {reasons}"} if refused else {}),
        "Lost": verdict.lost,
        "Doubled": verdict.doubled,
        "Out of order": verdict.reordered,
    }
    out.result(value, facts(headline))
    for kind, examples in verdict.examples.items():
        out.problem(f"{kind}, as partition: number: {', '.join(examples)}")
    if run.trouble is not None:
        out.warn(f"the consumer was told meanwhile: {run.trouble}")
    if verdict.flawless:
        out.done("Every acknowledged record arrived once, and in order.")
