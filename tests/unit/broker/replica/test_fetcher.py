"""The loop that follows a leader, against one that is played: it answers what the test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from structlog.testing import capture_logs
from tests.unit.broker.log.logs import NOW_MS, open_log, read_all, read_batches, settings
from tests.unit.broker.log.logs import append as append_to_log
from tests.unit.broker.replica.replicas import state_of, valid_lease
from tests.unit.broker.server.peers import until

from mainstem_broker.errors import NotLeaderOrFollower, OffsetOutOfRange, PeerUnavailable, StorageError
from mainstem_broker.protocol.topic_partition import TopicIdPartition
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.fetcher import Fetched, FetchedFrom, Fetcher
from mainstem_broker.replica.partition import Partition

US, THEM = 1, 2
EPOCH = 5


class PlayedLeader:
    """Fetches come out of `asked`; the test puts what they are answered, or the failure, into `answers`."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Sequence[FetchedFrom]] = asyncio.Queue()
        self.answers: asyncio.Queue[Sequence[Fetched] | Exception] = asyncio.Queue()
        self.closed = False
        self.changed: list[TopicIdPartition] = []
        """Of the last fetch."""

    async def fetch(
        self,
        positions: Mapping[TopicIdPartition, FetchedFrom],
        changed: Collection[TopicIdPartition],
        wait_s_max: float,
    ) -> Iterable[Fetched]:
        self.asked.put_nowait(list(positions.values()))
        self.changed = list(changed)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True

    async def next_offsets(self) -> dict[str, int]:
        """Of the next fetch: the offset asked for, by partition."""
        return {f"{item.topic}-{item.partition}": item.offset for item in await self.asked.get()}


@asynccontextmanager
async def following(partitions: list[Partition]) -> AsyncIterator[tuple[PlayedLeader, Fetcher]]:
    leader = PlayedLeader()
    fetcher = Fetcher(THEM, leader, lambda: partitions, lambda: NOW_MS)
    try:
        yield leader, fetcher
    finally:
        await fetcher.stop()
        assert leader.closed


def replica(directory: Path, number: int = 0, *epochs: int) -> Partition:
    """t<number>-0, which follows broker 2 and has a record of each of these epochs."""
    (directory / str(number)).mkdir()
    log = open_log(directory / str(number), settings())
    for epoch in epochs:
        append_to_log(log, [b"a"], leader_epoch=epoch)
    made = Partition(f"t{number}", 0, UUID(int=number + 1), log, US, valid_lease())
    made.update_state(state_of(THEM, EPOCH, (THEM,)), (US, THEM), NOW_MS)
    return made


def answer(
    partition: Partition,
    records: bytes = b"",
    *,
    error: int = 0,
    high_watermark: int = 0,
    start: int = 0,
    diverging: Divergence | None = None,
) -> Fetched:
    return Fetched(partition.topic_id, partition.index, error, high_watermark, start, diverging, records)


async def test_records_are_copied_and_the_next_fetch_asks_for_what_follows(tmp_path: Path) -> None:
    theirs = open_log(tmp_path, settings())
    for epoch in (1, EPOCH):
        append_to_log(theirs, [b"a"], leader_epoch=epoch)

    ours = replica(tmp_path)
    async with following([ours]) as (leader, _):
        assert list(await leader.asked.get()) == [FetchedFrom("t0", UUID(int=1), 0, EPOCH, 0, -1, 0)]
        leader.answers.put_nowait([answer(ours, b"".join(read_batches(theirs)), high_watermark=1)])
        assert list(await leader.asked.get()) == [FetchedFrom("t0", UUID(int=1), 0, EPOCH, 2, EPOCH, 0)]
        assert read_all(ours.log) == read_all(theirs)
        assert ours.high_watermark == 1


