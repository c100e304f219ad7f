"""`python -m bench.compaction`: how fast each system compacts a log, and what that costs its producers (R10).

A compacted topic receives every key once, and then the same batches again until there are `--gigabytes`. It
may not be compacted meanwhile (min.compaction.lag.ms). Then it may: the time is that until the system's
cleaner-offset-checkpoint, a file that both systems keep, has reached the newest segment. Another topic is
produced to one by one, before and during that, with `--load` beside a client that sends as fast as it can.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench import apache_kafka
from bench.bare_socket import BareSocket
from bench.mainstem_stack import Mainstem
from bench.processes import cpu_seconds, memory_mb, process_tree
from bench.system import System
from bench.workloads import (
    ANSWER_SECONDS,
    BATCHES_1_MB,
    CHUNK,
    QUEUED_MESSAGES_MAX,
    client_settings,
    create_topic,
    percentile,
)
from mainstem_broker.compiled import are_made

TOPIC: Final = "compacted"
VALUE: Final = b"x" * 100
KEY_BYTES: Final = 10
RECORD_BYTES: Final = KEY_BYTES + len(VALUE)
SETTINGS: Final[Mapping[str, str]] = {
    "log.cleaner.backoff.ms": "500",
    # What the load leaves behind must not fill the disk.
    "log.retention.bytes": str(2 << 30),
    "log.retention.check.interval.ms": "5000",
}
NEVER_MS: Final = str(365 * 24 * 3600 * 1000)
CALM_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.05
WAIT_SECONDS: Final = 3600.0
CHECKPOINT: Final = "cleaner-offset-checkpoint"


class OnDisk(System, Protocol):
    """A system whose files are looked at."""

    log_directory: Path


@dataclass(frozen=True, slots=True)
class Compaction:
    """What one compaction took. Bytes are those of the log's files before it."""

    seconds: float
    cpu_seconds: float
    bytes_before: int
    bytes_after: int
    records: int
    memory_mb: float
    """The most that the broker's processes took, with shared pages by share."""
    p99_before_ms: float
    p99_during_ms: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compaction", description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=10, metavar="N", help="of records (default 10)")
    parser.add_argument("--keys", type=int, default=5_000_000, metavar="N", help="(default 5,000,000)")
    parser.add_argument("--load", action="store_true", help="send to another topic as fast as possible")
    parser.add_argument("--mainstem-alone", action="store_true", help="leave Apache Kafka out")
    arguments = parser.parse_args()
    if not are_made():
        print("Mainstem's brokers are plain Python: `make compile` makes the modules to measure")
    with _workspace(int(arguments.gigabytes * 3e9) + (8 << 30)) as directory:
        systems: list[OnDisk] = [Mainstem(directory / "mainstem", SETTINGS)]
        if not arguments.mainstem_alone:
            try:
                jars = apache_kafka.fetch()
                systems.append(apache_kafka.ApacheKafka(directory / "kafka", jars, SETTINGS))
            except apache_kafka.NotAvailable as reason:
                print(reason)
        for system in systems:
            print(f"{system.name}: {arguments.gigabytes:g} GB, {arguments.keys:,} keys", flush=True)
            system.start()
            try:
                _report(_measure(system, arguments.gigabytes * 1e9, arguments.keys, load=arguments.load))
            finally:
                system.stop()
                shutil.rmtree(system.log_directory, ignore_errors=True)
    return 0


def _report(taken: Compaction) -> None:
    megabytes = taken.bytes_before / 1e6
    print(
        f"  {taken.bytes_before / 1e9:.2f} GB and {taken.records:,} records in {taken.seconds:.1f} s:"
        f" {megabytes / taken.seconds:,.0f} MB/s, {taken.records / taken.seconds:,.0f} records/s\n"
        f"  left: {taken.bytes_after / 1e9:.2f} GB\n"
        f"  by second of CPU: {megabytes / taken.cpu_seconds:,.0f} MB,"
        f" {taken.records / taken.cpu_seconds:,.0f} records\n"
        f"  memory at most: {taken.memory_mb:,.0f} MB\n"
        f"  p99 of single produces: {taken.p99_before_ms:.2f} ms before, {taken.p99_during_ms:.2f} ms during",
        flush=True,
    )


def _measure(system: OnDisk, total_bytes: float, keys: int, *, load: bool) -> Compaction:
    _create(system)
    _fill(system, keys, max(int(total_bytes / RECORD_BYTES / keys), 2))
    files = system.log_directory / f"{TOPIC}-0"
    newest_base = max(int(path.stem) for path in files.glob("*.log"))
    first, second = create_topic(system), create_topic(system)
    with contextlib.ExitStack() as running:
        if load:
            running.enter_context(_load(system, second))
        with BareSocket(system) as bare:
            probe = _Probe(system, first, bare)
            calm = probe.run_until(time.perf_counter() + CALM_SECONDS)
            bytes_before = _log_bytes(files)
            watch = _Memory(system)
            cpu, began = _cpu(system), time.perf_counter()
            _alter(system, {"min.compaction.lag.ms": "0"})
            during = probe.run_while(lambda: _checkpoint(system) < newest_base)
            seconds, cpu = time.perf_counter() - began, _cpu(system) - cpu
            peak_mb = watch.stop()
    return Compaction(
        seconds,
        cpu,
        bytes_before,
        _log_bytes(files),
        newest_base,
        peak_mb,
        percentile(calm, 99),
        percentile(during, 99),
    )


