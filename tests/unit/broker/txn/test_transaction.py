"""What a transactional id goes through, request by request (R11; KIP-98, KIP-360, KIP-890)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainstem_broker.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    ProtocolError,
)
from mainstem_broker.txn.states import PREDECESSORS, State
from mainstem_broker.txn.transaction import (
    CLIENT_EPOCH_MAX,
    CLIENT_VERSION_1,
    CLIENT_VERSION_2,
    EPOCH_MAX,
    NO_ID,
    Producer,
    Transaction,
    completed,
    ended,
    fenced,
    initialized,
    missing_partitions,
    must_rotate_at_end,
    needs_producer_id,
    with_partitions,
)

NOW_MS = 1_000_000
ID, NEW_ID = 7, 8
PARTITION = ("t", 0)
PARTITIONS = frozenset((PARTITION,))


def transaction(state: State, epoch: int = 5, client_version: int = CLIENT_VERSION_1) -> Transaction:
    has_partitions = state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
    return Transaction(
        ID,
        epoch,
        60_000,
        state,
        PARTITIONS if has_partitions else frozenset(),
        updated_ms=NOW_MS,
        started_ms=-1 if state is State.EMPTY else NOW_MS,
        client_version=client_version,
    )


def end(
    current: Transaction, epoch: int, committed: bool, version: int, producer_id: int = ID
) -> Transaction | None:
    return ended(
        current,
        Producer(producer_id, epoch),
        committed=committed,
        client_version=version,
        new_producer_id=NEW_ID,
        now_ms=NOW_MS + 1,
    )


def init(current: Transaction, expected: Producer | None = None) -> Transaction:
    return initialized(current, expected, 1_000, NEW_ID, NOW_MS + 1)


# --- InitProducerId ---


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_a_new_instance_gets_the_next_epoch(state: State) -> None:
    again = init(transaction(state))
    assert (again.producer, again.state, again.timeout_ms) == (Producer(ID, 6), State.EMPTY, 1_000)


def test_an_open_transaction_is_aborted_with_an_epoch_that_nobody_has_first() -> None:
    aborting = init(transaction(State.ONGOING))
    assert (aborting.state, aborting.epoch, aborting.partitions) == (State.PREPARE_ABORT, 7, PARTITIONS)


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_a_transaction_that_is_being_ended_is_waited_for(state: State) -> None:
    with pytest.raises(ConcurrentTransactions):
        init(transaction(state))


def test_a_producer_gets_its_own_next_epoch_once() -> None:
    """KIP-360: the same request again is answered with the same epoch."""
    bumped = init(transaction(State.EMPTY), Producer(ID, 5))
    assert bumped.producer == Producer(ID, 6)
    assert init(bumped, Producer(ID, 5)).producer == Producer(ID, 6)
    assert init(bumped, Producer(ID, 6)).producer == Producer(ID, 7)


@pytest.mark.parametrize("expected", [Producer(ID, 4), Producer(ID, 6), Producer(9, 5), Producer(ID, -1)])
@pytest.mark.parametrize("state", [state for state in State if state in PREDECESSORS])
def test_a_producer_that_was_replaced_gets_no_epoch_and_aborts_nothing(
    state: State, expected: Producer
) -> None:
    with pytest.raises(ProducerFenced):
        init(transaction(state), expected)


def test_a_new_instance_makes_the_repetition_of_an_old_request_fail() -> None:
    bumped = init(transaction(State.EMPTY), Producer(ID, 5))
    replaced = init(bumped)
    with pytest.raises(ProducerFenced):
        init(replaced, Producer(ID, 5))


def test_a_producer_that_has_to_wait_for_its_own_abort_goes_on_after_it() -> None:
    aborting = init(transaction(State.ONGOING), Producer(ID, 5))
    aborted = completed(aborting, NOW_MS)
    assert init(aborted, Producer(ID, 5)).producer == Producer(ID, 7)


def test_a_producer_whose_transaction_was_aborted_by_others_is_fenced() -> None:
    """By the timeout, or by a new instance."""
    for aborting in (fenced(transaction(State.ONGOING), NOW_MS), init(transaction(State.ONGOING))):
        for current in (aborting, completed(aborting, NOW_MS)):
            with pytest.raises(ProducerFenced):
                init(current, Producer(ID, 5))


def test_a_producer_that_did_not_hear_of_the_end_of_its_transaction_goes_on_after_it() -> None:
    ending = end(transaction(State.ONGOING), 5, True, CLIENT_VERSION_2)
    assert ending is not None
    assert init(completed(ending, NOW_MS), Producer(ID, 5)).producer == Producer(ID, 6)


def test_an_epoch_of_the_former_producer_id_is_not_taken_for_one_of_the_present() -> None:
    current = replace(transaction(State.EMPTY, epoch=6), last_epoch=5, previous_producer_id=NEW_ID)
    with pytest.raises(ProducerFenced):
        init(current, Producer(NEW_ID, 5))


@pytest.mark.parametrize("expected", [None, Producer(ID, CLIENT_EPOCH_MAX)])
def test_after_the_last_epoch_comes_another_producer_id(expected: Producer | None) -> None:
    last = transaction(State.EMPTY, CLIENT_EPOCH_MAX)
    assert needs_producer_id(last, expected)
    rotated = init(last, expected)
    assert (rotated.producer, rotated.previous_producer_id) == (Producer(NEW_ID, 0), ID)


def test_the_repetition_of_a_request_for_another_producer_id_gets_the_same_one() -> None:
    rotated = init(transaction(State.EMPTY, CLIENT_EPOCH_MAX), Producer(ID, CLIENT_EPOCH_MAX))
    assert not needs_producer_id(rotated, Producer(ID, CLIENT_EPOCH_MAX))
    assert init(rotated, Producer(ID, CLIENT_EPOCH_MAX)).producer == Producer(NEW_ID, 0)


@pytest.mark.parametrize("epoch", [CLIENT_EPOCH_MAX - 1, CLIENT_EPOCH_MAX])
@pytest.mark.parametrize("by_itself", [True, False])
def test_no_client_is_ever_given_the_epoch_for_fencing(epoch: int, by_itself: bool) -> None:
    expected = Producer(ID, epoch) if by_itself else None
    aborted = completed(init(transaction(State.ONGOING, epoch), expected), NOW_MS)
    assert aborted.epoch == EPOCH_MAX
    assert needs_producer_id(aborted, expected)
    assert init(aborted, expected).producer == Producer(NEW_ID, 0)


# --- Partitions ---


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_the_first_partition_begins_a_transaction(state: State) -> None:
    begun = with_partitions(transaction(state), Producer(ID, 5), PARTITIONS, CLIENT_VERSION_2, NOW_MS + 9)
    assert begun is not None
    assert (begun.state, begun.partitions, begun.started_ms) == (State.ONGOING, PARTITIONS, NOW_MS + 9)


def test_further_partitions_do_not_move_its_start() -> None:
    more = with_partitions(
        transaction(State.ONGOING), Producer(ID, 5), {("u", 1)}, CLIENT_VERSION_1, NOW_MS + 9
    )
    assert more is not None
    assert (more.partitions, more.started_ms) == (frozenset((PARTITION, ("u", 1))), NOW_MS)


def test_partitions_that_it_has_are_not_written_again() -> None:
    assert with_partitions(transaction(State.ONGOING), Producer(ID, 5), PARTITIONS, 0, NOW_MS) is None


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        (Producer(ID, 4), ProducerFenced),
        (Producer(ID, 6), ProducerFenced),
        (Producer(9, 5), InvalidProducerIdMapping),
    ],
)
@pytest.mark.parametrize("state", list(PREDECESSORS))
def test_only_the_present_producer_adds_and_verifies_partitions(
    state: State, producer: Producer, error: type[ProtocolError]
) -> None:
    with pytest.raises(error):
        with_partitions(transaction(state), producer, PARTITIONS, 0, NOW_MS)
    with pytest.raises(error):
        missing_partitions(transaction(state), producer, PARTITIONS)


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_nothing_is_added_while_the_transaction_is_being_ended(state: State) -> None:
    with pytest.raises(ConcurrentTransactions):
        with_partitions(transaction(state), Producer(ID, 5), PARTITIONS, 0, NOW_MS)
    with pytest.raises(ConcurrentTransactions):
        missing_partitions(transaction(state), Producer(ID, 5), PARTITIONS)


def test_only_partitions_of_an_open_transaction_are_verified() -> None:
    both = [PARTITION, ("u", 0)]
    assert list(missing_partitions(transaction(State.ONGOING), Producer(ID, 5), both)) == [("u", 0)]
    assert list(missing_partitions(transaction(State.COMPLETE_COMMIT), Producer(ID, 5), both)) == both


# --- EndTxn, first protocol ---


@pytest.mark.parametrize(("committed", "state"), [(True, State.PREPARE_COMMIT), (False, State.PREPARE_ABORT)])
def test_in_the_first_protocol_the_epoch_stays(committed: bool, state: State) -> None:
    prepared = end(transaction(State.ONGOING), 5, committed, CLIENT_VERSION_1)
    assert prepared is not None
    assert (prepared.state, prepared.epoch) == (state, 5)
    done = completed(prepared, NOW_MS + 2)
    assert (done.is_committed, done.epoch, done.partitions) == (committed, 5, frozenset())


@pytest.mark.parametrize(
    ("state", "committed", "outcome"),
    [
        (State.EMPTY, True, InvalidTxnState),
        (State.EMPTY, False, InvalidTxnState),
        (State.PREPARE_COMMIT, True, ConcurrentTransactions),
        (State.PREPARE_COMMIT, False, InvalidTxnState),
        (State.PREPARE_ABORT, False, ConcurrentTransactions),
        (State.PREPARE_ABORT, True, InvalidTxnState),
        (State.COMPLETE_COMMIT, True, None),
        (State.COMPLETE_COMMIT, False, InvalidTxnState),
        (State.COMPLETE_ABORT, False, None),
        (State.COMPLETE_ABORT, True, InvalidTxnState),
    ],
)
def test_in_the_first_protocol_a_repetition_is_known_by_the_outcome(
    state: State, committed: bool, outcome: type[ProtocolError] | None
) -> None:
    if outcome is None:
        assert end(transaction(state), 5, committed, CLIENT_VERSION_1) is None
    else:
        with pytest.raises(outcome):
            end(transaction(state), 5, committed, CLIENT_VERSION_1)


# --- EndTxn, second protocol ---


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("state", [State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_in_the_second_protocol_every_end_bumps_the_epoch_also_of_an_empty_transaction(
    state: State, committed: bool
) -> None:
    prepared = end(transaction(state), 5, committed, CLIENT_VERSION_2)
    assert prepared is not None
    assert (prepared.state.is_prepared, prepared.is_committed, prepared.epoch) == (True, committed, 6)
    assert prepared.partitions == (PARTITIONS if state is State.ONGOING else frozenset())
    assert completed(prepared, NOW_MS).producer == prepared.next_producer == Producer(ID, 6)


@pytest.mark.parametrize("committed", [True, False])
def test_a_repeated_end_has_the_same_outcome_and_never_ends_the_next_transaction(committed: bool) -> None:
    prepared = end(transaction(State.ONGOING), 5, committed, CLIENT_VERSION_2)
    assert prepared is not None
    with pytest.raises(ConcurrentTransactions):
        end(prepared, 5, committed, CLIENT_VERSION_2)
    with pytest.raises(InvalidTxnState):
        end(prepared, 5, not committed, CLIENT_VERSION_2)
    done = completed(prepared, NOW_MS)
    assert end(done, 5, committed, CLIENT_VERSION_2) is None
    with pytest.raises(InvalidTxnState):
        end(done, 5, not committed, CLIENT_VERSION_2)
    following = with_partitions(done, Producer(ID, 6), PARTITIONS, CLIENT_VERSION_2, NOW_MS)
    assert following is not None
    for late in (committed, not committed):
        with pytest.raises(ProducerFenced):
            end(following, 5, late, CLIENT_VERSION_2)


def test_a_repetition_is_known_to_the_next_coordinator_too() -> None:
    prepared = end(transaction(State.ONGOING), 5, True, CLIENT_VERSION_2)
    assert prepared is not None
    reloaded = replace(completed(prepared, NOW_MS), last_epoch=-1)
    assert end(reloaded, 5, True, CLIENT_VERSION_2) is None


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("version", [CLIENT_VERSION_1, CLIENT_VERSION_2])
def test_a_producer_whose_transaction_was_aborted_by_the_coordinator_is_fenced(
    committed: bool, version: int
) -> None:
    for epoch in (5, CLIENT_EPOCH_MAX - 1, CLIENT_EPOCH_MAX):
        aborting = fenced(transaction(State.ONGOING, epoch, version), NOW_MS)
        for current in (aborting, completed(aborting, NOW_MS)):
            with pytest.raises(ProducerFenced):
                end(current, epoch, committed, version)


def test_the_last_epoch_is_followed_by_another_producer_id() -> None:
    current = transaction(State.ONGOING, CLIENT_EPOCH_MAX)
    assert must_rotate_at_end(current, CLIENT_VERSION_2)
    prepared = end(current, CLIENT_EPOCH_MAX, True, CLIENT_VERSION_2)
    assert prepared is not None
    assert (prepared.producer, prepared.next_producer) == (Producer(ID, EPOCH_MAX), Producer(NEW_ID, 0))
    with pytest.raises(ConcurrentTransactions):
        end(prepared, CLIENT_EPOCH_MAX, True, CLIENT_VERSION_2)
    done = completed(prepared, NOW_MS)
    assert (done.producer, done.previous_producer_id, done.next_producer_id) == (
        Producer(NEW_ID, 0),
        ID,
        NO_ID,
    )
    assert end(done, CLIENT_EPOCH_MAX, True, CLIENT_VERSION_2) is None
    with pytest.raises(InvalidProducerIdMapping):
        end(done, CLIENT_EPOCH_MAX - 1, True, CLIENT_VERSION_2)

    following = with_partitions(done, Producer(NEW_ID, 0), PARTITIONS, CLIENT_VERSION_2, NOW_MS)
    assert following is not None
    ending = end(following, 0, True, CLIENT_VERSION_2, NEW_ID)
    assert ending is not None
    later = completed(ending, NOW_MS)
    assert (later.producer, later.previous_producer_id) == (Producer(NEW_ID, 1), ID)
    with pytest.raises(InvalidProducerIdMapping):
        end(later, CLIENT_EPOCH_MAX, True, CLIENT_VERSION_2)


# --- Time ---


def test_only_an_open_transaction_times_out() -> None:
    for state in PREDECESSORS:
        late = transaction(state).has_timed_out(NOW_MS + 60_001)
        assert late is (state is State.ONGOING)
    assert not transaction(State.ONGOING).has_timed_out(NOW_MS + 60_000)


def test_an_id_expires_only_without_a_transaction() -> None:
    for state in PREDECESSORS:
        assert transaction(state).has_expired(NOW_MS + 500, 500) is state.is_idle
        assert not transaction(state).has_expired(NOW_MS + 499, 500)
