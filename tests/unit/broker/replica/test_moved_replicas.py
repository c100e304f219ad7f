"""What a replica and its leader do when the assignment changes (R20)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages, settings
from tests.unit.broker.replica.replicas import LAG_MS_MAX, LIFE, fetch, new_replica, state_of

from mainstem_broker.errors import FencedLeaderEpoch, NotLeaderOrFollower, ProtocolError
from mainstem_broker.log.files import ReadResult
from mainstem_broker.replica.acknowledgements import Acknowledgement
from mainstem_broker.replica.client_batches import append_batch
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.replica.throttle import is_throttled_follower, is_throttled_leader

US, THEM, NEW = 1, 2, 3
LIVES = dict.fromkeys((US, THEM, NEW), LIFE)


def state(leader: int, *isr: int, leader_epoch: int = 3, version: int = 3) -> PartitionState:
    return state_of(leader, leader_epoch, isr, version)


@pytest.fixture
def led(tmp_path: Path) -> Partition:
    """t-0, led here, held here and by THEM; one record."""
    made = new_replica(tmp_path, replace(settings(), leader_replication_throttled_replicas="0:1"))
    made.update_state(state(US, US, THEM), (US, THEM), NOW_MS)
    append(made)
    return made


def append(to: Partition) -> None:
    append_batch(to, encode_batch(messages([b"v"])), acks=-1, produce_version=9, now_ms=NOW_MS)


def read(leader: Partition, follower: int, max_bytes: int = 1 << 20) -> ReadResult:
    """What a follower without records is given."""
    result = fetch(leader, follower, 0, max_bytes=max_bytes)
    assert isinstance(result, ReadResult)
    return result


def test_a_new_replica_may_fetch_as_soon_as_the_assignment_names_it(led: Partition) -> None:
    with pytest.raises(NotLeaderOrFollower, match="Broker 3 holds no replica"):
        fetch(led, NEW, 0)
    assert led.state is not None
    led.update_state(led.state, (NEW, US, THEM), NOW_MS)
    assert read(led, NEW).slice is not None
    fetch(led, THEM, 1)
    fetch(led, NEW, 1)
    proposal = led.propose_isr(LIVES, NOW_MS, LAG_MS_MAX)
    assert proposal is not None
    assert set(proposal.isr) == {US, THEM, NEW}


def test_another_assignment_leaves_a_proposal_under_way(led: Partition) -> None:
    """Else records could be acknowledged that who is about to be in sync lacks."""
    assert led.state is not None
    led.update_state(led.state, (NEW, US, THEM), NOW_MS)
    fetch(led, THEM, 1)
    fetch(led, NEW, 1)
    assert led.propose_isr(LIVES, NOW_MS, LAG_MS_MAX) is not None
    led.update_state(led.state, (US, THEM, NEW), NOW_MS)
    append(led)
    fetch(led, THEM, 2)
    assert led.high_watermark == 1, "the proposal may be written any moment"
    assert led.propose_isr(LIVES, NOW_MS, LAG_MS_MAX) is None


def test_an_assignment_that_comes_with_an_old_state_counts(led: Partition) -> None:
    led.update_state(state(US, US, version=1), (US, THEM, NEW), NOW_MS)
    assert led.state is not None
    assert led.state.isr == (US, THEM)
    fetch(led, NEW, 0)


def test_who_was_moved_away_holds_nothing_back_and_never_comes_back(led: Partition) -> None:
    led.update_state(state(US, US, version=4), (US,), NOW_MS)
    assert led.high_watermark == 1
    with pytest.raises(NotLeaderOrFollower):
        fetch(led, THEM, 1)
    assert led.propose_isr(LIVES, NOW_MS, LAG_MS_MAX) is None


def test_what_a_replica_reported_before_it_was_moved_away_does_not_count_when_it_is_back(
    led: Partition,
) -> None:
    """It has deleted its log in between, of which the leader may hear only together with its return (R20)."""
    assert led.state is not None
    led.update_state(led.state, (US, THEM, NEW), NOW_MS)
    fetch(led, THEM, 1)
    fetch(led, NEW, 1)
    led.update_state(state(US, US, THEM, leader_epoch=4, version=4), (NEW, US, THEM), NOW_MS)
    assert led.propose_isr(LIVES, NOW_MS, LAG_MS_MAX) is None, "it has told nothing in this epoch"
    with pytest.raises(FencedLeaderEpoch):
        fetch(led, NEW, 1, last_epoch=3, leader_epoch=3)
    fetch(led, NEW, 1)
    proposal = led.propose_isr(LIVES, NOW_MS, LAG_MS_MAX)
    assert proposal is not None
    assert set(proposal.isr) == {US, THEM, NEW}


def test_a_leader_that_stays_leads_on_in_the_next_epoch(led: Partition) -> None:
    """Nobody led in between: what its in-sync followers have is known, and who waits need not send again."""
    answers: list[ProtocolError | None] = []
    assert not led.acknowledge(Acknowledgement(1, lambda _waiting, error: answers.append(error)))
    led.update_state(state(US, US, THEM, leader_epoch=4, version=4), (US, THEM), NOW_MS)
    assert (led.led_since, led.leader_epoch, answers) == (3, 4, [])
    fetch(led, THEM, 1)
    assert (answers, led.high_watermark, led.latest_offset(committed=False)) == ([None], 1, 1)
    append(led)
    led.update_state(state(US, US, THEM, leader_epoch=5, version=5), (US, THEM), NOW_MS)
    assert led.latest_offset(committed=False) == 1, "consumers may have read no further"
    assert led.log.epochs.end_offset_for(3, 2) == (3, 1)


def test_a_leader_that_others_may_have_replaced_in_between_begins_anew(led: Partition) -> None:
    answers: list[ProtocolError | None] = []
    assert not led.acknowledge(Acknowledgement(1, lambda _waiting, error: answers.append(error)))
    led.update_state(state(US, US, THEM, leader_epoch=5, version=5), (US, THEM), NOW_MS)
    assert [type(answer) for answer in answers] == [NotLeaderOrFollower]
    assert led.led_since == 5


def test_a_leader_that_is_moved_away_tells_those_who_wait(led: Partition) -> None:
    answers: list[ProtocolError | None] = []
    assert not led.acknowledge(Acknowledgement(1, lambda _waiting, error: answers.append(error)))
    led.take_offline()
    assert [type(answer) for answer in answers] == [NotLeaderOrFollower]


# --- Handing over ---


def test_who_hands_over_refuses_clients_until_it_is_known_what_became_of_it(led: Partition) -> None:
    fetch(led, THEM, 1)
    new = led.propose_handover(THEM, LIVES)
    assert new is not None
    assert (new.leader, new.leader_epoch, set(new.isr), new.partition_epoch) == (THEM, 4, {US, THEM}, 4)
    with pytest.raises(NotLeaderOrFollower, match="hands t-0 over"):
        append(led)
    with pytest.raises(NotLeaderOrFollower, match="hands t-0 over"):
        led.require_leader()
    fetch(led, THEM, 1)  # followers are served: they know the epoch
    assert led.propose_isr(LIVES, NOW_MS, LAG_MS_MAX) is None, "one proposal at a time"
    led.isr_refused()
    append(led)


def test_an_heir_must_have_shown_in_its_present_life_that_it_has_everything(led: Partition) -> None:
    assert led.propose_handover(THEM, LIVES) is None, "it has not fetched from this leader yet"
    fetch(led, THEM, 1)
    assert led.propose_handover(THEM, {**LIVES, THEM: LIFE + 1}) is None
    assert led.propose_handover(THEM, {US: LIFE}) is None
    assert led.propose_handover(NEW, LIVES) is None, "it is not in sync"
    assert led.propose_handover(US, LIVES) is None
    assert led.propose_handover(THEM, LIVES) is not None
    assert led.propose_handover(THEM, LIVES) is None, "one is under way"


def test_only_followers_out_of_sync_are_throttled(led: Partition) -> None:
    assert led.state is not None
    led.update_state(led.state, (NEW, US, THEM), NOW_MS)
    assert (is_throttled_leader(led, NEW), is_throttled_leader(led, THEM)) == (True, False)
    led.log.update_config(settings())
    assert not is_throttled_leader(led, NEW), "the topic names no replicas"


def test_a_follower_that_is_held_back_is_known_to_fetch(led: Partition) -> None:
    assert led.state is not None
    led.update_state(led.state, (NEW, US, THEM), NOW_MS)
    result = read(led, NEW, max_bytes=0)
    assert (result.slice, result.end_offset) == (None, 0)


def test_a_follower_is_throttled_until_it_is_in_sync(tmp_path: Path) -> None:
    config = replace(settings(), follower_replication_throttled_replicas="0:1")
    partition = new_replica(tmp_path, config)
    seen = [is_throttled_follower(partition)]
    for version, isr in enumerate([(THEM,), (THEM, US)], start=3):
        partition.update_state(state(THEM, *isr, version=version), (US, THEM), NOW_MS)
        seen.append(is_throttled_follower(partition))
    assert seen == [False, True, False]
