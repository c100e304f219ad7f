"""Whether ZooKeeper's tree was restored from an older backup (R43). Pure.

Each broker writes down beside its logs how far it has read the tree (`TreePosition`): a tree that is behind
that is an older one. What it says of replicas, leaders and in-sync sets may be out of date, and each broker
that starts for the first time since the restore goes by that.
"""

from __future__ import annotations

from mainstem_broker.log.checkpoints import TreePosition


def is_behind(tree: TreePosition, known: TreePosition | None) -> bool:
    """Whether the tree is older than one that this broker has read before."""
    return known is not None and tree < known


def may_be_restored(tree: TreePosition, known: TreePosition | None) -> bool:
    """Whether the tree may be older than this broker's logs.

    That is so if it is behind, if a restore was noticed by another broker since, and also if this broker has
    written down no position, as after an upgrade from a version that did not.
    """
    return known is None or is_behind(tree, known) or known.restores < tree.restores
