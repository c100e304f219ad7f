"""Trees of ZooKeeper that were restored from an older backup (R43)."""

from __future__ import annotations

import pytest

from mainstem_broker.cluster.restores import is_behind, may_be_restored
from mainstem_broker.log.checkpoints import TreePosition

KNOWN = TreePosition(1, 50)


@pytest.mark.parametrize(
    ("tree", "known", "behind", "restored"),
    [
        (TreePosition(1, 50), KNOWN, False, False),
        (TreePosition(1, 90), KNOWN, False, False),
        (TreePosition(1, 49), KNOWN, True, True),
        (TreePosition(0, 90), KNOWN, True, True),  # a second time, from a backup before the first one
        (TreePosition(2, 20), KNOWN, False, True),  # another broker has noticed
        (TreePosition(0, 90), None, False, True),
    ],
)
def test_r43_a_tree_is_older_if_it_is_behind_what_was_read_before(
    tree: TreePosition, known: TreePosition | None, behind: bool, restored: bool
) -> None:
    assert is_behind(tree, known) is behind
    assert may_be_restored(tree, known) is restored
