"""Which throttles go with which moves: pairs of just the moves, one rate, nothing that is another's (R25)."""

from __future__ import annotations

from dataclasses import replace

from mainstem_operator.api.topics import topic_of
from mainstem_operator.brokers.topic_state import MoveState, TopicState
from mainstem_operator.cluster.throttles.plan import (
    ALL_BROKERS,
    RATES,
    RECEIVERS,
    SENDERS,
    Change,
    Changes,
    Copies,
    Operation,
    ThrottlePlan,
    copies_of,
    copies_to,
    partitions_in,
    plan_throttles,
)
from mainstem_operator.topics.plan import TopicsSeen, plan_topics

MOVE = {("clicks", 0): Copies(frozenset({1, 3}), frozenset({2}))}
NOTHING: dict[str, dict[str, str]] = {ALL_BROKERS: {}, "clicks": {}}
PUT = {ALL_BROKERS: dict.fromkeys(RATES, "5000"), "clicks": {SENDERS: "0:1,0:3", RECEIVERS: "0:2"}}
NOTED = {
    (where, name): frozenset(text.split(",")) for where, all_ in PUT.items() for name, text in all_.items()
}


def texts(changes: Changes) -> dict[str, dict[str, str | None]]:
    """The values of changes: pairs that are added or taken away, rates that are set, None for what goes."""
    return {where: {name: it.value for name, it in all_.items()} for where, all_ in changes.items()}


def operations(plan: ThrottlePlan) -> set[Operation]:
    return {
        change.operation
        for changes in (plan.puts, plan.takes)
        for settings in changes.values()
        for change in settings.values()
    }


def test_a_move_is_limited_by_one_rate_and_the_pairs_of_just_its_replicas() -> None:
    plan = plan_throttles(5000, MOVE, {}, NOTHING)
    assert texts(plan.puts) == PUT
    assert operations(plan) == {Operation.SET, Operation.APPEND}
    assert plan.before == plan.after == NOTED


def test_what_is_as_it_should_be_is_not_put_again() -> None:
    plan = plan_throttles(5000, MOVE, NOTED, PUT)
    assert plan.puts == plan.takes == {}
    assert plan.before == plan.after == NOTED


def test_a_move_that_has_ended_takes_its_throttles_with_it_and_leaves_those_of_another() -> None:
    copies = {**MOVE, ("clicks", 1): Copies(frozenset({3}), frozenset({0}))}
    both = plan_throttles(5000, copies, {}, NOTHING)
    assert texts(both.puts)["clicks"] == {SENDERS: "0:1,0:3,1:3", RECEIVERS: "0:2,1:0"}
    present = {ALL_BROKERS: PUT[ALL_BROKERS], "clicks": {SENDERS: "0:1,0:3,1:3", RECEIVERS: "0:2,1:0"}}
    plan = plan_throttles(5000, MOVE, both.after, present)
    assert plan.puts == {}
    assert texts(plan.takes) == {"clicks": {SENDERS: "1:3", RECEIVERS: "1:0"}}
    assert operations(plan) == {Operation.SUBTRACT}
    assert plan.before == both.after
    assert plan.after == NOTED


def test_when_nothing_moves_the_rates_go_too_whether_they_were_seen_or_not() -> None:
    gone = {ALL_BROKERS: dict.fromkeys(RATES), "clicks": PUT["clicks"]}
    for present in (PUT, NOTHING):  # as after an end between the note and what was to be put
        plan = plan_throttles(5000, {}, NOTED, present)
        assert texts(plan.takes) == gone
        assert operations(plan) == {Operation.SUBTRACT, Operation.DELETE}
        assert plan.before == NOTED
        assert plan.after == {}


def test_another_limit_is_put_while_moves_run_and_both_rates_are_noted_until_it_is() -> None:
    plan = plan_throttles(9000, MOVE, NOTED, PUT)
    assert texts(plan.puts) == {ALL_BROKERS: dict.fromkeys(RATES, "9000")}
    assert plan.takes == {}
    for name in RATES:
        assert plan.before[ALL_BROKERS, name] == {"5000", "9000"}
        assert plan.after[ALL_BROKERS, name] == {"9000"}


def test_a_limit_that_is_taken_back_frees_moves_that_run() -> None:
    plan = plan_throttles(None, MOVE, NOTED, PUT)
    assert texts(plan.takes) == {ALL_BROKERS: dict.fromkeys(RATES), "clicks": PUT["clicks"]}
    assert plan.puts == {}
    assert plan.after == {}


