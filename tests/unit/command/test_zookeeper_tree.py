"""Paths as people type them, and what changed between two readings of a tree."""

from __future__ import annotations

import pytest

from mainstem.errors import BadInput
from mainstem.zookeeper_tree import Node, Stat, changes, node_path


def node(path: str, created: int, modified: int | None = None) -> Node:
    stat = Stat(created, modified or created, 0, 0, 0, 0, 0, 0, 0, 0, created)
    return Node(path, b"", stat)


def described(before: list[Node], after: list[Node]) -> list[str]:
    result = changes({one.path: one for one in before}, {one.path: one for one in after})
    return [f"{change.kind} {change.node.path}" for change in result]


def test_nodes_come_change_and_go() -> None:
    before = [node("/a", 1), node("/b", 2), node("/c", 3)]
    after = [node("/a", 1), node("/b", 2, 7), node("/d", 8)]
    assert described(before, after) == ["changed /b", "deleted /c", "created /d"]


def test_a_node_made_anew_in_between_went_and_came() -> None:
    assert described([node("/a", 1)], [node("/a", 2)]) == ["deleted /a", "created /a"]


def test_an_unchanged_node_is_not_reported() -> None:
    assert described([node("/a", 1, 5)], [node("/a", 1, 5)]) == []


@pytest.mark.parametrize(
    ("typed", "path"),
    [("", "/"), ("/", "/"), ("brokers/ids", "/brokers/ids"), ("/brokers/ids/", "/brokers/ids")],
)
def test_slashes_at_the_ends_are_optional(typed: str, path: str) -> None:
    assert node_path(typed) == path


@pytest.mark.parametrize("typed", ["/a//b", "a/../b", "."])
def test_what_can_be_no_path_is_refused(typed: str) -> None:
    with pytest.raises(BadInput, match="is no path of ZooKeeper"):
        node_path(typed)
