"""Moves within the limit of a BrokerCluster, case by case (R25).

Any history of them is in `test_limited_moves_at_rest.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.operator.played_cluster import CLICKS, VIEWS, played
from tests.unit.operator.snapshots import cluster

from mainstem_operator.api.fields import Object
from mainstem_operator.brokers.topic_state import MoveState, TopicPartition
from mainstem_operator.cluster.throttles.plan import ALL_BROKERS, RECEIVERS, SENDERS, Changes, items_of
from mainstem_operator.kubernetes.client import Refused


def test_without_a_limit_moves_begin_and_nobody_is_asked_for_throttles() -> None:
    brokers, operator = played(None)
    operator.look({CLICKS: (1, 2)})
    assert brokers.under_way.keys() == {CLICKS}
    assert (brokers.writes, brokers.questions) == (1, 0)
    operator.look()
    assert (brokers.writes, brokers.questions) == (1, 0)


async def test_without_a_limit_nobody_waits_for_another_look(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers, operator = played(None)
    spec = cluster(rolling={"moveBytesPerSecond": 5000})

    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def moves() -> dict[TopicPartition, MoveState]:
        is_asked.set()
        await may_answer.wait()
        return dict(brokers.under_way)

    monkeypatch.setattr(brokers, "moves", moves)
    limited = asyncio.create_task(operator.moves.carry_out(spec, {VIEWS: (0, 3)}))
    await is_asked.wait()
    await operator.moves.carry_out(cluster(), {CLICKS: (1, 2)})
    assert brokers.under_way.keys() == {CLICKS}
    may_answer.set()
    await limited


def test_looks_at_the_cluster_and_at_its_topics_wait_for_each_other() -> None:
    brokers, operator = played(5000)
    spec = cluster(rolling={"moveBytesPerSecond": 5000})
    both = [{CLICKS: (1, 2)}, {}, {VIEWS: (0, 3)}, {}]

    operator.moves.is_noted = True  # so that none of them thinks that there is nothing to do

    async def together() -> None:
        await asyncio.gather(*(operator.moves.carry_out(spec, targets) for targets in both))

    asyncio.run(together())

    assert brokers.is_limited(CLICKS)
    assert brokers.is_limited(VIEWS)
    brokers.end(CLICKS)
    brokers.end(VIEWS)
    operator.look()
    assert brokers.settings == {ALL_BROKERS: {}, "clicks": {}, "views": {}}


def test_a_move_that_is_refused_leaves_no_throttle() -> None:
    brokers, operator = played(5000)
    brokers.refused = {CLICKS}
    assert operator.look({CLICKS: (1, 2), VIEWS: (1, 2)}) == {CLICKS: "It may not."}
    operator.look()
    assert brokers.is_limited(VIEWS)
    assert brokers.settings["clicks"] == {}
    brokers.refused.add(VIEWS)
    brokers.end(VIEWS)
    operator.look({VIEWS: (3, 0)})
    operator.look()
    assert brokers.settings == {ALL_BROKERS: {}, "clicks": {}, "views": {}}
    assert not operator.moves.is_noted


def test_a_move_whose_limit_is_not_taken_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers, operator = played(5000)

    async def full(*_: object, **__: object) -> Object:
        raise Refused(403, "exceeded quota")

    monkeypatch.setattr(brokers, "apply", full)  # as in a namespace that takes no more objects
    assert operator.look({CLICKS: (1, 2)}) == {CLICKS: "Its move can't be limited: exceeded quota"}
    assert brokers.under_way == {}


def test_what_another_tool_changes_while_it_is_noted_is_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the change lies a write to Kubernetes, which may take long."""
    brokers, operator = played(5000)
    brokers.settings["clicks"] = {SENDERS: "9:9"}
    apply = brokers.apply

    async def slowly(*args: Any, **kwargs: Any) -> Object:
        if not brokers.config_map:
            brokers.settings["clicks"] = {SENDERS: "8:8", RECEIVERS: "8:8"}
        return await apply(*args, **kwargs)

    monkeypatch.setattr(brokers, "apply", slowly)
    operator.look({CLICKS: (1, 2)})
    monkeypatch.undo()
    assert brokers.is_limited(CLICKS)
    assert items_of(brokers.settings["clicks"][SENDERS]) == {"8:8", "0:0", "0:1"}
    brokers.end(CLICKS)
    operator.look()
    assert brokers.settings["clicks"] == {SENDERS: "8:8", RECEIVERS: "8:8"}


