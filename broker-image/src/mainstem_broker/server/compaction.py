"""Compaction in the background: chooses the log that needs it most, and has a process of its own compact it.

In scope: when, which log, and the process. Out of scope: what is due (`log.compaction.plan`), what a pass
does (`log.compaction`), how files change places (`PartitionLog.take_compacted`).

One log is compacted at a time. Its groups come into place in order, as the process finishes them; where one
does not fit any more, because retention or a truncation came between, the pass ends there: later groups may
have been written in the belief that it is in place. The first dirty offset moves last, when all names are on
the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
import time
from typing import Final

import structlog

from mainstem_broker.api.context import BrokerContext
from mainstem_broker.config.setting import INT64_MAX
from mainstem_broker.errors import ProtocolError
from mainstem_broker.log.compaction.facts import CompactedGroup, unfinished_files
from mainstem_broker.log.compaction.messages import (
    LENGTH,
    CompactionEnd,
    CompactionFailed,
    CompactionJob,
    Message,
    Order,
)
from mainstem_broker.log.compaction.plan import CompactionPlan, plan_compaction
from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.replica.partition import Partition

logger = structlog.get_logger(__name__)

_WORKER: Final = "mainstem_broker.log.compaction.worker"
_AFTER_FAILURE_S: Final = 60.0
"""A log whose compaction failed rests this long: a full disk may have room again, a broken batch will not
heal.
"""


class Compactor:
    """Runs until it is cancelled; `stop` then ends its process."""

    def __init__(self, broker: BrokerContext, logs: LogManager) -> None:
        self._broker = broker
        self._logs = logs
        self._worker: asyncio.subprocess.Process | None = None
        # Partitions that are left alone until a time of the monotonic clock, or until more may be compacted.
        self._resting: dict[Partition, tuple[float, int]] = {}
        self.bytes_compacted = 0
        """Of segments that were replaced, before compaction."""
        self.passes_failed = 0

    async def run(self) -> None:
        """Compact one log after another, for ever."""
        while True:
            config = self._broker.config
            worked = False
            if config.flag("log.cleaner.enable"):
                try:
                    worked = await self.compact_one()
                except (ProtocolError, OSError, EOFError) as error:
                    logger.error("compaction failed", reason=str(error))
                except Exception:  # a mistake of ours must not end compaction for good
                    logger.exception("compaction failed")
                    await self.stop()
            if not worked:
                await asyncio.sleep(max(config.integer("log.cleaner.backoff.ms"), 1) / 1000)

    async def stop(self) -> None:
        """End the process, whatever it is doing: recovery and the next pass remove what it leaves."""
        worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            await worker.wait()

    async def compact_one(self) -> bool:
        """Compact the log with the largest dirty share of those that are due; False if none is.

        Raises:
            EOFError: the process has ended by itself.
            StorageError, OSError: a disk failed. In both cases the log rests, so that others have their turn.
        """
        chosen: tuple[Partition, CompactionPlan] | None = None
        now_s = time.monotonic()
        for partition in list(self._broker.replicas):
            if partition.state is None or not partition.log.config.compacts:
                continue
            plan = await self._plan(partition)
            if plan is None or not plan.is_due:
                continue
            until_s, end_offset = self._resting.get(partition, (0.0, -1))
            if now_s < until_s and plan.end_offset <= end_offset:
                continue
            if chosen is None or plan.dirty_ratio > chosen[1].dirty_ratio:
                chosen = partition, plan
        if chosen is None:
            return False
        partition, plan = chosen
        log = partition.log
        try:
            await self._compact(partition, plan)
        except (ProtocolError, OSError, EOFError):
            self.passes_failed += 1
            self._rest(partition, INT64_MAX)
            await self._abandon(log)
            raise
        return True

    async def _plan(self, partition: Partition) -> CompactionPlan | None:
        log = partition.log
        try:
            facts = await asyncio.to_thread(log.segment_facts)
        except (ProtocolError, OSError):
            return None  # deleted meanwhile, or its disk fails, which its next use reports
        return plan_compaction(
            facts,
            log.config,
            first_dirty_offset=log.first_dirty_offset,
            high_watermark=partition.last_stable_offset,
            now_ms=self._broker.now_ms(),
        )

    async def _compact(self, partition: Partition, plan: CompactionPlan) -> None:
        log = partition.log
        config = self._broker.config
        started_s = time.monotonic()
        truncation_count = log.truncation_count
        job = CompactionJob(
            log.directory,
            log.config,
            tuple(await asyncio.to_thread(log.segment_facts)),
            plan.first_dirty_offset,
            plan.end_offset,
            self._broker.now_ms(),
            log.producers.last_offsets(),
            config.integer("log.cleaner.dedupe.buffer.size"),
            tuple(await asyncio.to_thread(log.aborted_transactions, 0, plan.end_offset)),
            log.producers.marker_epochs(),
        )
        worker = await self._running_worker()
        content = pickle.dumps(Order(job, config.number("log.cleaner.io.max.bytes.per.second")))
        assert worker.stdin is not None
        worker.stdin.write(LENGTH.pack(len(content)) + content)
        await worker.stdin.drain()
        read = kept = bytes_before = bytes_after = 0
        while True:
            message = await _receive(worker)
            if self._logs.get(log.topic, log.partition) is not log:
                await self._abandon(log)  # deleted meanwhile, or its disk has failed
                return
            if log.truncation_count != truncation_count:
                # Segments may have been filled again, with other records, to the same size.
                logger.info("compaction begins again: the log was truncated", partition=repr(partition))
                await self._abandon(log)
                return
            match message:
                case CompactedGroup():
                    if not log.take_compacted(message, self._broker.now_ms()):
                        logger.info("compaction begins again: the log has changed", partition=repr(partition))
                        await self._abandon(log)
                        return
                    read, kept = read + message.records_read, kept + message.records_kept
                    bytes_before += sum(message.input_sizes_bytes)
                    bytes_after += message.output_bytes
                case CompactionFailed():
                    self.passes_failed += 1
                    self._rest(partition, INT64_MAX)
                    logger.error("compaction failed", partition=repr(partition), reason=message.reason)
                    return
                case CompactionEnd():
                    break
        if message.map_end_offset <= plan.first_dirty_offset:
            self._rest(partition, plan.end_offset)
            return
        await asyncio.to_thread(log.flush_names)
        if log.truncation_count != truncation_count:
            return  # what has come since is not compacted
        log.first_dirty_offset = min(message.map_end_offset, log.log_end_offset)
        await asyncio.to_thread(self._logs.checkpoint_first_dirty_offsets)
        self._resting.pop(partition, None)
        self.bytes_compacted += bytes_before
        logger.info(
            "log compacted",
            partition=repr(partition),
            first_dirty_offset=log.first_dirty_offset,
            records_before=read,
            records_after=kept,
            bytes_before=bytes_before,
            bytes_after=bytes_after,
            seconds=round(time.monotonic() - started_s, 3),
        )

    async def _abandon(self, log: PartitionLog) -> None:
        """End the process during a pass, and remove its unfinished output."""
        await self.stop()
        with contextlib.suppress(OSError):
            await asyncio.to_thread(lambda: unlink_all(unfinished_files(log.directory)))

    def _rest(self, partition: Partition, end_offset: int) -> None:
        """Leave the log alone for a while, or until more than up to `end_offset` may be compacted."""
        self._resting = {other: rest for other, rest in self._resting.items() if other.state is not None}
        self._resting[partition] = (time.monotonic() + _AFTER_FAILURE_S, end_offset)

    async def _running_worker(self) -> asyncio.subprocess.Process:
        if self._worker is None or self._worker.returncode is not None:
            self._worker = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _WORKER,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        return self._worker


async def _receive(worker: asyncio.subprocess.Process) -> Message:
    assert worker.stdout is not None
    try:
        (size,) = LENGTH.unpack(await worker.stdout.readexactly(LENGTH.size))
        message: Message = pickle.loads(await worker.stdout.readexactly(size))
    except asyncio.IncompleteReadError:
        raise EOFError("the compacting process has ended") from None
    return message
