"""Without ZooKeeper leaders go on, and its return elects nobody anew (R41)."""

from __future__ import annotations

import pytest
from tests.cluster.outage import SESSION_S, live_through

LONGEST_WAIT_S_MAX = 1.0
"""Producers here pause for up to 0.2 s and give a request up to a second."""


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
@pytest.mark.parametrize("keeps_sessions", [True, False], ids=["sessions kept", "sessions ended"])
@pytest.mark.parametrize(("sessions", "seeds"), [(2, 20), (20, 5)], ids=["2 sessions", "20 sessions"])
def test_an_outage_of_any_length_interrupts_nobody_and_moves_no_leadership(
    keeps_sessions: bool, sessions: int, seeds: int, hangs: bool
) -> None:
    for seed in range(seeds):
        story = live_through(seed, sessions * SESSION_S, keeps_sessions=keeps_sessions, hangs=hangs)
        assert story.refusing_s == 0, f"seed {seed}: {story}"
        assert story.acknowledged_meanwhile > 5 * sessions, f"seed {seed}: {story}"
        assert story.read_meanwhile > 5 * sessions, f"seed {seed}: {story}"
        assert story.longest_wait_s < LONGEST_WAIT_S_MAX, f"seed {seed}: {story}"
        assert all(before == after for before, after in story.epochs), f"seed {seed}: {story}"
        registrations = {after - before for before, after in story.incarnations}
        assert registrations == {0 if keeps_sessions else 1}, f"seed {seed}: {story}"


def test_a_broker_that_dies_meanwhile_stops_no_other_leader() -> None:
    """Records with acks=all wait, for the in-sync set cannot shrink; reads and acks=1 go on."""
    for seed in range(20):
        story = live_through(seed, 5 * SESSION_S, keeps_sessions=True, killed=3)
        assert story.refusing_s == 0, f"seed {seed}: {story}"
