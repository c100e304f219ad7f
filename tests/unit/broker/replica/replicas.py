"""What replicas need around them, played.

A lease that is valid, a cluster that grants every wish, and leaders that cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from tests.unit.broker.at_end import at_end
from tests.unit.broker.log.logs import NOW_MS, append, open_log, settings

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import PeerUnavailable, StorageError
from mainstem_broker.log.files import ReadResult
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.protocol.topic_partition import TopicIdPartition
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.fetcher import Fetched, FetchedFrom, Leader
from mainstem_broker.replica.lease import Lease
from mainstem_broker.replica.manager import ReplicaManager
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.partition_state import PartitionState

LIFE: Final = 0
"""The life in which every broker is, unless a test says otherwise."""
LAG_MS_MAX: Final = 30_000


def state_of(
    leader: int, leader_epoch: int, isr: tuple[int, ...], partition_epoch: int = 0, **rest: object
) -> PartitionState:
    """A state by controller epoch 1, all of whose members were found in sync in `LIFE`."""
    lives = {broker: LIFE for broker in (*isr, leader) if broker >= 0}
    given: dict[str, object] = {"incarnations": lives, **rest}
    return PartitionState(leader, leader_epoch, isr, 1, partition_epoch, **given)  # type: ignore[arg-type]  # names are fields


def valid_lease() -> Lease:
    """A lease in `LIFE` that does not run out."""
    lease = Lease(lambda: 0.0, 1.0)
    lease.begin(LIFE)
    lease.answered(0.0)
    return lease


def new_replica(
    directory: Path,
    config: TopicConfig | None = None,
    *,
    broker: int = 1,
    lease: Lease | None = None,
    epochs: Iterable[int] = (),
    high_watermark: int = 0,
) -> Partition:
    """The replica of t-0 on `broker`, before it has any role.

    Its log is below `directory`, and has one record of each of these leader epochs.
    """
    log = open_log(directory, config or settings())
    for epoch in epochs:
        append(log, [b"e%d" % epoch], leader_epoch=epoch)
    return Partition("t", 0, UUID(int=1), log, broker, lease or valid_lease(), high_watermark)


def lead(partition: Partition, leader: int, epoch: int, isr: tuple[int, ...] = (1, 2)) -> None:
    """Make `leader` the leader of brokers 1 and 2, in a leader and partition epoch of this number."""
    partition.update_state(state_of(leader, epoch, isr, epoch), (1, 2), NOW_MS)


def fetch(
    leader: Partition,
    broker: int,
    offset: int,
    *,
    last_epoch: int | None = None,
    life: int = LIFE,
    leader_epoch: int | None = None,
    max_bytes: int = 1 << 20,
    now_ms: int = NOW_MS,
) -> ReadResult | Divergence:
    """A follower's fetch. By default it knows the leader's epoch, and its last record is of it."""
    known_epoch = leader.leader_epoch if leader_epoch is None else leader_epoch
    if last_epoch is None:
        last_epoch = leader.leader_epoch if offset else -1
    return leader.read_as_follower(
        *(broker, life, offset, last_epoch, max_bytes),
        leader_epoch=known_epoch,
        min_one_batch=max_bytes > 0,
        now_ms=now_ms,
    )


class PlayedCoordination:
    """Brokers 1 to 3 live; every proposal is written at once, and noted."""

    def __init__(self) -> None:
        self.live = {1: LIFE, 2: LIFE, 3: LIFE}
        self.written: list[tuple[str, int, PartitionState, Mapping[int, int]]] = []
        self.announced: list[tuple[str, int, PartitionState]] = []

    def live_incarnations(self) -> Mapping[int, int]:
        return self.live

    async def change_state(
        self, topic: str, partition: int, state: PartitionState, joined: Mapping[int, int]
    ) -> PartitionState | None:
        self.written.append((topic, partition, state, joined))
        return state

    async def read_state(self, topic: str, partition: int) -> PartitionState | None:
        return None

    async def announce(self, topic: str, partition: int, state: PartitionState) -> None:
        self.announced.append((topic, partition, state))


class UnreachableLeader:
    """Notes that it was asked, and closed."""

    def __init__(self) -> None:
        self.asked: list[Sequence[FetchedFrom]] = []
        self.closed = False

    async def fetch(
        self,
        positions: Mapping[TopicIdPartition, FetchedFrom],
        changed: Collection[TopicIdPartition],
        wait_s_max: float,
    ) -> Iterable[Fetched]:
        self.asked.append(list(positions.values()))
        raise PeerUnavailable("Nobody plays this leader.")

    def close(self) -> None:
        self.closed = True


def delete_logs(replicas: ReplicaManager) -> None:
    """What `server/log_worker.py` does in threads; logs that the disk keeps stay `undeleted`."""
    for key in list(replicas.undeleted):
        with suppress(StorageError):
            replicas.logs.delete(*key)
            del replicas.undeleted[key]


def replica_manager(
    logs: LogManager,
    coordination: PlayedCoordination | None = None,
    *,
    broker_id: int = 1,
    connect: Callable[[int], Leader] = lambda _: UnreachableLeader(),
    now_ms: Callable[[], int] = lambda: 0,
) -> ReplicaManager:
    """The manager of a broker's replicas in that company."""
    manager = ReplicaManager(
        broker_id, logs, coordination or PlayedCoordination(), valid_lease(), connect, now_ms, LAG_MS_MAX
    )
    at_end(partial(manager.flusher._worker.close, wait=True))
    return manager