def test_a_move_whose_throttles_are_not_shown_does_not_begin() -> None:
    brokers, operator = played(5000)
    brokers.lag = 100
    reason = "Its move can't be limited: Brokers do not show its throttles yet."
    assert operator.look({CLICKS: (1, 2)}) == {CLICKS: reason}
    assert brokers.under_way == {}
    brokers.catch_up()
    brokers.lag = 0
    operator.look()
    assert brokers.settings == {ALL_BROKERS: {}, "clicks": {}, "views": {}}


def test_who_may_not_act_any_more_changes_nothing() -> None:
    brokers, operator = played(5000)
    brokers.is_leader = False
    assert CLICKS in operator.look({CLICKS: (1, 2)})
    assert brokers.writes == 0


def test_a_note_that_another_has_changed_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers, operator = played(5000)
    operator.look({CLICKS: (1, 2)})
    brokers.end(CLICKS)
    put = brokers.put_throttles

    async def late(changes: Changes) -> dict[str, str]:
        assert brokers.config_map is not None
        metadata = {**brokers.config_map["metadata"], "resourceVersion": "99"}
        brokers.config_map = {**brokers.config_map, "metadata": metadata}
        return await put(changes)

    monkeypatch.setattr(brokers, "put_throttles", late)
    operator.look()
    monkeypatch.undo()
    assert operator.moves.is_noted
    operator.look()
    assert brokers.config_map is None
    assert brokers.settings == {ALL_BROKERS: {}, "clicks": {}, "views": {}}


def test_a_move_by_hand_is_not_limited() -> None:
    brokers, operator = played(5000)
    brokers.begin(VIEWS, (2, 3))
    operator.look({CLICKS: (1, 2)})
    assert brokers.is_limited(CLICKS)
    assert brokers.settings["views"] == {}


@pytest.mark.parametrize(
    "note",
    [
        "[what?",
        '{"clicks": {"leader.replication.throttled.replicas": ["0:1", "0:*"]}}',
        '{"clicks": {"leader.replication.throttled.replicas": ["0"]}}',
        '{"clicks": {"leader.replication.throttled.replicas": ["1_0:1"]}}',
    ],
)
def test_a_note_that_makes_no_sense_is_not_heeded(note: str) -> None:
    brokers, operator = played(5000)
    brokers.settings["clicks"] = {SENDERS: "0:1"}
    brokers.config_map = {
        "metadata": {
            "uid": "u-7",
            "resourceVersion": "1",
            "ownerReferences": [{"kind": "BrokerCluster", "name": "events"}],
        },
        "data": {"throttles.json": note},
    }
    operator.look()
    assert brokers.settings["clicks"] == {SENDERS: "0:1"}
    assert brokers.config_map is None


def test_a_note_that_was_left_behind_is_taken_over() -> None:
    """As after `kubectl delete --cascade=orphan`, while the brokers go on with the throttles."""
    brokers, operator = played(5000)
    operator.look({CLICKS: (1, 2)})
    assert brokers.config_map is not None
    owners = brokers.config_map["metadata"]["ownerReferences"]
    orphan = {**brokers.config_map, "metadata": {**brokers.config_map["metadata"], "ownerReferences": []}}
    brokers.config_map = orphan
    operator.start()
    operator.look()
    assert brokers.config_map["metadata"]["ownerReferences"] == owners
    brokers.end(CLICKS)
    operator.look()
    assert brokers.config_map is None


def test_a_note_that_a_cluster_of_another_name_has_left_behind_is_not_taken_over() -> None:
    """A cluster `a` with a record of its own would change what brokers of another one limit (R25)."""
    brokers, operator = played(5000)
    operator.look({CLICKS: (1, 2)})
    assert brokers.config_map is not None
    metadata = brokers.config_map["metadata"]
    labels = {**metadata["labels"], "mainstem.dev/cluster": "others"}
    theirs = {**brokers.config_map, "metadata": {**metadata, "labels": labels, "ownerReferences": []}}
    brokers.config_map = theirs
    operator.start()
    refused = operator.look({VIEWS: (1, 2)})
    assert "The ConfigMap events-throttles belongs to others" in refused[VIEWS]
    assert brokers.config_map == theirs


def test_a_config_map_of_somebody_else_is_left_alone_and_reported() -> None:
    brokers, operator = played(5000)
    theirs = {"metadata": {"uid": "u-8", "resourceVersion": "1"}, "data": {"a": "b"}}
    brokers.config_map = theirs
    refused = operator.look({CLICKS: (1, 2)})
    assert "can't be limited: The ConfigMap events-throttles belongs to others" in refused[CLICKS]
    operator.look()
    assert brokers.config_map == theirs
    assert brokers.under_way == {}
