"""`mainstem cluster reassign`: whose limits on moves it removes, and how it reports refused moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Final

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigResource
from typer.testing import CliRunner, Result

from mainstem.cli import cluster_reassign
from mainstem.cli.main import app
from mainstem.errors import ClusterRefused
from mainstem.kafka.client import Broker, Cluster, Description, Partition, Topic
from mainstem.kafka.move_requests import Move
from mainstem.kafka.reassignment_plan import Replicas, TopicPartition

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
BROKERS: Final = ("1", "2")


def move_of(topic: str) -> dict[TopicPartition, Move]:
    """Partition 0 of the topic moves from broker 1 to 2."""
    return {(topic, 0): Move(topic, 0, (1, 2), (2,), (1,))}


class Administration:
    """An administration client of a cluster that has these settings, by the name of a topic or broker."""

    def __init__(self, settings: Mapping[str, Mapping[str, str]]) -> None:
        self.settings = {name: dict(values) for name, values in settings.items()}

    def describe_configs(self, resources: Iterable[ConfigResource], **_: object) -> dict[Any, Future[Any]]:
        return {
            resource: _answered(
                {
                    name: SimpleNamespace(value=value)
                    for name, value in self.settings.get(resource.name, {}).items()
                }
            )
            for resource in resources
        }

    def incremental_alter_configs(
        self, resources: Iterable[ConfigResource], **_: object
    ) -> dict[Any, Future[Any]]:
        answers = {}
        for resource in resources:
            values = self.settings.setdefault(resource.name, {})
            for entry in resource.incremental_configs:
                values.pop(entry.name, None)
                if entry.incremental_operation == AlterConfigOpType.SET:
                    values[entry.name] = entry.value
            answers[resource] = _answered(None)
        return answers

    @property
    def limited(self) -> set[str]:
        """The topics and brokers that have limits."""
        return {name for name, values in self.settings.items() if values}


def _answered(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class PlayedCluster:
    """Two brokers and topics `a`, `b` of a partition each, which broker 1 holds.

    `limited` are the topics of which moves are limited. `moves` are answered one after the other, the last
    one again and again. `refused` are the partitions whose moves are neither begun nor cancelled.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        limited: Iterable[str] = (),
        moves: Iterable[dict[TopicPartition, Move]] = ({},),
        refused: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        settings = {name: dict.fromkeys(REPLICAS, "0:1,0:2") for name in limited}
        settings |= {name: dict.fromkeys(RATES, "5") for name in BROKERS} if settings else {}
        self.administration = Administration(settings)
        self.refused = dict(refused or {})
        self._moves = list(moves)
        self._cluster = Cluster("127.0.0.1:1")
        self._cluster.__dict__["admin"] = self.administration
        brokers = [Broker(number, "h", number, None) for number in (1, 2)]
        topics = {name: Topic(name, [Partition(0, 1, [1], [1])]) for name in ("a", "b")}
        monkeypatch.setattr(Cluster, "description", lambda _: Description("c", 1, brokers))
        monkeypatch.setattr(Cluster, "topics", lambda _: topics)
        monkeypatch.setattr(cluster_reassign, "connect", lambda *_: self._cluster)
        monkeypatch.setattr(cluster_reassign, "moves_under_way", lambda _: self._next_moves())
        monkeypatch.setattr(cluster_reassign, "wish_for", self._wish_for)
        monkeypatch.setattr(cluster_reassign, "_FOLLOW_INTERVAL_SECONDS", 0)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["cluster", "reassign", *arguments])

    def _next_moves(self) -> dict[TopicPartition, Move]:
        return self._moves.pop(0) if len(self._moves) > 1 else self._moves[0]

    def _wish_for(
        self, _cluster: Cluster, targets: Mapping[TopicPartition, Replicas | None]
    ) -> dict[TopicPartition, str]:
        return {key: reason for key, reason in self.refused.items() if key in targets}


