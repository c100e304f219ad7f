"""DescribeUserScramCredentials (key 50), versions 0 to 0, and AlterUserScramCredentials (key 51), versions
0 to 0 (KIP-554).

Any broker serves both: credentials are settings of users in ZooKeeper, in Apache Kafka's format
(`security/scram_credentials.py`), that every broker knows. They hold from the moment that a broker hears of
them, which takes milliseconds.

- Describing answers mechanisms and iterations, never keys. No users named, or null, means all that have
  credentials; a user that is named and has none is answered RESOURCE_NOT_FOUND.
- A client salts and iterates the password before it sends it (4096 to 16384 iterations), so that the password
  itself never reaches a broker. What it sends would still let others log in: use a listener with TLS.
- Users are altered one by one; of one user all changes are made, or none. A request that names the same user
  and mechanism twice changes nothing of that user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mainstem_broker.api.authorization import record_change
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.cluster.config_entities import DEFAULT_ENTITY, quota_entity, user_path
from mainstem_broker.errors import (
    DuplicateResource,
    ProtocolError,
    ResourceNotFound,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
)
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.security.principals import Principal
from mainstem_broker.security.scram_credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISM_OF_NUMBER,
    ScramCredential,
    ScramMechanism,
    credential_of,
)

USER_NAME_CHARACTERS_MAX: Final = 1_000
SALT_BYTES_MAX: Final = 1_000
"""Bounds what one user takes in ZooKeeper and in the memory of each broker."""


# --- DescribeUserScramCredentials ---


def handle_describe(broker: BrokerContext, request: Entity, _context: RequestContext) -> Body:
    names = [user.name for user in request.users or ()]
    times_named = Counter(names)
    results = []
    for name in dict.fromkeys(names) if names else _users_with_credentials(broker):
        result: Body = {"user": name, "error_code": 0, "error_message": None, "credential_infos": ()}
        try:
            if times_named[name] > 1:
                raise DuplicateResource(f"The request names the user '{name}' more than once.")
            result["credential_infos"] = _described(broker, name)
        except ProtocolError as error:
            result |= {"error_code": error.code, "error_message": error.message}
        results.append(result)
    return {"throttle_time": 0, "error_code": 0, "error_message": None, "results": results}


def _users_with_credentials(broker: BrokerContext) -> list[str]:
    return sorted(
        entity.user
        for path, settings in broker.view.entity_configs.items()
        if (entity := quota_entity(path)) is not None
        and entity.client_id is None
        and entity.user is not None
        and any(credential_of(settings, mechanism) is not None for mechanism in ScramMechanism)
    )


def _described(broker: BrokerContext, name: str) -> list[Body]:
    infos = [
        {"mechanism": mechanism.number, "iterations": credential.iterations}
        for mechanism in ScramMechanism
        if (credential := broker.scram_credential(name, mechanism)) is not None
    ]
    if not infos:
        raise ResourceNotFound(f"The user '{name}' has no SCRAM credentials.")
    return infos


# --- AlterUserScramCredentials ---


@dataclass(slots=True)
class _Changes:
    """What a request changes of one user: None deletes. `error` is the first thing that is wrong."""

    credentials: dict[ScramMechanism, ScramCredential | None] = field(default_factory=dict)
    error: ProtocolError | None = None


async def handle_alter(broker: BrokerContext, request: Entity, context: RequestContext) -> Body:
    changes: dict[str, _Changes] = {}
    for item in (*request.deletions, *request.upsertions):
        of_user = changes.setdefault(item.name, _Changes())
        try:
            mechanism = _mechanism(item)
            if mechanism in of_user.credentials:
                raise DuplicateResource(
                    f"The request changes the {mechanism.value} credential of '{item.name}' more than once."
                )
            is_deletion = not hasattr(item, "salted_password")
            of_user.credentials[mechanism] = None if is_deletion else _credential(mechanism, item)
        except ProtocolError as error:
            of_user.error = of_user.error or error
    results = []
    for name, of_user in changes.items():
        result: Body = {"user": name, "error_code": 0, "error_message": None}
        try:
            if of_user.error is not None:
                raise of_user.error
            await _alter(broker, name, of_user.credentials)
            for mechanism, credential in of_user.credentials.items():
                outcome = "deleted" if credential is None else "set"
                record_change(broker, context, outcome, f"{Principal(name)}", mechanism.value)
        except ProtocolError as error:
            result |= {"error_code": error.code, "error_message": error.message}
        results.append(result)
    await broker.catch_up()  # a login or question right after the answer finds them
    return {"throttle_time": 0, "results": results}


def refuse_alter(request: Entity, error: ProtocolError) -> Body:
    """The answer to a client that may not change users."""
    users = dict.fromkeys(item.name for item in (*request.deletions, *request.upsertions))
    return {
        "throttle_time": 0,
        "results": [
            {"user": user, "error_code": error.code, "error_message": error.message} for user in users
        ],
    }


def _mechanism(item: Entity) -> ScramMechanism:
    """The mechanism of a change.

    Raises:
        UnacceptableCredential: the user's name cannot be one.
        UnsupportedSaslMechanism: there is no such mechanism.
    """
    if not item.name or item.name == DEFAULT_ENTITY or len(item.name) > USER_NAME_CHARACTERS_MAX:
        raise UnacceptableCredential(
            f"A user's name has 1 to {USER_NAME_CHARACTERS_MAX} characters and is not '{DEFAULT_ENTITY}'."
        )
    mechanism = MECHANISM_OF_NUMBER.get(item.mechanism)
    if mechanism is None:
        raise UnsupportedSaslMechanism(
            f"There is no SCRAM mechanism {item.mechanism}; SCRAM-SHA-256 (1) and SCRAM-SHA-512 (2) exist."
        )
    return mechanism


def _credential(mechanism: ScramMechanism, item: Entity) -> ScramCredential:
    """Raises UnacceptableCredential, which contains nothing of the password."""
    if not ITERATIONS_MIN <= item.iterations <= ITERATIONS_MAX:
        raise UnacceptableCredential(
            f"A SCRAM credential takes {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations, not"
            f" {item.iterations}."
        )
    if len(item.salted_password) != mechanism.key_bytes:
        raise UnacceptableCredential(
            f"A salted password of {mechanism.value} has {mechanism.key_bytes} bytes, this one"
            f" {len(item.salted_password)}."
        )
    if not 0 < len(item.salt) <= SALT_BYTES_MAX:
        raise UnacceptableCredential(f"A salt has 1 to {SALT_BYTES_MAX} bytes, this one {len(item.salt)}.")
    return ScramCredential.of_salted_password(
        mechanism, bytes(item.salted_password), bytes(item.salt), item.iterations
    )


async def _alter(
    broker: BrokerContext, name: str, credentials: Mapping[ScramMechanism, ScramCredential | None]
) -> None:
    """Raises ResourceNotFound if a credential that is to be deleted does not exist."""

    def changed(settings: Mapping[str, str]) -> Mapping[str, str]:
        merged = dict(settings)
        for mechanism, credential in credentials.items():
            if credential is not None:
                merged[mechanism.value] = credential.encode()
            elif merged.pop(mechanism.value, None) is None:
                raise ResourceNotFound(f"The user '{name}' has no {mechanism.value} credential.")
        return merged

    await broker.member.administration.change_config(user_path(name), changed)