async def test_a_truncation_is_written_down_before_the_next_fetch(tmp_path: Path) -> None:
    """R6: off the event loop, and again when it has failed."""
    ours = replica(tmp_path, 0, 1, 1, 1)
    leader = PlayedLeader()
    disk: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def write() -> None:
        error = await disk.get()
        if error is not None:
            raise error

    fetcher = Fetcher(THEM, leader, lambda: [ours], lambda: NOW_MS, after_truncation=write)
    assert await leader.next_offsets() == {"t0-0": 3}
    leader.answers.put_nowait([answer(ours, diverging=Divergence(1, 2))])
    await until(lambda: ours.log.log_end_offset == 2)
    disk.put_nowait(StorageError("The disk is full."))
    await until(disk.empty)
    assert leader.asked.empty()
    disk.put_nowait(None)
    assert await leader.next_offsets() == {"t0-0": 2}
    await fetcher.stop()


async def test_a_replica_that_has_fallen_behind_the_leaders_log_start_starts_over(tmp_path: Path) -> None:
    ours = replica(tmp_path, 0, 1, 1)
    async with following([ours]) as (leader, _):
        await leader.asked.get()
        leader.answers.put_nowait([answer(ours, error=OffsetOutOfRange.code, start=40, high_watermark=-1)])
        (requested,) = await leader.asked.get()
        assert (requested.offset, requested.last_epoch, requested.log_start_offset) == (40, -1, 40)


async def test_an_empty_log_past_its_leaders_end_starts_over(tmp_path: Path) -> None:
    """It has no epoch to compare: without this it would be refused for ever."""
    ours = replica(tmp_path)
    ours.log.truncate_fully_and_start_at(7)
    async with following([ours]) as (leader, _):
        assert await leader.next_offsets() == {"t0-0": 7}
        leader.answers.put_nowait([answer(ours, error=OffsetOutOfRange.code, start=2)])
        assert await leader.next_offsets() == {"t0-0": 2}
        assert (ours.log.log_start_offset, ours.log.log_end_offset) == (2, 2)


async def test_a_log_with_epochs_is_kept_though_its_leader_finds_it_out_of_range(tmp_path: Path) -> None:
    """Where both can be compared the leader says where they part; until then nothing may be lost."""
    ours = replica(tmp_path, 0, 1, 1)
    async with following([ours]) as (leader, _):
        assert await leader.next_offsets() == {"t0-0": 2}
        leader.answers.put_nowait([answer(ours, error=OffsetOutOfRange.code, start=0)])
        assert await leader.next_offsets() == {"t0-0": 2}


async def test_a_refusal_is_logged_once_and_again_when_its_reason_changes(tmp_path: Path) -> None:
    ours, other = replica(tmp_path), replica(tmp_path, 1)
    with capture_logs() as logs:
        async with following([ours, other]) as (leader, _):
            for codes in ((6, 6), (6, 6), (76, 0), (0, 0), (6, 0)):
                while len(await leader.asked.get()) < 2:
                    leader.answers.put_nowait([])  # the other one rests
                leader.answers.put_nowait([answer(ours, error=codes[0]), answer(other, error=codes[1])])
            await leader.asked.get()
    refused = [(entry["error_code"], entry["count"]) for entry in logs if "refused" in entry["event"]]
    assert refused == [(6, 2), (76, 1), (6, 1)]


async def test_a_partition_that_is_refused_rests_while_the_others_go_on(tmp_path: Path) -> None:
    refused, well = replica(tmp_path, 0), replica(tmp_path, 1)
    async with following([refused, well]) as (leader, _):
        assert await leader.next_offsets() == {"t0-0": 0, "t1-0": 0}
        leader.answers.put_nowait([answer(refused, error=NotLeaderOrFollower.code), answer(well)])
        assert await leader.next_offsets() == {"t1-0": 0}
        while True:  # the rest ends by itself
            leader.answers.put_nowait([])
            if "t0-0" in await leader.next_offsets():
                break


