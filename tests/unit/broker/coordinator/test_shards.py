"""Shards of any kind of coordinator are loaded, fenced and written alike; these keep a dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.group.local_coordinator import LocalCoordinator

from mainstem_broker.coordinator import shard as shard_module
from mainstem_broker.coordinator.journal import Journal
from mainstem_broker.coordinator.shard import Shard
from mainstem_broker.coordinator.shards import Shards
from mainstem_broker.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NewerFormat,
    NotCoordinator,
    NotLeaderOrFollower,
    ProtocolError,
    StorageError,
)
from mainstem_broker.protocol.records import Record


class DictionaryShard(Shard):
    """The last value of each key, without any rules."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal, lambda: 0)
        self.values: dict[bytes, bytes] = {}
        self.failures_left = 0
        self.newer = False
        self.upkeep_calls = asyncio.Semaphore(0)

    async def restore(self) -> None:
        if self.newer:
            raise NewerFormat("version 9")
        if self.failures_left:
            self.failures_left -= 1
            raise StorageError("The disk fails for the moment.")
        await self.journal.replay(self._take)

    def _take(self, record: Record) -> None:
        assert record.key is not None
        if record.value is None:
            self.values.pop(record.key, None)
        else:
            self.values[record.key] = record.value

    def discard(self, error_code: int) -> None:
        self.values.clear()

    async def upkeep(self) -> None:
        self.upkeep_calls.release()

    def put(self, key: bytes, value: bytes) -> asyncio.Future[ProtocolError | None]:
        """Write an entry; the future gets the outcome, and `values` changes when it is replicated."""
        outcome: asyncio.Future[ProtocolError | None] = asyncio.get_running_loop().create_future()
        self.append([(key, value, ())], outcome.set_result, lambda: self.values.update({key: value}))
        return outcome


@asynccontextmanager
async def dictionary_shards(
    local: LocalCoordinator, *, upkeep_interval_ms: int = 3_600_000
) -> AsyncIterator[Shards[DictionaryShard]]:
    """Shards over the partition of `local`, whose own coordinator of groups is stopped."""
    await local.coordinator.shards.stop()
    shards = Shards("__dictionary", lambda _: local.partition, DictionaryShard, upkeep_interval_ms)
    try:
        yield shards
    finally:
        await shards.stop()


async def loaded(shards: Shards[DictionaryShard]) -> DictionaryShard:
    shards.follow(0)
    await shards.loading(0)
    shard = shards.find(0)
    assert shard is not None
    shard.require_loaded()
    return shard


async def test_the_next_leader_restores_what_was_written(tmp_path: Path) -> None:
    local = LocalCoordinator(tmp_path)
    local.lead()
    async with dictionary_shards(local) as shards:
        shard = await loaded(shards)
        assert await shard.put(b"a", b"1") is None
        assert await shard.put(b"b", b"2") is None
        await shard.append_tombstones([b"a"])
        local.follow()
        shards.follow(0)
        assert shards.find(0) is None
        local.lead()
        assert (await loaded(shards)).values == {b"b": b"2"}


async def test_a_shard_whose_leadership_was_interrupted_writes_nothing_any_more(tmp_path: Path) -> None:
    local = LocalCoordinator(tmp_path)
    local.lead()
    async with dictionary_shards(local) as shards:
        old = await loaded(shards)
        local.follow()
        local.lead()
        shards.follow_all()
        with pytest.raises(NotCoordinator):
            old.require_loaded()
        end_offset = local.partition.log.log_end_offset
        assert isinstance(await old.put(b"a", b"1"), ProtocolError)
        assert local.partition.log.log_end_offset == end_offset
        assert shards.find(0) is not old


async def test_a_failed_load_is_repeated_and_clients_retry_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "LOAD_PAUSE_S", 0.001)
    local = LocalCoordinator(tmp_path)
    local.lead()
    async with dictionary_shards(local) as shards:
        shards.follow(0)
        shard = shards.find(0)
        assert shard is not None
        shard.failures_left = 2
        with pytest.raises(CoordinatorLoadInProgress):
            shard.require_loaded()
        await shards.loading(0)
        shard.require_loaded()
        assert shard.failures_left == 0


