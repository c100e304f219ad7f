"""Which instance leads, and what each learns of it (R31)."""

from __future__ import annotations

from mainstem_registry.client_security import Brokers
from mainstem_registry.election import Election, choose_leader


def test_a_leader_remains_the_leader() -> None:
    members = {"a": {"url": "http://a", "leads": False}, "b": {"url": "http://b", "leads": True}}
    assert choose_leader(members) == {"a": "http://b", "b": "http://b"}
    assert choose_leader({"a": members["a"]}) == {"a": "http://a"}


def test_of_instances_with_one_url_one_leads() -> None:
    """The others would take the leader's URL for their own, and write beside it (R31)."""
    members = {"a": {"url": "http://x"}, "b": {"url": "http://x"}, "c": {"url": "http://c"}}
    assert choose_leader(members) == {"a": "http://x", "b": "", "c": "http://x"}


async def test_an_instance_with_the_leaders_url_does_not_lead_and_is_not_ready() -> None:
    election = Election(Brokers("127.0.0.1:1"), "_schemas", "group", "http://x", 1000)
    for learned, leads in (("http://x", True), ("", False)):
        election._learn(learned)
        assert election.is_leader is leads
    assert election.leader_url is None  # which /readyz reports