async def test_r43_a_divergence_that_changes_nothing_rests_while_the_others_go_on(tmp_path: Path) -> None:
    """As from a leader whose epochs have gone back: it does not know the later ones of its followers."""
    ours, well = replica(tmp_path, 0, EPOCH + 1), replica(tmp_path, 1)
    async with following([ours, well]) as (leader, _):
        ours.append_from_leader(b"", leader_epoch=EPOCH, high_watermark=1, log_start_offset=0, now_ms=NOW_MS)
        assert await leader.next_offsets() == {"t0-0": 1, "t1-0": 0}
        leader.answers.put_nowait([answer(ours, diverging=Divergence(-1, -1)), answer(well)])
        assert await leader.next_offsets() == {"t1-0": 0}
        assert ours.log.log_end_offset == 1


async def test_a_partition_that_rests_is_asked_for_again_when_the_cluster_has_changed(tmp_path: Path) -> None:
    ours = replica(tmp_path)
    async with following([ours]) as (leader, fetcher):
        await leader.asked.get()
        leader.answers.put_nowait([answer(ours, error=NotLeaderOrFollower.code)])
        while not fetcher._resting:  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0)
        fetcher.wake()
        assert await leader.next_offsets() == {"t0-0": 0}


async def test_records_that_cannot_be_taken_harm_no_other_partition(tmp_path: Path) -> None:
    with capture_logs() as lines:
        broken, well = replica(tmp_path, 0), replica(tmp_path, 1)
        async with following([broken, well]) as (leader, _):
            await leader.asked.get()
            leader.answers.put_nowait([answer(broken, b"no batch" * 20), answer(well)])
            assert await leader.next_offsets() == {"t1-0": 0}
    assert [line["partition"] for line in lines if line["event"] == "replica not extended"] == ["t0-0"]


async def test_an_answer_that_comes_after_a_change_of_leadership_changes_nothing(tmp_path: Path) -> None:
    theirs = open_log(tmp_path, settings())
    append_to_log(theirs, [b"a"], leader_epoch=EPOCH)

    ours = replica(tmp_path)
    async with following([ours]) as (leader, _):
        await leader.asked.get()
        ours.update_state(state_of(THEM, EPOCH + 1, (THEM,), 1), (US, THEM), NOW_MS)
        leader.answers.put_nowait([answer(ours, b"".join(read_batches(theirs)))])
        (requested,) = await leader.asked.get()
        assert (requested.offset, requested.leader_epoch) == (0, EPOCH + 1)


async def test_a_partition_that_was_refused_in_an_earlier_epoch_does_not_rest(tmp_path: Path) -> None:
    ours, well = replica(tmp_path, 0), replica(tmp_path, 1)
    async with following([ours, well]) as (leader, _):
        await leader.asked.get()
        ours.update_state(state_of(THEM, EPOCH + 1, (THEM,), 1), (US, THEM), NOW_MS)
        leader.answers.put_nowait([answer(ours, error=NotLeaderOrFollower.code)])
        assert [requested.leader_epoch for requested in await leader.asked.get()] == [EPOCH + 1, EPOCH]


async def test_a_leader_that_is_not_reached_is_tried_again_and_answers_of_strangers_are_ignored(
    tmp_path: Path,
) -> None:
    with capture_logs() as lines:
        ours, stranger = replica(tmp_path, 0), replica(tmp_path, 1)
        async with following([ours]) as (leader, _):
            await leader.asked.get()
            leader.answers.put_nowait(PeerUnavailable("It is down."))
            assert await leader.next_offsets() == {"t0-0": 0}
            leader.answers.put_nowait([answer(stranger, b"x", error=1)])
            assert await leader.next_offsets() == {"t0-0": 0}
    assert [line["event"] for line in lines] == ["leader not reached"]


async def test_nothing_is_asked_while_there_is_nothing_to_follow_and_at_once_when_there_is(
    tmp_path: Path,
) -> None:
    partitions: list[Partition] = []
    async with following(partitions) as (leader, fetcher):
        await asyncio.sleep(0)
        assert leader.asked.empty()
        partitions.append(replica(tmp_path))
        fetcher.wake()
        assert await leader.next_offsets() == {"t0-0": 0}
