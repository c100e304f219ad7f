"""Topics and ConsumerGroups from manifests without Kubernetes: what `kubectl apply` and a look do, at once.

For the local stack, and for trying manifests out. The status of each object is kept in a file, for what must
be done once: a reset is not done again when its manifest is applied again.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainstem_operator import names
from mainstem_operator.admin import Brokers
from mainstem_operator.fields import Fields, InvalidSpec, Object
from mainstem_operator.group_work import look_at_groups
from mainstem_operator.plan_topics import topic_status
from mainstem_operator.resources import GroupSpec, TopicSpec, group_of, topic_of
from mainstem_operator.topic_work import bring_about_topics


@dataclass(frozen=True, slots=True)
class Applied:
    """What has become of one manifest: its status, as it would be in Kubernetes."""

    kind: str
    name: str
    status: Mapping[str, Any]

    @property
    def ready(self) -> Mapping[str, Any]:
        """The condition Ready."""
        found: Mapping[str, Any] = next(item for item in self.status["conditions"] if item["type"] == "Ready")
        return found


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
    """Bring Topics and ConsumerGroups about, whatever Cluster they name.

    Raises:
        InvalidSpec: a manifest makes no sense, or is of another kind; nothing was done.
        BrokersUnreachable, BrokersRefused: the brokers' own reasons.
    """
    topics: list[TopicSpec] = []
    groups: list[GroupSpec] = []
    for manifest in manifests:
        kind = Fields(manifest, "the manifest").choice("kind", ("Topic", "ConsumerGroup"))
        if manifest.get("apiVersion") != names.API_VERSION:
            raise InvalidSpec(f"apiVersion is to be {names.API_VERSION}, not {manifest.get('apiVersion')!r}.")
        if kind == "Topic":
            topics.append(topic_of(manifest))
        else:
            groups.append(group_of(manifest))
    applied = await _apply_topics(brokers, topics, statuses) if topics else []

    async def note(spec: GroupSpec, status: Mapping[str, Any]) -> None:
        statuses.put("ConsumerGroup", spec.identity.key, status)

    known = {spec.identity.key: statuses.of("ConsumerGroup", spec.identity.key) for spec in groups}
    found, failed = await look_at_groups(brokers, groups, known, note)
    for spec in groups:
        key = spec.identity.key
        status = found.get(key) or {
            "conditions": [{"type": "Ready", "status": "Unknown", "message": failed.get(key, "")}]
        }
        if key in found:
            statuses.put("ConsumerGroup", key, status)
        applied.append(Applied("ConsumerGroup", spec.identity.name, status))
    return applied


async def _apply_topics(brokers: Brokers, topics: list[TopicSpec], statuses: Statuses) -> list[Applied]:
    known = {spec.identity.key: statuses.of("Topic", spec.identity.key) for spec in topics}
    outcome = await bring_about_topics(brokers, topics, known)
    applied = []
    for item in outcome.outcomes:
        key = item.spec.identity.key
        status = topic_status(
            item.spec, item.plan, item.refusals, outcome.seen, known[key], dt.datetime.now(dt.UTC)
        )
        statuses.put("Topic", key, status)
        applied.append(Applied("Topic", item.spec.identity.name, status))
    return applied