def test_what_a_person_has_set_stays_beside_ours_and_after_it() -> None:
    theirs = {ALL_BROKERS: {RATES[0]: "7"}, "clicks": {SENDERS: "4:1", RECEIVERS: "*"}}
    plan = plan_throttles(5000, MOVE, {}, theirs)
    assert texts(plan.puts) == {ALL_BROKERS: {RATES[1]: "5000"}, "clicks": {SENDERS: "0:1,0:3"}}
    assert plan.rates_of_others == {RATES[0]: "7"}
    assert plan.after == {
        (ALL_BROKERS, RATES[1]): frozenset({"5000"}),
        ("clicks", SENDERS): frozenset({"0:1", "0:3"}),
    }
    both = {
        ALL_BROKERS: {RATES[0]: "7", RATES[1]: "5000"},
        "clicks": {SENDERS: "4:1,0:1,0:3", RECEIVERS: "*"},
    }
    left = plan_throttles(5000, {}, plan.after, both)
    assert texts(left.takes) == {ALL_BROKERS: {RATES[1]: None}, "clicks": {SENDERS: "0:1,0:3"}}


def test_the_same_rate_set_by_a_person_before_stays_theirs() -> None:
    present = {ALL_BROKERS: {RATES[0]: "5000"}, "clicks": {}}
    plan = plan_throttles(5000, MOVE, {}, present)
    assert (ALL_BROKERS, RATES[0]) not in plan.after
    both = {ALL_BROKERS: dict.fromkeys(RATES, "5000"), "clicks": {}}
    assert texts(plan_throttles(None, {}, plan.after, both).takes)[ALL_BROKERS] == {RATES[1]: None}


def test_a_topic_that_has_gone_is_forgotten() -> None:
    plan = plan_throttles(5000, {}, NOTED, {ALL_BROKERS: {}})
    assert "clicks" not in plan.takes
    assert plan.after == {}


def test_a_change_that_copies_nothing_is_not_limited() -> None:
    plan = plan_throttles(5000, {("clicks", 0): Copies(frozenset({1, 2}), frozenset())}, {}, NOTHING)
    assert (plan.puts, plan.takes, plan.before, plan.after) == ({}, {}, {}, {})


def test_senders_are_who_has_the_data_and_receivers_who_is_to_get_it() -> None:
    move = MoveState((0, 2), frozenset({2, 3}))  # from 0 and 3 to 0 and 2
    assert copies_of(move) == Copies(frozenset({0, 3}), frozenset({2}))
    assert copies_to((0, 2), (0, 3), None) == copies_of(move)
    # Another target, while 2 has begun to fetch: it has not got the data yet.
    assert copies_to((0, 2, 1), (0, 2, 3), move) == Copies(frozenset({0, 3}), frozenset({1, 2}))
    assert copies_to((0, 3), (0, 2, 3), move) == Copies(frozenset({0, 3}), frozenset())


def test_the_note_says_which_partitions_it_is_about() -> None:
    assert partitions_in(NOTED) == {("clicks", 0)}


def test_a_list_that_has_nothing_taken_from_it_yet_is_not_mistaken_for_one_that_has() -> None:
    """Taking from a list that is not set leaves an empty one, which has to go too: it is waited for."""
    taken = Change(Operation.SUBTRACT, "0:1,0:3")
    assert [taken.is_shown_by(text) for text in (None, "0:1", "", "4:1")] == [False, False, True, True]
    added = Change(Operation.APPEND, "0:1,0:3")
    assert [added.is_shown_by(text) for text in (None, "0:1", "4:1,0:3, 0:1")] == [False, False, True]
    assert Change(Operation.DELETE).is_shown_by(None)
    assert not Change(Operation.DELETE).is_shown_by("")


def test_pairs_of_our_moves_are_ours_whoever_put_them_and_a_rate_is_not() -> None:
    """As after the note went with its BrokerCluster, which was made again while the move ran."""
    plan = plan_throttles(9000, MOVE, {}, PUT)
    assert plan.puts == plan.takes == {}
    assert plan.after == {key: pairs for key, pairs in NOTED.items() if key[0] == "clicks"}
    assert plan.rates_of_others == dict.fromkeys(RATES, "5000")


def test_where_nothing_may_be_put_what_has_no_use_is_taken_and_the_rest_stays_noted() -> None:
    both = {**NOTED, ("clicks", SENDERS): frozenset({"0:1", "0:3", "1:3"})}
    present = {ALL_BROKERS: PUT[ALL_BROKERS], "clicks": {SENDERS: "0:1,1:3"}}
    plan = plan_throttles(9000, MOVE, both, present, may_put=False)
    assert plan.puts == {}
    assert texts(plan.takes) == {"clicks": {SENDERS: "1:3"}}
    assert plan.after == NOTED


def test_a_topic_that_names_throttles_itself_has_them_put_when_none_of_ours_stand_there() -> None:
    """They would undo each other at every look."""
    manifest = {
        "metadata": {"name": "clicks", "namespace": "default"},
        "spec": {"clusterRef": {"name": "events"}, "config": {SENDERS: "4:1"}},
    }
    topics = {"clicks": TopicState("clicks", "id", {})}
    seen = TopicsSeen(topics, {"clicks": {SENDERS: "0:1"}}, {}, {}, limited={("clicks", SENDERS)})
    for limited, changes in ((seen, {}), (replace(seen, limited=()), {SENDERS: "4:1"})):
        assert plan_topics([topic_of(manifest)], {}, limited)[0].alter == changes
