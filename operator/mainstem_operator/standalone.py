"""Topics, Users and ConsumerGroups from manifests without Kubernetes: what `kubectl apply` and a look do.

For the local stack, and for trying manifests out. The status of each object is kept in a file, for what must
be done once: a reset is not done again when its manifest is applied again.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.conditions import Condition
from mainstem_operator.api.fields import Fields, InvalidSpec, Object
from mainstem_operator.api.groups import GroupSpec, group_of
from mainstem_operator.api.objects import identity_of
from mainstem_operator.api.secret_data import decoded
from mainstem_operator.api.topics import TopicSpec, topic_of
from mainstem_operator.api.users import AclRule, UserSpec, user_of
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.brokers.errors import BrokersRefused
from mainstem_operator.brokers.user_requests import UserRequests
from mainstem_operator.groups.apply import look_at_groups
from mainstem_operator.groups.plan import owners_of
from mainstem_operator.topics.apply import bring_about_topics
from mainstem_operator.topics.plan import TopicPlan, topic_status
from mainstem_operator.users.changes import carry_out
from mainstem_operator.users.plan import (
    UserPlan,
    UserSeen,
    checked_password,
    paused_status,
    plan_user,
    user_status,
)

_NO_PASSWORD: Final = "NoPassword"


@dataclass(frozen=True, slots=True)
class Applied:
    """What has become of one manifest: its status, as it would be in Kubernetes.

    `changes` are sentences such as `retention.ms: -1 -> 604800000`, one for each change that was made.
    """

    kind: str
    name: str
    status: Mapping[str, Any]
    changes: tuple[str, ...] = ()

    @property
    def ready(self) -> Mapping[str, Any]:
        """The condition Ready."""
        condition: Mapping[str, Any] = next(
            item for item in self.status["conditions"] if item["type"] == "Ready"
        )
        return condition


class Statuses:
    """The statuses of objects, in a JSON file: `{"Topic/default/clicks": {...}}`.

    It is written anew as a whole and put in place by a rename, so a crash leaves the old or the new one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._found = json.loads(path.read_text())

    def of(self, kind: str, key: tuple[str, str]) -> Object:
        return self._found.get("/".join((kind, *key)), {})

    def put(self, kind: str, key: tuple[str, str], status: Mapping[str, Any]) -> None:
        self._found["/".join((kind, *key))] = dict(status)
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self._found, indent=1))
        beside.replace(self._path)


async def apply_manifests(brokers: Brokers, manifests: Iterable[Object], statuses: Statuses) -> list[Applied]:
    """Bring Topics, Users and ConsumerGroups about, whatever BrokerCluster they name.

    Secrets are accepted, for the passwords that Users take from them.

    Raises:
        InvalidSpec: a manifest makes no sense, or is of another kind; nothing was done.
        BrokersUnreachable, BrokersRefused: the brokers' own reasons.
    """
    topics: list[TopicSpec] = []
    users: list[UserSpec] = []
    groups: list[GroupSpec] = []
    secrets: dict[tuple[str, str], dict[str, str]] = {}
    for manifest in manifests:
        kind = Fields(manifest, "the manifest").choice("kind", ("Topic", "User", "ConsumerGroup", "Secret"))
        version = "v1" if kind == "Secret" else names.API_VERSION
        if manifest.get("apiVersion") != version:
            raise InvalidSpec(f"apiVersion must be {version}, not {manifest.get('apiVersion')!r}.")
        match kind:
            case "Topic":
                topics.append(topic_of(manifest))
            case "User":
                users.append(user_of(manifest))
            case "ConsumerGroup":
                groups.append(group_of(manifest))
            case _:
                secrets[identity_of(manifest).key] = _texts_in(manifest)
    supplied = {spec.identity.key: _supplied_password(spec, secrets) for spec in users}
    applied = await _apply_topics(brokers, topics, statuses) if topics else []
    applied += await _apply_users(brokers.users(), users, supplied, statuses) if users else []

    async def note(spec: GroupSpec, status: Mapping[str, Any]) -> None:
        statuses.put("ConsumerGroup", spec.identity.key, status)

    status_by_group = {spec.identity.key: statuses.of("ConsumerGroup", spec.identity.key) for spec in groups}
    owners = owners_of(groups)
    owning = [spec for spec in groups if owners[spec.group] is spec]
    snapshots, failed = await look_at_groups(brokers, owning, status_by_group, note)
    for spec in groups:
        if (owner := owners[spec.group]) is not spec:
            failed[spec.identity.key] = f"The ConsumerGroup {owner.identity.name} claims its group too."
    for spec in groups:
        key = spec.identity.key
        status = snapshots.get(key) or {
            "conditions": [{"type": "Ready", "status": "Unknown", "message": failed.get(key, "")}]
        }
        if key in snapshots:
            statuses.put("ConsumerGroup", key, status)
        applied.append(Applied("ConsumerGroup", spec.identity.name, status))
    return applied