async def test_records_in_a_newer_format_stop_the_partition_here_until_another_broker_leads(
    tmp_path: Path,
) -> None:
    """R44: one line in the log, no repeated attempts, and clients look for another coordinator."""
    local = LocalCoordinator(tmp_path)
    local.lead()
    async with dictionary_shards(local) as shards:
        with capture_logs() as lines:
            shards.follow(0)
            shard = shards.find(0)
            assert shard is not None
            shard.newer = True
            await shards.loading(0)
        (line,) = lines
        assert line["log_level"] == "error"
        assert "upgrade this broker" in line["event"]
        assert not shard.is_loaded
        assert shard.stopped == "version 9"
        with pytest.raises(CoordinatorNotAvailable, match="upgrade broker 1"):
            shard.require_loaded()
        local.follow()
        shards.follow(0)
        with pytest.raises(NotCoordinator):
            shard.require_loaded()


async def test_a_write_of_several_batches_has_one_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "BATCH_BYTES_MAX", 100)
    local = LocalCoordinator(tmp_path, followers=True, min_insync_replicas=2)
    local.lead()
    local.replicate()
    async with dictionary_shards(local) as shards:
        shard = await loaded(shards)
        outcomes: list[ProtocolError | None] = []
        applied: list[bool] = []
        entries = [(b"%d" % number, b"x" * 60, ()) for number in range(3)]
        shard.append(entries, outcomes.append, lambda: applied.append(True))
        assert (outcomes, applied) == ([], [])
        local.replicate()
        assert (outcomes, applied) == ([None], [True])
        keys = [b"%d" % number for number in range(20)]
        deleted = shard.append_tombstones(keys)
        local.set_in_sync((1,))
        with pytest.raises(CoordinatorNotAvailable):
            await deleted


async def test_what_a_failed_flush_refused_counts_once_a_later_flush_succeeds(tmp_path: Path) -> None:
    """R11: the record stays in the log, and the next leader would load it."""
    local = LocalCoordinator(tmp_path)
    local.lead()
    async with dictionary_shards(local) as shards:
        shard = await loaded(shards)
        partition = local.partition
        partition.log.update_config(replace(partition.log.config, flush_messages=1))
        partition.request_flush = lambda _: None
        outcome = shard.put(b"a", b"1")
        for _ in range(2):
            partition.flush_failed(StorageError("No space left on device"))
        assert isinstance(await outcome, StorageError)
        assert not shard.values
        partition.log.mark_flushed(partition.log.flush())
        partition.flushed()
        assert shard.values == {b"a": b"1"}


async def test_what_was_refused_with_the_end_of_the_leadership_never_counts(tmp_path: Path) -> None:
    local = LocalCoordinator(tmp_path, followers=True)
    local.lead()
    local.replicate()
    async with dictionary_shards(local) as shards:
        shard = await loaded(shards)
        outcome = shard.put(b"a", b"1")
        local.follow()
        assert isinstance(await outcome, NotLeaderOrFollower)
        local.lead()
        local.replicate()
        assert not shard.values


async def test_upkeep_is_run_periodically(tmp_path: Path) -> None:
    local = LocalCoordinator(tmp_path)
    local.lead()
    async with dictionary_shards(local, upkeep_interval_ms=1) as shards:
        shard = await loaded(shards)
        async with asyncio.timeout(60):
            await shard.upkeep_calls.acquire()
            await shard.upkeep_calls.acquire()


async def test_nothing_is_loaded_after_the_stop(tmp_path: Path) -> None:
    local = LocalCoordinator(tmp_path)
    local.lead()
    async with dictionary_shards(local) as shards:
        await loaded(shards)
        await shards.stop()
        shards.follow(0)
        assert shards.find(0) is None
