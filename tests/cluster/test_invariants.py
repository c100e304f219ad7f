"""What the ledger takes for a broken promise, and what not: a check that cries wolf is not believed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pytest
from tests.cluster.invariants import Ledger, Violation
from tests.cluster.memory_log import MemoryLog
from tests.cluster.memory_segments import Disk
from tests.cluster.simulated_zookeeper import ZooKeeperServer
from tests.support.messages import Message
from tests.support.record_batches import encode_batch

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.zookeeper import Create, SetData
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.protocol.batches import parse_batch_header
from mainstem_broker.replica.partition_state import PartitionState

TOPIC = "t"
REPLICAS = (1, 2, 3)
CONFIG: Final = BrokerConfig({"broker.id": "1", "zookeeper.connect": "nowhere"}).topic({})


def batch_of(value: bytes, count: int = 1, base_offset: int = 0) -> bytes:
    """A batch as a leader of epoch 0 stores it."""
    return encode_batch([Message(value)] * count, base_offset=base_offset, leader_epoch=0)


STORED: Final = batch_of(b"a record")


class Scene:
    """One partition, led by broker 1 and in sync on all three in their lives 0; nobody has a log yet."""

    def __init__(self) -> None:
        self.server = ZooKeeperServer()
        self.ledger = Ledger(self.server, TOPIC)
        self.logs: dict[int, dict[tuple[str, int], MemoryLog]] = {broker: {} for broker in REPLICAS}
        self.ledger.brokers = {broker: self._broker(broker) for broker in REPLICAS}
        lives = dict.fromkeys(REPLICAS, 0)
        self.state = PartitionState(1, 0, REPLICAS, 1, incarnations=lives)
        assignment = znodes.TopicAssignment(TOPIC, UUID(int=1), {0: REPLICAS})
        self.create(znodes.topic_path(TOPIC), assignment.encode())
        self.create(znodes.state_path(TOPIC, 0), znodes.encode_state(self.state))
        for broker in REPLICAS:
            self.create(znodes.broker_path(broker), b"")
            self.create(znodes.incarnation_path(broker), znodes.encode_incarnation(0))

    def _broker(self, broker: int) -> Any:
        return SimpleNamespace(
            joined=True,
            is_offline=lambda _topic, _index: False,
            disks=SimpleNamespace(logs=self.logs[broker]),
            replicas=SimpleNamespace(find=lambda _topic, _index: None),
        )

    def create(self, path: str, data: bytes) -> None:
        self.server.ensure(path.rpartition("/")[0])
        self.server.multi([Create(path, data)], 0)

    def begin_life(self, broker: int, *, last_unclean: int) -> None:
        data = znodes.encode_incarnation(last_unclean)
        self.server.multi([SetData(znodes.incarnation_path(broker), data, -1)], 0)

    def store(self, broker: int, *batches: bytes) -> MemoryLog:
        log = MemoryLog.create(TOPIC, 0, CONFIG, Disk(Path("/disk-1")))
        for batch in batches:
            log.append_as_follower(batch, 0)
        self.logs[broker][TOPIC, 0] = log
        return log

    def consume(self, batch: bytes) -> None:
        header = parse_batch_header(batch)
        self.ledger.consumed(0, header.base_offset, header, batch)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_member_that_has_not_heard_of_a_new_partition_has_no_log_and_is_not_blamed(scene: Scene) -> None:
    """All brokers may be cut from ZooKeeper when the first state names them."""
    scene.store(1)
    scene.ledger.check()


def test_a_member_without_a_log_breaks_the_promise_of_an_acknowledged_record(scene: Scene) -> None:
    """R22."""
    scene.store(1, STORED)
    scene.store(2, STORED)
    scene.ledger.acknowledge(0, 0, STORED)
    with pytest.raises(Violation, match="in-sync broker 3 misses offset 0, which was acknowledged"):
        scene.ledger.check()


def test_a_member_without_a_log_breaks_the_promise_of_a_record_that_was_read(scene: Scene) -> None:
    """R20."""
    scene.store(1, STORED)
    scene.store(2, STORED)
    scene.consume(STORED)
    with pytest.raises(Violation, match="in-sync broker 3 misses a record that was read"):
        scene.ledger.check()


def test_at_the_end_every_replica_has_a_log(scene: Scene) -> None:
    scene.store(1)
    scene.store(2)
    with pytest.raises(Violation, match="broker 3 has no log"):
        scene.ledger.check_ends()


def test_a_member_is_held_to_its_promise_in_a_life_that_follows_cleanly(scene: Scene) -> None:
    """As after the loss of a session: the controller trusts it, and may elect it."""
    scene.begin_life(3, last_unclean=0)
    assert scene.ledger.is_unbroken(scene.state, 3)
    for broker in (1, 2):
        scene.store(broker, STORED)
    scene.ledger.acknowledge(0, 0, STORED)
    with pytest.raises(Violation, match="in-sync broker 3 misses offset 0"):
        scene.ledger.check()


def test_a_member_that_has_stopped_uncleanly_since_may_have_lost_records(scene: Scene) -> None:
    """R22, KIP-966."""
    scene.begin_life(3, last_unclean=1)
    assert not scene.ledger.is_unbroken(scene.state, 3)
    for broker in (1, 2):
        scene.store(broker, STORED)
    scene.ledger.acknowledge(0, 0, STORED)
    scene.ledger.check()
    scene.begin_life(3, last_unclean=1)
    assert not scene.ledger.is_unbroken(scene.state, 3)


def test_a_batch_that_a_deletion_cuts_into_is_still_promised(scene: Scene) -> None:
    """R4, R19: records above the log start stay, and batches are stored whole."""
    first, second = batch_of(b"first", 4), batch_of(b"second", 4, base_offset=4)
    for broker in REPLICAS:
        scene.store(broker, *[first, second][: 2 if broker < 3 else 1])
    scene.consume(first)
    scene.consume(second)
    scene.ledger.deleted(0, 6)
    with pytest.raises(Violation, match="in-sync broker 3 misses a record that was read"):
        scene.ledger.check()
    scene.ledger.deleted(0, 8)
    scene.ledger.check()


def test_replicas_are_compared_from_the_largest_log_start_on(scene: Scene) -> None:
    first, second, other = batch_of(b"first", 4), batch_of(b"second", 4, 4), batch_of(b"other", 4)
    scene.store(1, first, second)
    scene.store(2, other, second)
    scene.store(3, first, second)
    scene.consume(first)
    with pytest.raises(Violation, match="in-sync broker 2 misses a record that was read"):
        scene.ledger.check()
    scene.ledger.deleted(0, 4)
    scene.ledger.check()


def test_a_log_that_starts_later_than_anybody_has_deleted_has_lost_records(scene: Scene) -> None:
    for broker in REPLICAS:
        log = scene.store(broker, batch_of(b"x", 4))
    log.maybe_increment_log_start_offset(3)
    scene.ledger.deleted(0, 2)
    with pytest.raises(Violation, match="the log of broker 3 starts at 3"):
        scene.ledger.check()


def test_a_consumer_goes_on_where_records_were_deleted_and_misses_none_after_that(scene: Scene) -> None:
    batches = [batch_of(b"%d" % number, 4, 4 * number) for number in range(4)]
    scene.consume(batches[0])
    scene.ledger.deleted(0, 10)
    header = parse_batch_header(batches[2])
    scene.ledger.consumed(0, 10, header, batches[2])
    with pytest.raises(Violation, match="offset 16 was read after 11"):
        scene.consume(batch_of(b"4", 4, 16))
    scene.consume(batches[3])