async def _apply_topics(brokers: Brokers, topics: list[TopicSpec], statuses: Statuses) -> list[Applied]:
    status_by_topic = {spec.identity.key: statuses.of("Topic", spec.identity.key) for spec in topics}
    names_of_topics = [spec.topic for spec in topics]
    topics_before = await brokers.topics(names_of_topics)
    settings_before = await brokers.settings(topics_before)
    outcome = await bring_about_topics(brokers, topics, status_by_topic)
    applied = []
    for item in outcome.outcomes:
        key = item.spec.identity.key
        status = topic_status(
            item.spec, item.plan, item.refusals, outcome.seen, status_by_topic[key], dt.datetime.now(dt.UTC)
        )
        statuses.put("Topic", key, status)
        changes: tuple[str, ...] = ()
        if item.plan is not None and not item.refusals:
            partitions = (
                len(topics_before[item.spec.topic].partitions) if item.spec.topic in topics_before else 0
            )
            changes = changes_of(item.plan, partitions, settings_before.get(item.spec.topic, {}))
        applied.append(Applied("Topic", item.spec.identity.name, status, changes))
    return applied


def _texts_in(secret: Object) -> dict[str, str]:
    """What a Secret holds, of `data` and of `stringData`, which counts more."""
    fields = Fields(secret, "the Secret")
    fields.raw("data")  # an object, or nothing
    return decoded(secret) | {name: text or "" for name, text in fields.settings("stringData").items()}


def _supplied_password(spec: UserSpec, secrets: Mapping[tuple[str, str], Mapping[str, str]]) -> str | None:
    """The password that the manifests hold for a User; None if it takes none from a Secret.

    Raises:
        InvalidSpec: the Secret is not among the manifests, or its password cannot be used.
    """
    if spec.password_from is None:
        return None
    name, key = spec.password_from
    secret = secrets.get((spec.identity.namespace, name), {})
    return checked_password(secret.get(key), name, key)


async def _apply_users(
    requests: UserRequests,
    users: list[UserSpec],
    supplied: Mapping[tuple[str, str], str | None],
    statuses: Statuses,
) -> list[Applied]:
    with_password, quotas = await requests.with_password(), await requests.quotas()
    acls: Mapping[str, frozenset[AclRule]] | None = None
    no_acls = ""
    try:
        acls = await requests.acls()
    except BrokersRefused as error:
        no_acls = str(error)
    applied = []
    for spec in users:
        key = spec.identity.key
        if spec.paused:
            status = paused_status(spec, statuses.of("User", key), dt.datetime.now(dt.UTC))
            statuses.put("User", key, status)
            applied.append(Applied("User", spec.identity.name, status, ()))
            continue
        password = supplied[key]
        rules = None if acls is None else acls.get(spec.user, frozenset())
        seen = UserSeen(spec.user in with_password, rules, quotas.get(spec.user, {}))
        # Which password brokers have nobody can tell, so one that is supplied is set again.
        plan = plan_user(spec, seen, password_is_set=password is None)
        condition = _user_condition(spec, seen, password, no_acls)
        changes: tuple[str, ...] = ()
        if condition.reason != _NO_PASSWORD:
            await carry_out(requests, spec.user, plan, password)
            changes = user_changes(plan, password)
        status = user_status(spec, condition, None, statuses.of("User", key), dt.datetime.now(dt.UTC))
        statuses.put("User", key, status)
        applied.append(Applied("User", spec.identity.name, status, changes))
    return applied


def _user_condition(spec: UserSpec, seen: UserSeen, password: str | None, no_acls: str) -> Condition:
    if spec.authentication == "scram-sha-512" and password is None and not seen.has_password:
        text = (
            "It has no password, and nobody would keep a generated one: name a Secret in"
            " spec.authentication.passwordFrom and apply it with the User, or create the user with"
            f" `mainstem user create {spec.user}` first."
        )
        return Condition("Ready", False, _NO_PASSWORD, text)
    if spec.acls and seen.acls is None:
        return Condition("Ready", False, "AclsRefused", f"Its ACLs could not be set: {no_acls}")
    return Condition("Ready", True, "Ready")


def user_changes(plan: UserPlan, password: str | None) -> tuple[str, ...]:
    """The changes of a plan to a user."""
    changes = ["password set"] if plan.set_password and password is not None else []
    changes += ["password deleted"] if plan.delete_password else []
    changes += [f"ACL added: {_sentence(rule)}" for rule in sorted(plan.add)]
    changes += [f"ACL removed: {_sentence(rule)}" for rule in sorted(plan.remove)]
    changes += [
        f"{name}: {'removed' if value is None else f'{value:g}'}"
        for name, value in sorted(plan.quotas.items())
    ]
    return tuple(changes)


def _sentence(rule: AclRule) -> str:
    verb, names_ = "allow" if rule.allows else "deny", f"{rule.name}*" if rule.is_prefix else rule.name
    return f"{verb} {rule.operation} on {rule.resource} {names_} from {rule.host}"


def changes_of(plan: TopicPlan, partitions: int, settings: Mapping[str, str]) -> tuple[str, ...]:
    """The changes of a plan to a topic that had `partitions` and, of its own, `settings`."""
    changes: list[str] = []
    if plan.create is not None:
        count, replicas, created_settings = plan.create
        texts = ["created", f"partitions: {count}", f"replicas: {replicas}"]
        changes += texts + [f"{name}: {value}" for name, value in sorted(created_settings.items())]
    if plan.grow is not None:
        changes.append(f"partitions: {partitions} -> {plan.grow}")
    for name, value in sorted(plan.alter.items()):
        changes.append(f"{name}: {settings.get(name, 'default')} -> {'default' if value is None else value}")
    if plan.move:
        changes.append(f"replicas of {len(plan.move)} partitions begin to move")
    return tuple(changes)
