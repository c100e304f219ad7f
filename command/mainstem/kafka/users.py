"""Users that log in by SCRAM: listing, creating and deleting their credentials (KIP-554).

The client salts and iterates a password before it sends it; the brokers never see it. Users are listed by
`routed_requests.py`: the stock client (confluent-kafka with librdkafka 2.16) ends with a segmentation fault
where that is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from mainstem.errors import BadInput, ClusterRefused
from mainstem.kafka.client import ADMIN_TIMEOUT_SECONDS, Cluster
from mainstem.kafka.raw_request import reason_of
from mainstem.kafka.routed_requests import ask_any

ITERATIONS: Final = 8192
_MECHANISMS: Final = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
MECHANISMS: Final = tuple(_MECHANISMS)
_NAME_OF_NUMBER: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


@dataclass(frozen=True, slots=True)
class Credential:
    """What a user can log in by; the password itself is not known to anybody else."""

    user: str
    mechanism: str
    iterations: int


def list_credentials(cluster: Cluster, user: str | None = None) -> list[Credential]:
    """The credentials of all users, or of one, who may have none.

    Raises:
        ClusterUnreachable, ClusterRefused: the brokers do not answer, or say no.
    """
    from kio.schema.describe_user_scram_credentials.v0.request import (
        DescribeUserScramCredentialsRequest,
        UserName,
    )

    users = None if user is None else (UserName(name=user),)
    answer = ask_any(cluster, DescribeUserScramCredentialsRequest(users=users))
    if answer.error_code.value != 0:
        raise ClusterRefused(f"The users could not be read: {reason_of(answer)}")
    credentials = []
    for described in answer.results:
        if described.error_code.name == "resource_not_found":
            continue
        if described.error_code.value != 0:
            raise ClusterRefused(f"The user {described.user} could not be read: {reason_of(described)}")
        credentials += [
            Credential(described.user, _NAME_OF_NUMBER.get(info.mechanism, "unknown"), info.iterations)
            for info in described.credential_infos
        ]
    return sorted(credentials, key=lambda credential: (credential.user, credential.mechanism))


def set_password(cluster: Cluster, user: str, mechanism: str, password: bytes, iterations: int) -> None:
    """Create the user's credential of this mechanism, or replace it.

    Raises:
        ClusterUnreachable, ClusterRefused: the brokers do not answer, or say no.
    """
    info = ScramCredentialInfo(_MECHANISMS[mechanism], iterations)
    futures = cluster.admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(user, info, password)], request_timeout=ADMIN_TIMEOUT_SECONDS
    )
    cluster.result(futures[user], f"The password of {user} was not set")


def delete_credentials(cluster: Cluster, credentials: list[Credential]) -> None:
    """Delete credentials of one user, all or none.

    Raises:
        BadInput: there are none.
        ClusterUnreachable, ClusterRefused: the brokers do not answer, or say no.
    """
    if not credentials:
        raise BadInput("There are no credentials to delete.")
    user = credentials[0].user
    deletions = [UserScramCredentialDeletion(user, _MECHANISMS[one.mechanism]) for one in credentials]
    futures = cluster.admin.alter_user_scram_credentials(deletions, request_timeout=ADMIN_TIMEOUT_SECONDS)
    cluster.result(futures[user], f"The user {user} was not deleted")
