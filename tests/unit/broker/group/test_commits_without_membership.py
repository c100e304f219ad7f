"""Which commits need a member: generation and member id are read together, as `validateOffsetCommit` of Kafka
does (R15)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.group.local_coordinator import LocalCoordinator, loaded

from mainstem_broker.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    ProtocolError,
    UnknownMemberId,
)
from mainstem_broker.group.messages import Commit


def refusal(local: LocalCoordinator, commit: Commit) -> type[ProtocolError] | None:
    """The error that the commit gets, if any."""
    try:
        local.coordinator.check_commit("g", commit)
    except ProtocolError as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    ("member_id", "instance_id"), [("", None), ("ghost", None), ("", "i"), ("ghost", "i")]
)
async def test_without_members_a_commit_of_no_generation_counts_whoever_it_names(
    tmp_path: Path, member_id: str, instance_id: str | None
) -> None:
    """A simple consumer may send any member id: with generation -1 it is not read."""
    async with loaded(tmp_path) as local:
        commit = Commit(member_id, instance_id, -1, 8)
        assert refusal(local, commit) is None, "the group is new"
        await local.commit("g", 5)
        assert refusal(local, commit) is None, "the group has offsets only"
        assert refusal(local, Commit(member_id, instance_id, 0, 8)) is not None


async def test_a_generation_needs_a_group_that_has_it(tmp_path: Path) -> None:
    async with loaded(tmp_path) as local:
        assert refusal(local, Commit("", None, 0, 8)) is IllegalGeneration
        assert refusal(local, Commit("ghost", None, 3, 8)) is IllegalGeneration


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize("version", [0, 2, 8, 9, 10])
async def test_clients_that_know_it_hear_that_there_is_no_such_group(
    tmp_path: Path, version: int, is_transactional: bool
) -> None:
    """KIP-848; as `OffsetMetadataManager.validateOffsetCommit` of Kafka 4.4. TxnOffsetCommit has it from
    version 6 on."""
    async with loaded(tmp_path) as local:
        commit = Commit("ghost", None, 3, version, is_transactional)
        is_known = version >= 9 and not is_transactional
        assert refusal(local, commit) is (GroupIdNotFound if is_known else IllegalGeneration)
        assert "g" not in [group.group_id for group in local.coordinator.groups()]


async def test_beside_members_a_commit_has_to_be_one_of_theirs(tmp_path: Path) -> None:
    async with loaded(tmp_path) as local:
        member = await local.member("g", instance_id="i")
        current = member.generation
        for member_id, instance_id, generation, expected in (
            (member.member_id, None, current, None),
            (member.member_id, "i", current, None),
            (member.member_id, None, -1, IllegalGeneration),
            (member.member_id, None, current + 1, IllegalGeneration),
            ("", None, -1, UnknownMemberId),
            ("ghost", None, -1, UnknownMemberId),
            ("ghost", None, current, UnknownMemberId),
            ("ghost", "i", current, FencedInstanceId),
            ("ghost", "i", -1, FencedInstanceId),
            (member.member_id, "other", current, UnknownMemberId),
        ):
            case = Commit(member_id, instance_id, generation, 8)
            assert refusal(local, case) is expected, case
