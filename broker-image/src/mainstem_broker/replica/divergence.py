"""Where a follower's log and its leader's part, by leader epochs (KIP-101, KIP-279). Pure.

A follower names its log's end and the epoch of its last record. If that epoch ends earlier in the leader's
log, the leader answers with the end, and the follower truncates. It never truncates to its high watermark
instead: it learns the high watermark late, and would drop records that others have acknowledged.
"""

from __future__ import annotations

from typing import NamedTuple

from mainstem_broker.log.leader_epochs import UNDEFINED_EPOCH, EpochCache


class Divergence(NamedTuple):
    """A follower's log does not continue the leader's, where `epoch` ends at `end_offset`."""

    epoch: int
    end_offset: int


def find_divergence(
    leader_epochs: EpochCache, leader_end_offset: int, follower_end_offset: int, follower_epoch: int
) -> Divergence | None:
    """The leader's answer to a follower; None if the follower's log is a part of the leader's.

    Args:
        follower_epoch: the epoch of the follower's last record, or -1 if it has none.
    """
    if follower_epoch == UNDEFINED_EPOCH:
        return None
    epoch, end_offset = leader_epochs.end_offset_for(follower_epoch, leader_end_offset)
    if epoch < follower_epoch or end_offset < follower_end_offset:
        return Divergence(epoch, end_offset)
    return None


def truncation_offset(
    diverging: Divergence, follower_epochs: EpochCache, follower_end_offset: int, high_watermark: int
) -> int:
    """The offset at which the follower cuts its log.

    The leader named an epoch that is not above the follower's. If the follower has that epoch, both logs
    agree up to the lower of its two ends. If not, they agree at most up to the end of the follower's next
    lower epoch, and the next fetch compares again. Without any epoch, only the high watermark is certain.
    """
    if diverging.epoch == UNDEFINED_EPOCH:
        return high_watermark
    epoch, end_offset = follower_epochs.end_offset_for(diverging.epoch, follower_end_offset)
    if epoch == diverging.epoch:
        return min(end_offset, diverging.end_offset)
    return end_offset if end_offset >= 0 else diverging.end_offset
