"""`mainstem group` and `mainstem consume --group` against running brokers (R14, R15, R36)."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from select import select
from typing import Any

import pytest
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.command_line import (
    MAINSTEM,
    completions,
    environment,
    mainstem_fails_here,
    mainstem_here,
    mainstem_json_here,
)
from tests.support.group_members import Member
from tests.support.topics import TopicFactory, unique_name
from tests.support.waiting import PATIENCE_SECONDS, wait_until

PARTITIONS = 2
PER_PARTITION = 10


@pytest.fixture
def topic(group_topic: TopicFactory, group_stack: SharedCluster) -> str:
    """A topic of 2 partitions with 10 records each."""
    topic = group_topic(PARTITIONS)
    for partition in range(PARTITIONS):
        lines = b"".join(b"%d\n" % number for number in range(PER_PARTITION))
        mainstem_here("produce", topic, "--partition", partition, cluster=group_stack, stdin=lines)
    return topic


@pytest.fixture
def member(group_stack: SharedCluster, group: str, topic: str) -> Iterator[Member]:
    """A member that has read everything."""
    with Member("confluent", group_stack.bootstrap_servers, group, topic, instance_id="one") as running:
        wait_until(lambda: len(running.records) >= PARTITIONS * PER_PARTITION, "the member reads")
        yield running


def describe(cluster: ReachableCluster, group: str) -> Any:
    return mainstem_json_here("group", "describe", group, cluster=cluster)


def committed(cluster: ReachableCluster, group: str) -> list[int | None]:
    return [row["committed"] for row in describe(cluster, group)["partitions"]]


def reset(cluster: ReachableCluster, group: str, *how: str | Path) -> list[int]:
    """The offsets that the command says it has set."""
    rows = mainstem_json_here("group", "reset-offsets", group, *how, "--execute", cluster=cluster)
    return [row["after"] for row in rows]


def test_a_running_group_is_shown_and_let_be(
    group_stack: SharedCluster, group: str, topic: str, member: Member
) -> None:
    listed = {row["group"]: row for row in mainstem_json_here("group", "list", cluster=group_stack)}
    assert (listed[group]["state"], listed[group]["type"], listed[group]["members"]) == (
        "stable",
        "classic",
        1,
    )
    reported = describe(group_stack, group)
    assert (reported["state"], reported["assignor"]) == ("stable", "range")
    assert reported["coordinator"]["address"] == group_stack.brokers[reported["coordinator"]["broker"]]
    (one,) = reported["members"]
    assert (one["member"], one["instance_id"], one["host"]) == ("one", "one", "127.0.0.1")
    assert one["partitions"] == {topic: [0, 1]}
    assert [row["member"] for row in reported["partitions"]] == ["one", "one"]
    shown = mainstem_here("group", "describe", group, cluster=group_stack).stdout.decode()
    assert f"{topic}:0,1" in shown

    sentence = f"Group {group} has 1 member (one at 127.0.0.1): stop it, then try again."
    how = ("--topic", topic, "--to", "earliest")
    assert mainstem_fails_here(
        "group", "reset-offsets", group, *how, "--execute", cluster=group_stack
    ).startswith(sentence)
    dry = mainstem_here("group", "reset-offsets", group, *how, cluster=group_stack)
    assert f"this is refused while there are members. {sentence}" in dry.stderr.decode()
    assert mainstem_fails_here("group", "delete", group, "--yes", cluster=group_stack).startswith(sentence)
    wait_until(lambda: committed(group_stack, group) == [10, 10], "it has committed")
    kept = mainstem_here(
        "group", "delete", group, "--topic", topic, "--yes", cluster=group_stack, exit_code=1
    )
    assert b"members of the group read this topic" in kept.stderr


def test_a_group_at_rest_is_reset_in_every_way(
    group_stack: SharedCluster, group: str, topic: str, tmp_path: Path
) -> None:
    every = ("--topic", topic)
    for how, offsets in (
        (("--to", "earliest"), [0, 0]),  # a group that nobody has seen yet
        (("--to", "latest"), [10, 10]),
        (("--to", "4"), [4, 4]),
        (("--shift-by", "3"), [7, 7]),
        (("--shift-by", "-100"), [0, 0]),
        (("--to", "-2"), [8, 8]),
        (("--to", "2020-01-01T00:00:00Z"), [0, 0]),
        (("--to", "1d"), [0, 0]),
        (("--to", "1ms"), [10, 10]),
    ):
        assert reset(group_stack, group, *every, *how) == offsets, how
        assert committed(group_stack, group) == offsets, how
    assert reset(group_stack, group, "--topic", f"{topic}:1", "--to", "5") == [5]
    assert committed(group_stack, group) == [10, 5]

    dry = mainstem_here("group", "reset-offsets", group, *every, "--to", "earliest", cluster=group_stack)
    assert b"Nothing was changed: add --execute" in dry.stderr
    assert committed(group_stack, group) == [10, 5]

    exported = tmp_path / "offsets.csv"
    arguments = ("group", "reset-offsets", group, "--all-topics", "--to", "current", "--export")
    exported.write_bytes(mainstem_here(*arguments, cluster=group_stack).stdout)
    assert exported.read_text() == f"{topic},0,10\n{topic},1,5\n"
    other = f"{group}-copy"
    assert reset(group_stack, other, "--from-file", exported) == [10, 5]
    assert committed(group_stack, other) == [10, 5]
    mainstem_here("group", "delete", group, other, "--yes", cluster=group_stack)


def test_a_group_and_offsets_of_it_are_deleted(group_stack: SharedCluster, group: str, topic: str) -> None:
    reset(group_stack, group, "--topic", topic, "--to", "latest")
    deleted = mainstem_json_here(
        "group", "delete", group, "--topic", f"{topic}:0", "--yes", cluster=group_stack
    )
    assert deleted == {"deleted": [{"group": group, "topic": topic, "partition": 0}]}
    assert [row["partition"] for row in describe(group_stack, group)["partitions"]] == [1]
    requested = mainstem_fails_here("group", "delete", group, cluster=group_stack, exit_code=2)
    assert "needs --yes without a terminal" in requested
    assert mainstem_json_here("group", "delete", group, "--yes", cluster=group_stack) == {"deleted": [group]}
    gone = mainstem_fails_here("group", "describe", group, cluster=group_stack, exit_code=2)
    assert gone.startswith(f"There is no group {group}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "earliest"], "Choose the offsets: either --topic TOPIC (may be repeated) or --all-topics."),
        (["--all-topics"], "Name the target, in one way: --to WHERE, --shift-by N or --from-file FILE."),
        (["--all-topics", "--to", "1", "--shift-by", "1"], "Name the target, in one way"),
        (["--all-topics", "--to", "1"], "There is no group"),
        (["--topic", "TOPIC", "--to", "soon"], "--to does not understand 'soon'"),
        (["--topic", "TOPIC:2", "--to", "1"], "has partitions 0 to 1, not 2."),
        (["--topic", "TOPIC:x", "--to", "1"], "some of its partitions as clicks:0,3"),
        (["--topic", "no-such-topic", "--to", "1"], "There is no topic no-such-topic"),
        (["--topic", "TOPIC", "--shift-by", "1"], "Nothing is committed for partition 0"),
        (["--from-file", "/no/such/file"], "/no/such/file cannot be read: No such file or directory."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_reset_that_is_impossible_is_refused(
    arguments: list[str], message: str, group_stack: SharedCluster, group: str, topic: str
) -> None:
    given = [argument.replace("TOPIC", topic) for argument in arguments]
    assert message in mainstem_fails_here(
        "group", "reset-offsets", group, *given, cluster=group_stack, exit_code=2
    )


def test_a_reader_in_a_group_goes_on_where_the_last_one_stopped(
    group_stack: SharedCluster, group: str, topic: str
) -> None:
    def read(*how: str | int) -> list[tuple[str, str]]:
        ended = mainstem_here(
            "consume", topic, "--group", group, "--with", "partition", *how, cluster=group_stack
        )
        rows = [line.split("\t") for line in ended.stdout.decode().splitlines()]
        return [(partition, value) for partition, value in rows]

    first = read("-n", 7)
    rest = read("--until-end")
    assert len(first) == 7
    everything = [(str(part), str(number)) for part in range(PARTITIONS) for number in range(PER_PARTITION)]
    assert sorted(first + rest) == sorted(everything)
    assert committed(group_stack, group) == [10, 10]
    assert read("--until-end") == []
    assert describe(group_stack, group)["state"] == "empty", "it has left"


def test_a_reader_that_sigterm_ends_before_the_end_says_so_by_its_exit_code(
    group_stack: SharedCluster, group: str, topic: str
) -> None:
    """Its output is not complete: 143, as a shell expects. It has left the group."""
    produced = "".join(f"{number} {'x' * 1000}\n" for number in range(2_000))
    mainstem_here("produce", topic, cluster=group_stack, stdin=produced.encode())
    arguments = ["consume", topic, "--group", group, "--from", "beginning", "--until-end"]
    with subprocess.Popen(
        [*MAINSTEM, *arguments], stdout=subprocess.PIPE, env=environment(group_stack)
    ) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()  # it stands still when the pipe is full
        reader.send_signal(signal.SIGTERM)
        reader.stdout.read()
        assert reader.wait(PATIENCE_SECONDS) == 143
    assert describe(group_stack, group)["state"] == "empty"


def test_a_reader_that_begins_at_the_end_sees_only_what_comes(
    group_stack: SharedCluster, group: str, topic: str
) -> None:
    arguments = ["consume", topic, "--group", group, "--from", "end", "--follow", "-o", "json"]
    with subprocess.Popen(
        [*MAINSTEM, *arguments], stdout=subprocess.PIPE, env=environment(group_stack)
    ) as reader:
        assert reader.stdout is not None
        wait_until(
            lambda: (
                group in {row["group"] for row in mainstem_json_here("group", "list", cluster=group_stack)}
                and describe(group_stack, group)["state"] == "stable"
            ),
            "it has joined",
        )
        (one,) = describe(group_stack, group)["members"]
        assert one["partitions"] == {topic: [0, 1]}
        # Where the ends are it asks after it has joined: what comes before that answer is not seen.
        for number in range(20):
            mainstem_here("produce", topic, cluster=group_stack, stdin=b"new %d\n" % number)
            if select([reader.stdout], [], [], 2.0)[0]:
                break
        seen = json.loads(reader.stdout.readline())
        reader.send_signal(signal.SIGTERM)
        assert reader.wait(PATIENCE_SECONDS) == 0
    assert seen["value"].startswith("new ")
    assert describe(group_stack, group)["state"] == "empty", "it leaves the group before it ends"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", "0"], "--partition and --group exclude each other"),
        (["--from", "10m"], "mainstem group reset-offsets readers --topic"),
    ],
    ids=" ".join,
)
def test_options_that_the_group_decides_are_refused(
    arguments: list[str], message: str, group_stack: SharedCluster, topic: str
) -> None:
    sentence = mainstem_fails_here(
        "consume", topic, "--group", "readers", *arguments, cluster=group_stack, exit_code=2
    )
    assert message in sentence


def test_ctrl_c_ends_a_reader_which_commits_what_was_shown(
    group_stack: SharedCluster, group: str, topic: str
) -> None:
    ours, theirs = pty.openpty()
    reader = subprocess.Popen(
        [*MAINSTEM, "consume", topic, "--group", group],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(group_stack),
    )
    os.close(theirs)
    shown = b""
    while shown.count(b"\n") < PARTITIONS * PER_PARTITION:
        shown += os.read(ours, 65536)
    reader.send_signal(signal.SIGINT)
    assert reader.wait(PATIENCE_SECONDS) == 0
    os.close(ours)
    assert committed(group_stack, group) == [10, 10]


def test_names_of_groups_are_completed_from_the_cluster(group_stack: SharedCluster, topic: str) -> None:
    prefix = unique_name("completed")
    names = [f"{prefix}-one", f"{prefix}-two"]
    for name in names:
        reset(group_stack, name, "--topic", topic, "--to", "earliest")
    assert completions(f"mainstem group describe {prefix}-", group_stack) == names
    mainstem_here("group", "delete", *names, "--yes", cluster=group_stack)
