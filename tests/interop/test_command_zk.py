"""`mainstem zk` against the ZooKeeper of running brokers (R18, R36)."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from tests.support.clusters import SharedCluster
from tests.support.command_line import (
    MAINSTEM,
    completions,
    environment,
    mainstem,
    mainstem_fails,
    mainstem_json,
)
from tests.support.ports import own_ports


@pytest.fixture(autouse=True)
def ours_only(reference: bool) -> None:
    if reference:
        pytest.skip("this Apache Kafka has no ZooKeeper")


@pytest.fixture
def address(local_stack: SharedCluster) -> str:
    return f"127.0.0.1:{local_stack.zookeeper_port}"


@pytest.fixture
def tree(address: str) -> Iterator[Any]:
    client = KazooClient(address)
    client.start(20)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def folder(tree: Any) -> Iterator[str]:
    """A node with children `a`, which is ephemeral, and `b`, which has a child `c`."""
    path = f"/test-{uuid4().hex[:8]}"
    tree.create(path, b'{"b":1,"a":[true]}')
    tree.create(f"{path}/a", b"plain \xff\x1b[31m", ephemeral=True)
    tree.create(f"{path}/b/c", b"7", makepath=True)
    yield path
    tree.delete(path, recursive=True)


def test_nodes_are_listed(local_stack: SharedCluster, folder: str) -> None:
    listed = mainstem_json("zk", "ls", folder, cluster=local_stack)
    assert listed == [
        {"path": f"{folder}/a", "ephemeral": True, "children": 0, "bytes": 12},
        {"path": f"{folder}/b", "ephemeral": False, "children": 1, "bytes": 0},
    ]
    everything = mainstem_json("zk", "ls", "-R", folder, cluster=local_stack)
    assert [row["path"] for row in everything] == [f"{folder}/{name}" for name in ("a", "b", "b/c")]
    shown = mainstem("zk", "ls", cluster=local_stack).stdout.decode()
    assert "/brokers " in shown and "/consumers " in shown
    ended = mainstem("zk", "ls", f"{folder}/a", cluster=local_stack)
    assert (ended.stdout, ended.stderr) == (b"", f"There is nothing below {folder}/a.\n".encode())


def test_what_a_node_holds_is_shown_json_laid_out_and_nothing_steers_the_terminal(
    local_stack: SharedCluster, folder: str
) -> None:
    shown = mainstem("zk", "get", folder, cluster=local_stack).stdout.decode()
    assert shown == '{\n  "b": 1,\n  "a": [\n    true\n  ]\n}\n'
    assert mainstem_json("zk", "get", folder, cluster=local_stack)["data"] == {"b": 1, "a": [True]}
    assert mainstem("zk", "get", f"{folder}/a", cluster=local_stack).stdout == b"plain \\xff\\x1b[31m\n"
    assert mainstem_json("zk", "get", f"{folder}/b/c", cluster=local_stack)["data"] == "7"


def test_counters_of_zookeeper_have_its_names(local_stack: SharedCluster, tree: Any, folder: str) -> None:
    output = mainstem_json("zk", "stat", f"{folder}/a", cluster=local_stack)
    stat = tree.exists(f"{folder}/a")
    assert output == {"path": f"{folder}/a", **stat._asdict()}
    assert output["ephemeralOwner"] == tree.client_id[0]
    shown = mainstem("zk", "stat", f"{folder}/a", cluster=local_stack).stdout.decode()
    assert f"ephemeralOwner  {tree.client_id[0]:#x}" in shown


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/brokers/idz", "There is no node /brokers/idz: did you mean /brokers/ids?"),
        ("/brokers/ids/1/x/y", "There is no node /brokers/ids/1/x/y: below /brokers/ids/1 there is nothing."),
        ("/a//b", "'/a//b' is no path of ZooKeeper: write it as /brokers/ids."),
    ],
)
def test_a_missing_node_is_reported_with_the_existing_ones(
    path: str, sentence: str, local_stack: SharedCluster
) -> None:
    for command in ("ls", "get", "stat"):
        assert mainstem_fails("zk", command, path, cluster=local_stack, exit_code=2) == sentence


def test_zookeeper_is_found_through_a_broker_or_given(
    local_stack: SharedCluster, address: str, folder: str
) -> None:
    nowhere = f"127.0.0.1:{own_ports()}"
    given = mainstem("zk", "get", f"{folder}/b/c", "--zookeeper", address, "-b", nowhere)
    assert given.stdout == b"7\n"
    sentence = mainstem_fails("zk", "ls", "-z", nowhere, cluster=local_stack)
    assert sentence.startswith(f"ZooKeeper does not answer at {nowhere}: see that it runs")
    sentence = mainstem_fails("zk", "ls", "-b", nowhere)
    assert "A broker has to report" in sentence and sentence.endswith("with --zookeeper.")
    sentence = mainstem_fails("zk", "ls", "-z", "here:there", exit_code=2)
    assert sentence == "'here:there' is no address of ZooKeeper: write it as host:port."


def test_changes_are_shown_until_ctrl_c(local_stack: SharedCluster, tree: Any, folder: str) -> None:
    with subprocess.Popen(
        [*MAINSTEM, "zk", "watch", folder, "--recursive", "--output", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(local_stack),
    ) as watching:
        assert watching.stdout is not None and watching.stderr is not None
        assert "where there are 4 nodes now" in watching.stderr.readline()

        def next_change() -> tuple[str, str, object]:
            assert watching.stdout is not None
            line = json.loads(watching.stdout.readline())
            return line["change"], line["path"].removeprefix(folder), line["data"]

        tree.set(f"{folder}/b/c", b'{"x":1}')
        assert next_change() == ("changed", "/b/c", {"x": 1})
        tree.create(f"{folder}/b/c/d", b"new")
        assert next_change() == ("created", "/b/c/d", "new")
        tree.delete(f"{folder}/b/c/d")
        assert next_change() == ("deleted", "/b/c/d", "new")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0
        assert watching.stderr.read() == ""


def test_paths_are_completed(local_stack: SharedCluster, folder: str) -> None:
    assert completions(f"mainstem zk get {folder}/", local_stack) == [f"{folder}/a", f"{folder}/b/"]