def _create(system: System) -> None:
    admin: Any = AdminClient(client_settings(system))
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": NEVER_MS,
    }
    topic = NewTopic(TOPIC, 1, 1, config=config)
    admin.create_topics([topic], operation_timeout=ANSWER_SECONDS)[TOPIC].result(ANSWER_SECONDS)


def _alter(system: System, config: Mapping[str, str]) -> None:
    admin: Any = AdminClient(client_settings(system))
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(ANSWER_SECONDS)


def _fill(system: System, keys: int, times: int) -> None:
    """Every key once, in random order; then the same batches again, each time in another order."""
    order = list(range(keys))
    random.Random(1).shuffle(order)
    producer: Any = Producer(
        client_settings(
            system,
            {"queue.buffering.max.messages": QUEUED_MESSAGES_MAX, "queue.buffering.max.kbytes": 1 << 20}
            | dict(BATCHES_1_MB),
        )
    )
    for start in range(0, keys, CHUNK):
        chunk = [{"key": b"%0*d" % (KEY_BYTES, key), "value": VALUE} for key in order[start : start + CHUNK]]
        while len(producer) + CHUNK > QUEUED_MESSAGES_MAX:
            producer.poll(0.001)
        producer.produce_batch(TOPIC, chunk, partition=0)
    producer.flush(ANSWER_SECONDS)
    with BareSocket(system) as bare:
        batches = bare.batches(TOPIC, messages=keys)
        for number in range(1, times):
            random.Random(number).shuffle(batches)
            bare.produce_batches(TOPIC, batches)


class _Probe:
    """Sends a record after the other, with a pause between, and keeps how many milliseconds each took."""

    PAUSE_SECONDS: Final = 0.005

    def __init__(self, system: System, topic: str, bare: BareSocket) -> None:
        producer: Any = Producer(client_settings(system))
        producer.produce(topic, VALUE, partition=0)
        producer.flush(ANSWER_SECONDS)
        self._topic, self._bare = topic, bare
        self._batch, _ = bare.largest_batch(topic)

    def run_while(self, is_going_on: Any) -> list[float]:
        """Measure until `is_going_on` is false; it is called every `POLL_SECONDS`.

        Raises:
            TimeoutError: it has answered yes for `WAIT_SECONDS`.
        """
        latencies: list[float] = []
        deadline = time.perf_counter() + WAIT_SECONDS
        while is_going_on():
            if time.perf_counter() > deadline:
                raise TimeoutError(f"The log was not compacted within {WAIT_SECONDS:g} s.")
            latencies += self.run_until(time.perf_counter() + POLL_SECONDS)
        return latencies

    def run_until(self, end: float) -> list[float]:
        latencies: list[float] = []
        while time.perf_counter() < end:
            latencies += self._bare.produce_one_by_one(self._topic, batch=self._batch, requests=1)
            time.sleep(self.PAUSE_SECONDS)
        return latencies


@contextlib.contextmanager
def _load(system: System, topic: str) -> Iterator[None]:
    """A process that sends to `topic` as fast as it can."""
    process = multiprocessing.get_context("spawn").Process(
        target=_send_for_ever, args=(system.bootstrap_servers, topic), daemon=True
    )
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _send_for_ever(bootstrap_servers: str, topic: str) -> None:
    producer: Any = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
            **BATCHES_1_MB,
        }
    )
    chunk = [{"value": VALUE}] * CHUNK
    while True:
        if len(producer) + CHUNK > QUEUED_MESSAGES_MAX:
            producer.poll(0)
            time.sleep(0.001)
        else:
            producer.produce_batch(topic, chunk, partition=0)


class _Memory:
    """Looks several times a second how much memory a system's broker and its children take."""

    def __init__(self, system: System) -> None:
        self._most_mb = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(system.broker_pid,))
        self._thread.start()

    def stop(self) -> float:
        self._ended.set()
        self._thread.join()
        return self._most_mb

    def _run(self, pid: int) -> None:
        while not self._ended.wait(0.2):
            self._most_mb = max(self._most_mb, sum(memory_mb(one)["pss"] for one in process_tree(pid)))


def _cpu(system: System) -> float:
    return sum(cpu_seconds(pid) for pid in process_tree(system.broker_pid))


def _checkpoint(system: OnDisk) -> int:
    """The first offset of the topic that is not compacted; 0 before the first compaction."""
    lines = _lines(system.log_directory / CHECKPOINT)
    return next((int(offset) for topic, _, offset in map(str.split, lines[2:]) if topic == TOPIC), 0)


def _lines(path: Path) -> Sequence[str]:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().splitlines()
    return ()


def _log_bytes(files: Path) -> int:
    return sum(path.stat().st_size for path in files.glob("*.log"))


@contextlib.contextmanager
def _workspace(bytes_min: int) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="mainstem-bench-"))
    try:
        if shutil.disk_usage(directory).free < bytes_min:
            sys.exit(
                f"The bench needs {bytes_min >> 30} GiB in {directory.parent}:"
                " set TMPDIR to a folder that has more."
            )
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
