"""What `mainstem zk watch` makes of Ctrl-C, whenever it comes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from mainstem.cli.output import Output
from mainstem.cli.zk import follow
from mainstem.zookeeper_tree import Node, ZooKeeperTree, ZooKeeperUnreachable


class InterruptedTree:
    """At the second reading Ctrl-C comes, and is taken for a broken connection, as kazoo does."""

    def __init__(self) -> None:
        self.readings = 0

    def reading(self, _path: str, _recursive: bool, on_change: Callable[[Any], None]) -> dict[str, Node]:
        self.readings += 1
        on_change(None)
        if self.readings == 2:
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException as error:
                raise ZooKeeperUnreachable("The connection broke.") from error
        return {}


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_the_midst_of_a_question_ends_it_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    tree = InterruptedTree()
    follow(Output(), cast(ZooKeeperTree, tree), "/brokers", recursive=False)
    assert tree.readings == 2
    assert "connection" not in capsys.readouterr().err
