"""ZooKeeper is restored from an older backup, and nothing is lost (R43)."""

from __future__ import annotations

import pytest
from tests.cluster.restore import live_through


@pytest.mark.parametrize("stops_cleanly", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("moves_away", [False, True], ids=["stayed", "moved"])
def test_r43_after_a_restore_of_zookeeper_the_logs_decide_who_leads(
    moves_away: bool, stops_cleanly: bool
) -> None:
    for seed in range(10):
        story = live_through(seed, moves_away=moves_away, stops_cleanly=stops_cleanly)
        assert all(after > before for before, after in story.epochs), f"seed {seed}: {story}"
        assert len(set(story.producer_ids)) == len(story.producer_ids), f"seed {seed}: {story}"
        assert story.acknowledged_since > 5, f"seed {seed}: {story}"
        assert not story.deleted, f"seed {seed}: {story}"
