from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages, settings
from tests.unit.broker.replica.replicas import new_replica, state_of

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StorageError,
    UnknownLeaderEpoch,
)
from mainstem_broker.log.segment import Segment
from mainstem_broker.replica.client_batches import append_batch
from mainstem_broker.replica.partition import Partition

US, THEM = 1, 2
REPLICAS = (US, THEM)


def partition(directory: Path, config: TopicConfig | None = None, leader: int = US) -> Partition:
    """t-0 at leader epoch 3."""
    made = new_replica(directory, config)
    made.update_state(state_of(leader, 3, (US,), 3), REPLICAS, NOW_MS)
    return made


def append(to: Partition, *values: bytes, acks: int = 1) -> int:
    batch = encode_batch(messages(values))
    return append_batch(to, batch, acks=acks, produce_version=9, now_ms=NOW_MS).first_offset


# --- Leading ---


def test_a_high_watermark_is_never_beyond_the_end_of_a_log_that_has_lost_records(tmp_path: Path) -> None:
    """R19: what is appended there later has not been replicated."""
    assert new_replica(tmp_path, epochs=(1, 1), high_watermark=9).high_watermark == 2


def test_a_replica_without_a_state_leads_nothing(tmp_path: Path) -> None:
    fresh = new_replica(tmp_path)
    assert (fresh.is_leader, fresh.leader_epoch) == (False, -1)
    with pytest.raises(NotLeaderOrFollower, match="does not lead t-0"):
        fresh.require_leader()


def test_only_the_leader_lets_requests_pass_and_only_under_its_epoch(tmp_path: Path) -> None:
    led = partition(tmp_path)
    for epoch in (-1, 3):
        led.require_leader(epoch)
    with pytest.raises(FencedLeaderEpoch, match="t-0 is at leader epoch 3"):
        led.require_leader(2)
    with pytest.raises(UnknownLeaderEpoch, match="t-0 is still at leader epoch 3"):
        led.require_leader(4)


def test_an_older_state_is_ignored(tmp_path: Path) -> None:
    led = partition(tmp_path)
    led.update_state(state_of(THEM, 2, (THEM,), 2), REPLICAS, NOW_MS)
    assert led.is_leader
    led.update_state(state_of(THEM, 4, (THEM,), 4), REPLICAS, NOW_MS)
    assert not led.is_leader


# --- Appending and reading ---


def test_records_get_the_leaders_epoch(tmp_path: Path) -> None:
    led = partition(tmp_path)
    append(led, b"a")
    led.update_state(state_of(US, 7, (US,), 4), REPLICAS, NOW_MS)
    append(led, b"b")
    assert [led.log.epochs.epoch_of(offset) for offset in (0, 1)] == [3, 7]


def test_a_follower_appends_and_reads_for_no_client(tmp_path: Path) -> None:
    follower = partition(tmp_path, leader=THEM)
    with pytest.raises(NotLeaderOrFollower):
        append(follower, b"a")
    with pytest.raises(NotLeaderOrFollower):
        follower.read(0, 100, client_epoch=-1, min_one_batch=True, committed=False)
    with pytest.raises(NotLeaderOrFollower):
        follower.delete_records_before(0)


def test_acks_all_needs_enough_in_sync_replicas(tmp_path: Path) -> None:
    led = partition(tmp_path, settings(min_insync_replicas=2))
    with pytest.raises(NotEnoughReplicas, match=r"t-0 has 1 in-sync replicas of the 2"):
        append(led, b"a", acks=-1)
    assert append(led, b"a", acks=1) == 0
    led.update_state(state_of(US, 3, (US, THEM), 4), REPLICAS, NOW_MS)
    assert append(led, b"a", acks=-1) == 1


def test_a_batch_that_is_refused_leaves_nothing_and_wakes_nobody(tmp_path: Path) -> None:
    led, woken = partition(tmp_path), []
    led.add_listener(lambda: woken.append(1))
    with pytest.raises(CorruptMessage):
        append_batch(led, b"no batch at all" * 10, acks=1, produce_version=9, now_ms=NOW_MS)
    assert (led.high_watermark, woken) == (0, [])


def test_what_was_appended_is_read_up_to_the_high_watermark(tmp_path: Path) -> None:
    led = partition(tmp_path)
    append(led, b"a", b"b")
    for committed in (False, True):
        fetched = led.read(1, 1000, client_epoch=3, min_one_batch=True, committed=committed)
        assert fetched.slice is not None
        assert fetched.end_offset == led.high_watermark == led.last_stable_offset == 2
    with pytest.raises(OffsetOutOfRange):
        led.read(3, 1000, client_epoch=-1, min_one_batch=True, committed=False)


def test_flush_messages_one_syncs_every_append(tmp_path: Path) -> None:
    led = partition(tmp_path, settings(flush_messages=1))
    append(led, b"a")
    assert led.log.recovery_point == 1


# --- Deleting records ---


def test_records_are_deleted_up_to_the_high_watermark_and_not_beyond(tmp_path: Path) -> None:
    led = partition(tmp_path)
    append(led, b"a", b"b", b"c")
    assert led.delete_records_before(2) == 2
    assert led.delete_records_before(1) == 1
    assert led.log.log_start_offset == 2, "it never goes back"
    for offset in (4, -2):
        with pytest.raises(OffsetOutOfRange, match=f"{offset} is not in t-0, whose high watermark is 3"):
            led.delete_records_before(offset)
    assert led.delete_records_before(-1) == 3


# --- Waiting ---


def test_whoever_listens_hears_of_appends_until_he_stops(tmp_path: Path) -> None:
    led, heard = partition(tmp_path), []

    def listener() -> None:
        heard.append(led.high_watermark)
        if heard[-1] == 2:
            led.remove_listener(listener)  # from within

    led.add_listener(listener)
    for _ in range(4):
        append(led, b"a")
    assert sorted(set(heard)) == [1, 2]
    led.remove_listener(listener)


def test_whoever_listens_hears_that_the_lead_is_lost_or_begins_anew_but_not_that_it_goes_on(
    tmp_path: Path,
) -> None:
    """A fetch that waits under an older epoch has to be fenced."""
    led, heard = partition(tmp_path), []
    led.add_listener(lambda: heard.append((led.is_leader, led.leader_epoch)))
    led.update_state(state_of(US, 3, (US, THEM), 4), REPLICAS, NOW_MS)
    assert heard == []
    led.update_state(state_of(US, 4, (US, THEM), 5), REPLICAS, NOW_MS)
    assert heard == [(True, 4)]
    led.update_state(state_of(THEM, 5, (US, THEM), 6), REPLICAS, NOW_MS)
    assert heard == [(True, 4), (False, 5)]


def test_listeners_hear_of_a_start_that_a_retention_moved_before_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led, starts = partition(tmp_path, settings(segment_bytes=100, retention_ms=1_000)), []
    append(led, b"a")
    append(led, b"b")
    led.add_listener(lambda: starts.append(led.log.log_start_offset))

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Segment, "create", no_space)
    with pytest.raises(StorageError):
        led.apply_retention(NOW_MS + 10_000)
    assert starts == [1]
