"""What is done when ZooKeeper's tree was restored from an older backup (R43). Pure.

Each broker writes down beside its logs how far it has read the tree (`TreePosition`). A tree that is behind
that is an older one. The first broker that finds it so writes this into the tree together with its
registration, and ends all other registrations, which came from the backup or by brokers that did not know
(`registration.py`). Then the controller holds every partition for *doubted*:

- No in-sync set counts. It may lack members that joined since, and name others that left, were moved away
  or have lost their logs. All replicas of the assignment are candidates, and each claims the end of its log.
- The leader epoch rises above all that may have been given since the backup, which logs and clients know
  (KIP-101, KIP-320): they compare epochs, and two leaders of one epoch could not be told apart.

Then the longest log leads, as after unclean stops (`controller.py`): that of the latest epoch in which there
are records, and of these the one that ends last. It has every committed record if one member of the last
in-sync set is a candidate. That one's log ends in no later epoch. Records of earlier epochs are in the log of
the epoch's leader, and so in each log that has a record of this epoch; those of the same epoch were copied
from one leader, in order. If one candidate has no log and no other has records, nobody is elected: the logs
may be elsewhere.
Without a restore no state is doubted, and no rule differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from mainstem_broker.cluster.znodes import Restores
from mainstem_broker.log.checkpoints import TreePosition
from mainstem_broker.replica.lease import NO_INCARNATION
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState

EPOCHS_PER_RESTORE: Final = 1_000_000
"""More than are given before the first restore, or between two of them: an election a second for eleven days.
An int32 has room for two thousand restores."""
IDS_PER_RESTORE: Final = 10**12
"""Likewise of producer ids: a thousand a second for thirty years."""


def is_behind(tree: TreePosition, known: TreePosition | None) -> bool:
    """Whether the tree is older than one that this broker has read before."""
    return known is not None and tree < known


def may_be_restored(tree: TreePosition, known: Iterable[TreePosition | None]) -> bool:
    """Whether the tree may be older than this broker's logs; `known` has a position for each data directory.

    That is so if it is behind, if a restore was noticed by another broker since, and also if this broker has
    written down no position, as after an upgrade from a version that did not. A directory that was out of use
    at the last start has the position of an earlier one, and logs with which that start did nothing.
    """
    return any(
        position is None or is_behind(tree, position) or position.restores < tree.restores
        for position in known
    )


def beyond(last: int, restores: int, per_restore: int) -> int:
    """A number above all that were given, where `last` is the last one that the backup knows of.

    Each restore has a range of its own, whatever backup it goes back to: an earlier one, that went back to a
    later backup or to the same one, has given numbers that this backup does not know of.
    """
    start = restores * per_restore
    return start if last < start else last + per_restore


def is_outdated(state: PartitionState, restores: Restores) -> bool:
    """Whether a state may be from before a restore, so that it has to be doubted.

    All leaders from before it lost their registrations when it was noticed, so a state of that controller
    epoch or an earlier one has none that is valid.
    """
    return state.controller_epoch <= restores.controller_epoch and not is_doubted(state)


def doubted(state: PartitionState, replicas: tuple[int, ...], restores: int) -> PartitionState:
    """The state to write in place of one from a backup; `restores` is how many there were."""
    return replace(
        state,
        leader=NO_LEADER,
        leader_epoch=beyond(state.leader_epoch, restores, EPOCHS_PER_RESTORE),
        isr=replicas,
        elr=(),
        incarnations=dict.fromkeys(replicas, NO_INCARNATION),
        recovering=False,
        partition_epoch=state.partition_epoch + 1,
    )


def is_doubted(state: PartitionState) -> bool:
    """Whether nobody was elected since the state was doubted."""
    return (
        state.leader == NO_LEADER
        and bool(state.isr)
        and all(state.incarnations.get(broker) == NO_INCARNATION for broker in state.isr)
    )
