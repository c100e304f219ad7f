"""Any history of moves, limits, ends of the operator and throttles by hand: what is left at rest (R25).

Brokers and Kubernetes are played; either may be the last that an operator writes to before it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from tests.unit.operator.played_cluster import PARTITIONS, PlayedCluster, played

from mainstem_operator.cluster.throttles.plan import ALL_BROKERS, RATES, RECEIVERS, SENDERS

BY_HAND = ("9:9", "*")
"""What a person names here; the operator's moves have no such partition."""


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("look"),
            st.sets(st.sampled_from(PARTITIONS)),
            st.permutations(range(4)),
            st.none() | st.integers(0, 6),
        ),
        st.tuples(st.just("end"), st.sampled_from(PARTITIONS), st.booleans()),
        st.tuples(st.just("begin by hand"), st.sampled_from(PARTITIONS), st.permutations(range(4))),
        st.tuples(
            st.just("throttle by hand"),
            st.sampled_from(["clicks", "views"]),
            st.sampled_from([SENDERS, RECEIVERS]),
            st.sampled_from([*BY_HAND, None]),
        ),
        st.tuples(
            st.just("throttle by hand"),
            st.just(ALL_BROKERS),
            st.sampled_from(RATES),
            st.sampled_from(["7", None]),
        ),
        st.tuples(st.just("lag"), st.integers(0, 2)),
        st.tuples(st.just("refuse"), st.sampled_from([set(), {"clicks"}, {ALL_BROKERS}])),
        st.tuples(st.just("look while paused")),
        st.tuples(st.just("limit"), st.sampled_from([None, 5000, 9000])),
    ),
    max_size=25,
)


@example_settings(max_examples=150)  # each makes event loops
@given(steps=STEPS)
def test_whatever_happens_moves_are_limited_and_at_rest_just_what_others_set_is_left(
    steps: list[Any],
) -> None:
    brokers, operator = played(5000)
    by_hand: dict[tuple[str, str], str] = {}
    for step in steps:
        match step:
            case "look", wished, order, ends_after:
                targets = {key: tuple(order[:2]) for key in wished if key not in brokers.under_way}
                operator.look(targets, ends_after_writes=ends_after)
                if ends_after is None and not brokers.refused_settings:
                    _all_limited(brokers)
            case "end", partition, taken_back:
                if partition in brokers.under_way:
                    brokers.end(partition, taken_back=taken_back)
            case "begin by hand", partition, order:
                if partition not in brokers.under_way:
                    brokers.begin(partition, tuple(order[:2]))
            case "throttle by hand", where, name, value:
                _set(brokers, by_hand, where, name, value)
            case "lag", lag:
                brokers.lag = lag
            case "refuse", wheres:
                brokers.refused_settings = wheres
            case ("look while paused",):
                operator.look(may_put=False)
            case "limit", limit:
                brokers.limit = limit
        _none_touched(brokers, by_hand)
    for partition in list(brokers.under_way):
        brokers.end(partition)
    brokers.refused_settings = set()
    operator.look()
    assert brokers.config_map is None
    left = {(where, name): value for where, all_ in brokers.settings.items() for name, value in all_.items()}
    assert left == by_hand
    assert brokers.not_limited == []
    writes, questions = brokers.writes, brokers.questions
    operator.look()
    assert (brokers.writes, brokers.questions) == (writes, questions)


def _set(
    brokers: PlayedCluster, by_hand: dict[tuple[str, str], str], where: str, name: str, value: str | None
) -> None:
    """As the tools do: the whole value, whatever else was in it."""
    by_hand.pop((where, name), None)
    brokers.settings[where].pop(name, None)
    if value is not None:
        by_hand[where, name] = brokers.settings[where][name] = value


def _none_touched(brokers: PlayedCluster, by_hand: Mapping[tuple[str, str], str]) -> None:
    for (where, name), value in by_hand.items():
        assert value in brokers.settings[where][name].split(",")


def _all_limited(brokers: PlayedCluster) -> None:
    for partition in brokers.begun_by_operator:
        if brokers.limit is not None and brokers.under_way[partition].adding:
            assert brokers.is_limited(partition)
