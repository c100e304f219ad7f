"""`mainstem group describe`: the lag of a group, of which a part may be unknown."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from mainstem.cli import group as group_commands
from mainstem.cli.main import app
from mainstem.kafka.client import Broker
from mainstem.kafka.groups import Group, GroupMember
from mainstem.kafka.reassignment_plan import TopicPartition

ENDS = {("t", 0): 10, ("t", 1): 20, ("t", 2): None}  # the leader of the last one does not answer


@pytest.mark.parametrize(
    ("assigned", "committed", "lag", "without", "text"),
    [
        ([0, 1], {}, None, 2, "unknown"),
        ([], {}, None, 0, "unknown"),
        ([2], {2: 5}, None, 1, "unknown"),
        ([0, 1], {0: 10}, 0, 1, "0, without 1 partition of which it is unknown"),
        ([0, 1, 2], {0: 7, 2: 5}, 3, 2, "3, without 2 partitions of which it is unknown"),
        ([0, 1], {0: 7, 1: 20}, 3, 0, "3"),
    ],
)
def test_a_lag_is_zero_only_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
    assigned: list[int],
    committed: dict[int, int],
    lag: int | None,
    without: int,
    text: str,
) -> None:
    """R14. A group that has committed nothing has read nothing, which an alert must not take for no lag."""
    member = GroupMember("m", None, "m", "h", [("t", number) for number in assigned])
    described = Group("g", "stable", "classic", "", Broker(1, "h", 9092, None), [member])
    offsets: dict[TopicPartition, int] = {("t", number): offset for number, offset in committed.items()}
    monkeypatch.setattr(group_commands, "describe_groups", lambda *_: [described])
    monkeypatch.setattr(group_commands, "committed", lambda *_: offsets)
    monkeypatch.setattr(
        group_commands,
        "log_ends",
        lambda _cluster, partitions, _point: {key: [ENDS[key]] for key in partitions},
    )
    arguments = ["group", "describe", "g", "-b", "127.0.0.1:1"]
    shown = json.loads(CliRunner().invoke(app, [*arguments, "-o", "json"]).stdout)
    assert (shown["lag"], shown["partitions_without_lag"]) == (lag, without)
    line = next(line for line in CliRunner().invoke(app, arguments).stdout.splitlines() if "Lag" in line)
    assert line.removeprefix("Lag").strip().startswith(text)
