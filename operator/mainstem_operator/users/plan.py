"""What is to be done for a User, and what is said of it. Pure but for new keys and passwords.

The manifest is the whole truth about its user: ACLs and quotas that it does not name are removed. What a user
has that no User stands for is left alone.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.conditions import Condition, merged, pruned
from mainstem_operator.api.fields import InvalidSpec, Object
from mainstem_operator.api.listeners import Listener
from mainstem_operator.api.secret_data import SecretData
from mainstem_operator.api.timestamps import written
from mainstem_operator.api.users import AclRule, UserSpec
from mainstem_operator.certificates.issuing import (
    USER_DAYS,
    USER_RENEWAL_DAYS,
    KeyPair,
    expires_within,
    expiry_of,
    is_issued,
    issue,
)

MOUNT_PATH: Final = "/etc/mainstem-user"
"""Where the properties in a User's Secret expect it to be mounted."""
_PASSWORD_BYTES: Final = 24
_UNUSABLE_IN_PASSWORDS: Final = frozenset("\"'\\")


@dataclass(frozen=True, slots=True)
class UserSeen:
    """What brokers have of one user; `acls` is None where there is no authorization."""

    has_password: bool
    acls: frozenset[AclRule] | None
    quotas: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class UserPlan:
    """What to change on the brokers. `set_password` is for a user that logs in by one."""

    set_password: bool = False
    delete_password: bool = False
    add: frozenset[AclRule] = frozenset()
    remove: frozenset[AclRule] = frozenset()
    quotas: Mapping[str, float | None] = field(default_factory=dict)


def listener_for(spec: UserSpec, cluster: ClusterSpec) -> Listener | None:
    """The first listener where the user can log in, inside Kubernetes if there is one."""
    if cluster.security is None:
        return None
    fitting = [one for one in cluster.security.listeners if one.authentication == spec.authentication]
    return min(fitting, key=lambda one: one.external is not None, default=None)


def problem_of(spec: UserSpec, cluster: ClusterSpec) -> Condition | None:
    """Why the user could not log in whatever is done."""
    if cluster.security is None:
        text = (
            f"The BrokerCluster {cluster.name} has no spec.listeners.clients, so clients do not log in:"
            " users need a secured BrokerCluster."
        )
        return Condition("Ready", False, "NotSecured", text)
    if listener_for(spec, cluster) is None:
        text = (
            f"No listener of the BrokerCluster {cluster.name} has authentication: {spec.authentication}. Add"
            " one, or change spec.authentication.type."
        )
        return Condition("Ready", False, "NoListener", text)
    return None


def plan_user(spec: UserSpec, observed: UserSeen, *, password_is_set: bool) -> UserPlan:
    """What is left to do.

    Args:
        password_is_set: whether the password that the Secret has is the last one that brokers took.
    """
    by_password = spec.authentication == "scram-sha-512"
    changes: dict[str, float | None] = {
        name: value for name, value in spec.quotas.items() if observed.quotas.get(name) != value
    }
    changes |= dict.fromkeys(observed.quotas.keys() - spec.quotas.keys())
    present = spec.acls if observed.acls is None else observed.acls
    return UserPlan(
        set_password=by_password and not (observed.has_password and password_is_set),
        delete_password=observed.has_password and not by_password,
        add=spec.acls - present,
        remove=present - spec.acls,
        quotas=changes,
    )


def may_have_acls(spec: UserSpec, observed: UserSeen, status: Object | None) -> bool:
    """Whether brokers have ACLs of the user, or get them. Where they do not show ACLs, the status says
    whether there were any before.
    """
    before = (status or {}).get("hasAcls") if observed.acls is None else observed.acls
    return bool(spec.acls or before)


def plan_removal(observed: UserSeen) -> UserPlan:
    """Everything goes."""
    return UserPlan(
        delete_password=observed.has_password,
        remove=observed.acls or frozenset(),
        quotas=dict.fromkeys(observed.quotas),
    )


# --- The Secret ---


def checked_password(password: str | None, secret: str, key: str) -> str:
    """A password that a person has put into a Secret.

    Raises:
        InvalidSpec: there is none, or not every client could be given it.
    """
    if password is None:
        raise InvalidSpec(
            f"spec.authentication.passwordFrom: the Secret {secret} has no {key}, or is missing."
        )
    if not (
        8 <= len(password) <= 128
        and password.isascii()
        and password.isprintable()
        and " " not in password
        and not _UNUSABLE_IN_PASSWORDS & set(password)
    ):
        raise InvalidSpec(
            f"The password in {key} of the Secret {secret} must have 8 to 128 characters: ASCII without"
            " spaces, quotes, backslashes and line ends."
        )
    return password


def plan_password(present: SecretData, supplied: str | None) -> str:
    """The password: the supplied one, or the one that the Secret has, or a new one."""
    return supplied or present.get("password") or secrets.token_urlsafe(_PASSWORD_BYTES)