@pytest.mark.parametrize(
    ("arguments", "limited", "moves", "still_limited"),
    [
        # Its own limits are removed, and those of the brokers with the last topic's.
        (("a", "--follow"), "a", [move_of("a"), {}], ""),
        (("--follow",), "a", [move_of("a"), {}], ""),
        (("a", "--cancel"), "a", [move_of("a")], ""),
        (("--cancel",), "a", [move_of("a")], ""),
        # The moves of b need the limits of the brokers.
        (("a", "--follow"), "ab", [move_of("a") | move_of("b"), move_of("b")], "b12"),
        (("a", "--cancel"), "ab", [move_of("a") | move_of("b")], "b12"),
        # The moves ended before: limits are removed only from topics that the command names.
        (("a", "--follow"), "ab", [{}], "b12"),
        (("a", "--cancel"), "a", [{}], ""),
        (("--follow",), "a", [{}], "a12"),
        (("--cancel",), "a", [{}], "a12"),
        # Another run began moves of the topic meanwhile.
        (("a", "--follow"), "a", [move_of("a"), {}, move_of("a")], "a12"),
    ],
)
def test_limits_that_other_moves_need_or_others_have_set_stay(
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    limited: str,
    moves: list[dict[TopicPartition, Move]],
    still_limited: str,
) -> None:
    """R36. As in kafka-reassign-partitions, which removes limits of topics that its plan names."""
    played = PlayedCluster(monkeypatch, limited=limited, moves=moves)
    result = played.run(*arguments)
    assert result.exit_code == 0, result.output
    assert played.administration.limited == set(still_limited)


def test_limits_that_no_move_needs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    result = PlayedCluster(monkeypatch, limited="ab").run("--follow")
    assert "moves are still limited for 2 topics, such as a: name topics" in result.output


TO_BROKER_2: Final = ("--brokers", "2", "--execute", "--throttle", "20M")


@pytest.mark.parametrize(
    ("topics", "refused", "options", "message", "still_limited"),
    [
        ("ab", "a", (), "1 of 2 partitions did not begin to move", "b12"),
        ("ab", "a", ("--follow",), "1 of 2 partitions did not begin to move", ""),
        ("ab", "ab", (), "Nothing is moved", ""),
        ("a", "a", ("--follow",), "Nothing is moved", ""),
    ],
)
def test_refused_moves_are_an_error_and_leave_no_limits(
    monkeypatch: pytest.MonkeyPatch,
    topics: str,
    refused: str,
    options: tuple[str, ...],
    message: str,
    still_limited: str,
) -> None:
    """R36. Moves that began beside them are followed to their end."""
    accepted = set(topics) - set(refused)
    under_way = {key: move for topic in accepted for key, move in move_of(topic).items()}
    moves = [
        {},
        {},
        under_way,
        under_way,
        {},
    ]  # before the request, after it, and as they go on
    played = PlayedCluster(monkeypatch, moves=moves, refused={(topic, 0): "no" for topic in refused})
    result = played.run(*topics, *TO_BROKER_2, *options)
    assert isinstance(result.exception, ClusterRefused), result.output
    assert message in str(result.exception)
    assert played.administration.limited == set(still_limited)


def test_a_limit_holds_for_moves_of_the_topic_that_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """R36. As in kafka-reassign-partitions: the lists of a topic's limited replicas are set anew."""
    topic = Topic("a", [Partition(0, 1, [1], [1]), Partition(1, 1, [1, 2], [1])])
    moving = {("a", 1): Move("a", 1, (1, 2), (2,), (1,))}
    played = PlayedCluster(monkeypatch, moves=[moving])
    monkeypatch.setattr(Cluster, "topics", lambda _: {"a": topic})
    result = played.run("a", *TO_BROKER_2)
    assert result.exit_code == 0, result.output
    assert played.administration.settings == {
        "a": dict(zip(REPLICAS, ("0:1,1:1", "0:2,1:2"), strict=True)),
        "1": dict.fromkeys(RATES, "20000000"),
        "2": dict.fromkeys(RATES, "20000000"),
    }


def test_a_request_that_is_refused_as_a_whole_leaves_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """R36."""

    def refuse(*_: object) -> None:
        raise ClusterRefused("Not authorized.")

    played = PlayedCluster(monkeypatch)
    monkeypatch.setattr(cluster_reassign, "wish_for", refuse)
    assert isinstance(played.run("a", *TO_BROKER_2).exception, ClusterRefused)
    assert played.administration.limited == set()


def test_moves_that_are_not_cancelled_are_an_error_and_keep_their_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R36."""
    played = PlayedCluster(
        monkeypatch, limited="ab", moves=[move_of("a") | move_of("b")], refused={("a", 0): "no"}
    )
    result = played.run("--cancel")
    assert isinstance(result.exception, ClusterRefused), result.output
    assert "1 of 2 moves were not cancelled" in str(result.exception)
    assert played.administration.limited == {"a", "1", "2"}


def test_an_unknown_topic_is_refused_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    result = PlayedCluster(monkeypatch).run("c", "--cancel")
    assert "There is no topic c" in str(result.exception)
