"""Stock tools make the users that log in by SCRAM (R36, R38)."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tests.support.clusters import SharedCluster
from tests.support.kafka_tools import run_tool


@pytest.fixture
def user() -> str:
    return f"user-{uuid4()}"


@pytest.fixture
def admin(local_stack: SharedCluster) -> Iterator[AdminClient]:
    yield AdminClient({"bootstrap.servers": local_stack.bootstrap_servers})


def described(admin: AdminClient, user: str) -> list[tuple[str, int]]:
    answer = admin.describe_user_scram_credentials([user])[user].result(timeout=30)
    return [(info.mechanism.name, info.iterations) for info in answer.scram_credential_infos]


def test_confluents_admin_client_creates_describes_and_deletes_users(admin: AdminClient, user: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    upsertion = UserScramCredentialUpsertion(user, info, b"correct horse")
    admin.alter_user_scram_credentials([upsertion])[user].result(timeout=30)
    assert described(admin, user) == [("SCRAM_SHA_256", 8192)]

    everyone = admin.describe_user_scram_credentials().result(timeout=30)
    assert user in everyone

    deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion])[user].result(timeout=30)
    with pytest.raises(KafkaException, match="RESOURCE_NOT_FOUND"):
        described(admin, user)


def test_kafka_configs_creates_describes_and_deletes_users(
    local_stack: SharedCluster, admin: AdminClient, user: str
) -> None:
    def configs(*arguments: str) -> str:
        servers = ("--bootstrap-server", local_stack.bootstrap_servers)
        entity = ("--entity-type", "users", "--entity-name", user)
        return run_tool("ConfigCommand", *servers, *entity, *arguments)

    added = configs("--alter", "--add-config", "SCRAM-SHA-512=[iterations=4096,password=secret]")
    assert "Completed updating" in added, added
    assert described(admin, user) == [("SCRAM_SHA_512", 4096)]
    assert "SCRAM-SHA-512=iterations=4096" in configs("--describe")
    deleted = configs("--alter", "--delete-config", "SCRAM-SHA-512")
    assert "Completed updating" in deleted, deleted
    assert "SCRAM-SHA-512" not in configs("--describe")