def plan_key(spec: UserSpec, present: SecretData, authority: KeyPair, now: dt.datetime) -> KeyPair:
    """The key and certificate that the Secret has, or new ones."""
    pair = KeyPair(present.get("user.key", ""), present.get("user.crt", ""))
    if is_issued(pair, authority, spec.user, ()) and not expires_within(pair, USER_RENEWAL_DAYS, now):
        return pair
    return issue(authority, spec.user, (), USER_DAYS, now)


def secret_with(
    spec: UserSpec, listener: Listener, servers: str, trust: str, login: str | KeyPair
) -> dict[str, str]:
    """What the User's Secret is to hold: the parts, and settings of clients that refer to them.

    Args:
        servers: the addresses of the listener.
        trust: the certificates of the brokers' authority; empty if clients trust it as their systems do.
        login: the password, or the key and its certificate.
    """
    common = {"bootstrap.servers": servers, "security.protocol": listener.protocol}
    java, librdkafka = dict(common), dict(common)
    values = {"username": spec.user, "bootstrap.servers": servers}
    if listener.tls and trust:
        values["ca.crt"] = trust
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": f"{MOUNT_PATH}/ca.crt"}
        librdkafka["ssl.ca.location"] = f"{MOUNT_PATH}/ca.crt"
    if isinstance(login, KeyPair):
        values |= {
            "user.key": login.key,
            "user.crt": login.certificate,
            "user.pem": login.key + login.certificate,
        }
        java |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": f"{MOUNT_PATH}/user.pem"}
        librdkafka["ssl.certificate.location"] = f"{MOUNT_PATH}/user.crt"
        librdkafka["ssl.key.location"] = f"{MOUNT_PATH}/user.key"
    else:
        jaas = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required"
            f' username="{spec.user}" password="{login}";'
        )
        values |= {"password": login, "sasl.jaas.config": jaas}
        java |= {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}
        librdkafka |= {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": spec.user,
            "sasl.password": login,
        }
    values["java.properties"] = _properties(java)
    values["librdkafka.properties"] = _properties(librdkafka)
    return values


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def password_mark(cluster_uid: str, user_uid: str, password: str) -> str:
    """Differs for another password, User or BrokerCluster; noted at the Secret once brokers have it."""
    return hashlib.sha256(f"{cluster_uid}/{user_uid}/{password}".encode()).hexdigest()


# --- The status ---


def ready_condition(spec: UserSpec, cluster: ClusterSpec) -> Condition:
    """What is said of a User for which all has been done."""
    security = cluster.security
    if spec.acls and (security is None or security.super_users is None):
        text = (
            f"spec.acls has no effect, and every client may do everything: the BrokerCluster {cluster.name}"
            " has no spec.authorization."
        )
        return Condition("Ready", False, "NoAuthorization", text)
    return Condition("Ready", True, "Ready")


def user_status(
    spec: UserSpec,
    condition: Condition,
    login: str | KeyPair | None,
    present: Object | None,
    now: dt.datetime,
) -> dict[str, Any]:
    """The whole status, as it is written; `login` is None where there is no Secret."""
    ends = expiry_of(login) if isinstance(login, KeyPair) else None
    return pruned(
        {
            "observedGeneration": spec.identity.generation,
            "username": spec.user,
            "secret": None if login is None else spec.secret,
            "certificateExpires": None if ends is None else written(ends),
            "conditions": merged(present, [condition, _paused(spec)], spec.identity.generation, now),
        }
    )


def paused_status(spec: UserSpec, present: Object, now: dt.datetime) -> dict[str, Any]:
    """The whole status of a User that is paused. One that was ready stays so while its manifest does."""
    generation = spec.identity.generation
    ready: Object = next((item for item in present.get("conditions") or () if item["type"] == "Ready"), {})
    conditions = [_paused(spec)]
    is_ready = ready.get("status") == "True" and ready.get("observedGeneration") == generation
    if not is_ready:
        text = f"The user is not changed, because of {names.PAUSE}, so it may not be as in the manifest."
        conditions.append(Condition("Ready", None, "Paused", text))
    entries = merged(present, conditions, generation, now)
    if is_ready:
        entries.append(dict(ready))
    entries.sort(key=lambda item: str(item["type"]))
    return {**present, "observedGeneration": generation, "username": spec.user, "conditions": entries}


def _paused(spec: UserSpec) -> Condition:
    return Condition("Paused", spec.paused, "Annotated" if spec.paused else "NotPaused")


def servers_of(listener: Listener, cluster: ClusterSpec, outside: str | None) -> str:
    """The addresses of a listener; `outside` are those that the BrokerCluster's status has for node ports."""
    if listener.external is not None:
        return outside or ""
    return names.bootstrap_servers(cluster.name, cluster.namespace, listener.port)
