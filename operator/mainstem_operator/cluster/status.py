"""What a BrokerCluster's status says: figures, the plan, conditions. Pure.

Ready says that clients are served, Healthy that every replica is in sync, Stable that the operator has
nothing left to do. One sick broker makes a BrokerCluster unhealthy, not unready: clients use the others.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.conditions import Condition, merged, pruned
from mainstem_operator.api.fields import Object
from mainstem_operator.api.setting_values import same_value
from mainstem_operator.api.timestamps import written
from mainstem_operator.certificates.plan import is_due
from mainstem_operator.cluster.broker_manifests import replaced_settings
from mainstem_operator.cluster.disks import LostVolume
from mainstem_operator.cluster.moves import Drain
from mainstem_operator.cluster.rolling_restart import Roll
from mainstem_operator.cluster.settings.known import unknown_settings
from mainstem_operator.cluster.settings.plan import (
    SettingsPlan,
    managed_settings,
    set_by_others,
    settings_left,
)
from mainstem_operator.proofs import Refusal
from mainstem_operator.snapshot import BrokerReport, Component, Pod, Snapshot


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do for a BrokerCluster, as the plans of this pass have it.

    `unresizable` says why volumes can't have the requested size, `waiting` what else is waited for, `refused`
    why Kubernetes does not take the manifest, and `outside` where clients outside reach the brokers.
    `authorities` says how far their replacement is, and `certificates` whether any ends soon.
    `no_keys` says which Secret with keys or certificates cannot be used, so that nothing else is done.
    `not_moved` says which moves of a drain were refused, and `rates_of_others` are throttles that count
    instead of the limit. `not_taken` says which step Kubernetes has refused.
    `settings` are those that need no restart, None where they were not read.
    """

    servers: Roll = field(default_factory=lambda: Roll((), None))
    brokers: Roll = field(default_factory=lambda: Roll((), None))
    drain: Drain | Refusal | None = None
    lost: tuple[LostVolume, ...] = ()
    settings: SettingsPlan | None = None
    unresizable: str = ""
    outside: str = ""
    waiting: str = ""
    refused: str = ""
    no_keys: str = ""
    authorities: str = ""
    certificates: tuple[Condition, ...] = ()
    not_moved: str = ""
    not_taken: str = ""
    rates_of_others: Mapping[str, str] = field(default_factory=dict)


def cluster_conditions(
    cluster: ClusterSpec, snapshot: Snapshot, work: Work, present: Object | None
) -> list[Condition]:
    """The conditions, in the order of their weight. `present` is the status as it is."""
    return [
        _ready(cluster, snapshot, work, present),
        _healthy(cluster, snapshot),
        _coordination(cluster, snapshot),
        _progressing(cluster, snapshot, work),
        _stable(cluster, snapshot, work),
        Condition("Paused", cluster.paused, "Annotated" if cluster.paused else "NotPaused"),
        *work.certificates,
        *_warnings(cluster, snapshot, work),
    ]


def cluster_status(
    cluster: ClusterSpec, snapshot: Snapshot, work: Work, present: Object | None
) -> dict[str, Any]:
    """The whole status, as it is written."""
    states = [
        _broker_status(cluster, index, snapshot, work) for index in range(_brokers_there(cluster, snapshot))
    ]
    report = next(iter(snapshot.reports.values()), None)
    serving = sum(1 for mode in snapshot.modes.values() if mode)
    return pruned(
        {
            "observedGeneration": cluster.identity.generation,
            "clusterId": report.cluster_id if report else (present or {}).get("clusterId"),
            "bootstrapServers": _inside(cluster),
            "listeners": _listeners(cluster, work, present),
            "externalBootstrapServers": work.outside or _known_outside(cluster, present),
            "brokersTotal": len(snapshot.brokers.pods),
            "brokersReady": len(snapshot.brokers.ready),
            "brokerSelector": ",".join(
                f"{name}={value}" for name, value in names.pod_labels(cluster.name, names.BROKER).items()
            ),
            "controller": report.controller if report else None,
            "underReplicatedPartitions": snapshot.under_replicated,
            "offlinePartitions": snapshot.offline,
            "brokers": states,
            "zookeeper": {
                "serving": f"{serving}/{cluster.zookeeper.replicas}",
                "ready": len(snapshot.zookeeper.ready),
                "replicas": cluster.zookeeper.replicas,
            },
            "draining": list(work.drain.brokers) if isinstance(work.drain, Drain) else [],
            "plan": plan_lines(work),
            "managedSettings": _managed(cluster, work, present),
            "lastRoll": _last_roll(snapshot, work, present),
            "conditions": merged(
                present,
                cluster_conditions(cluster, snapshot, work, present),
                cluster.identity.generation,
                snapshot.now,
            ),
        }
    )


def _inside(cluster: ClusterSpec) -> str | None:
    """The address for clients inside Kubernetes, of the first listener for them."""
    if cluster.security is None or cluster.security.talks_without_tls:
        return names.bootstrap_servers(cluster.name, cluster.namespace)
    ports = [listener.port for listener in cluster.security.inside]
    return names.bootstrap_servers(cluster.name, cluster.namespace, ports[0]) if ports else None


def _listeners(cluster: ClusterSpec, work: Work, present: Object | None) -> list[dict[str, Any]] | None:
    """The listeners of a secured BrokerCluster."""
    if cluster.security is None:
        return None
    entries = []
    for listener in cluster.security.listeners:
        servers: str | None = names.bootstrap_servers(cluster.name, cluster.namespace, listener.port)
        if listener.external is not None:
            servers = work.outside or _known_outside(cluster, present)
        item = {
            "name": listener.name,
            "bootstrapServers": servers,
            "securityProtocol": listener.protocol,
            "authentication": listener.authentication,
        }
        entries.append({name: value for name, value in item.items() if value is not None})
    return entries


def _managed(cluster: ClusterSpec, work: Work, present: Object | None) -> list[str] | None:
    """The settings that are ours to remove; as recorded before, where they were not read."""
    if work.settings is None or work.settings.blocked_by or cluster.plan_only:
        return list(managed_settings(present)) or None
    return list(work.settings.managed) or None


def _known_outside(cluster: ClusterSpec, present: Object | None) -> str | None:
    """The earlier status, for short passes such as those of a paused BrokerCluster."""
    servers: str | None = (present or {}).get("externalBootstrapServers")
    return servers if cluster.external is not None else None


def plan_lines(work: Work) -> list[dict[str, str]]:
    """What is to be done, next step first, and what each step waits for."""
    lines = []
    settings = work.settings
    if settings is not None and settings.summary and not settings.sent:
        reason = "brokers take them while they run"
        lines.append(_line("ChangeSettings", settings.summary, reason, settings.obstacle))
    for volume in work.lost:
        waiting = volume.step.reason if isinstance(volume.step, Refusal) else ""
        lines.append(
            _line("ReplaceVolume", volume.claim.name, f"its node {volume.claim.machine} is gone", waiting)
        )
    for roll in (work.servers, work.brokers):
        for place, restart in enumerate(roll.restarts):
            waiting = ""
            if place == 0 and isinstance(roll.step, Refusal):
                waiting = roll.step.reason
            elif place:
                waiting = f"{roll.restarts[0].pod.name} goes first."
            lines.append(_line("Restart", restart.pod.name, restart.reason, waiting))
    if isinstance(work.drain, Drain):
        for broker in reversed(work.drain.brokers):
            left = work.drain.held.get(broker, 0)
            moving = f"{left} replicas are being moved away." if left else ""
            waiting = f"{moving} {work.not_moved}".strip()
            lines.append(_line("RemoveBroker", str(broker), "fewer brokers are requested", waiting))
    elif isinstance(work.drain, Refusal):
        lines.append(_line("RemoveBroker", "", "fewer brokers are requested", work.drain.reason))
    return lines[:20]


def _line(action: str, target: str, reason: str, waiting: str) -> dict[str, str]:
    line = {"action": action, "target": target, "reason": reason, "waitingFor": waiting}
    return {name: value for name, value in line.items() if value}


def _brokers_there(cluster: ClusterSpec, snapshot: Snapshot) -> int:
    there = snapshot.brokers.workload.replicas if snapshot.brokers.workload else 0
    return max(cluster.brokers.replicas, there)


def _broker_status(cluster: ClusterSpec, index: int, snapshot: Snapshot, work: Work) -> dict[str, Any]:
    pod, report = snapshot.brokers.pods.get(index), snapshot.reports.get(index)
    draining = isinstance(work.drain, Drain) and index in work.drain.brokers
    lost = next((item for item in work.lost if item.claim.name.endswith(f"-broker-{index}")), None)
    message = ""
    if lost is not None:
        state = "DiskLost" if isinstance(lost.step, Refusal) else "Replacing"
        message = lost.step.reason
    else:
        state, message = _state(pod, report)
        if draining and state == "Running":
            state = "Draining"
    return pruned(
        {
            "id": index,
            "pod": names.pod(cluster.name, names.BROKER, index),
            "node": pod.node if pod else None,
            "rack": snapshot.racks.get(index),
            "state": state,
            "leaders": report.leaders if report else None,
            "replicas": report.replicas if report else None,
            "message": message or None,
        }
    )


def _state(pod: Pod | None, report: BrokerReport | None) -> tuple[str, str]:
    if pod is None:
        return "Missing", "Kubernetes has not made its pod"
    if not pod.scheduled:
        return "Pending", pod.unschedulable
    if report is None:
        if pod.ready:
            return "Unreachable", "it is ready, and does not answer the operator"
        return "Stopping" if pod.deleting else "Starting", pod.trouble
    if not report.running:
        return "Starting", ""
    if report.catching_up:
        return "CatchingUp", f"{report.catching_up} replicas are not in sync"
    return "Running", ""


def _trouble(*components: Component) -> str:
    """Why pods do not run, in Kubernetes' words, or where it says why none is there; empty if all run."""
    for component in components:
        for pod in component.pods.values():
            if not pod.ready and (pod.trouble or pod.unschedulable):
                return f"{pod.name}: {pod.trouble or pod.unschedulable}"
        if component.workload is not None and component.workload.up_to_date and component.missing():
            name = component.workload.name
            return f"Kubernetes creates no pod for {name}: `kubectl describe statefulset {name}` says why."
    return ""


def _ready(cluster: ClusterSpec, snapshot: Snapshot, work: Work, present: Object | None) -> Condition:
    """Whether clients are served. Until it has been so once, every broker has to be there."""
    ready, expected = len(snapshot.brokers.ready), cluster.brokers.replicas
    was_ready = any(
        item["type"] == "Ready"
        and (item["status"] == "True" or item["reason"] in (names.INTERNAL_ERROR, names.KUBERNETES_REFUSED))
        for item in (present or {}).get("conditions") or ()
    )
    if not ready:
        trouble = work.refused or work.no_keys or _trouble(snapshot.brokers, snapshot.zookeeper)
        return Condition("Ready", False, "NoBrokers", f"No broker is ready. {trouble}".strip())
    if snapshot.offline:
        text = f"{snapshot.offline} partitions have no leader."
        return Condition("Ready", False, "OfflinePartitions", text)
    if ready < expected and not was_ready:
        text = f"{ready} of {expected} brokers are ready. {_trouble(snapshot.brokers)}".strip()
        return Condition("Ready", False, "Starting", text)
    return Condition("Ready", True, "Serving", f"{ready} of {expected} brokers are ready.")


def _healthy(cluster: ClusterSpec, snapshot: Snapshot) -> Condition:
    if not snapshot.reports:
        return Condition("Healthy", None, "NotTold", "No broker reports its state.")
    if snapshot.offline:
        return Condition(
            "Healthy", False, "OfflinePartitions", f"{snapshot.offline} partitions have no leader."
        )
    if snapshot.under_replicated:
        text = f"{snapshot.under_replicated} partitions have a replica out of sync."
        return Condition("Healthy", False, "UnderReplicated", text)
    ready, expected = len(snapshot.brokers.ready), cluster.brokers.replicas
    if ready < expected:
        return Condition("Healthy", False, "BrokersMissing", f"{ready} of {expected} brokers are ready.")
    return Condition("Healthy", True, "InSync", "Every replica is in sync.")


def _coordination(cluster: ClusterSpec, snapshot: Snapshot) -> Condition:
    name, expected, serving = "CoordinationHealthy", cluster.zookeeper.replicas, len(snapshot.modes)
    text = f"{serving} of {expected} ZooKeeper servers serve. {_trouble(snapshot.zookeeper)}".strip()
    if not snapshot.quorum:
        return Condition(name, False, "NoQuorum", text)
    if serving < expected:
        return Condition(name, False, "ServersMissing", text)
    return Condition(name, True, "Quorum", text)


def _busy(cluster: ClusterSpec, snapshot: Snapshot, work: Work) -> tuple[str, str] | None:
    """What is going on, and what of it is refused: a reason and sentences; None if nothing is."""
    going_on = _going_on(cluster, snapshot, work)
    if not work.not_taken:
        return going_on
    reason, text = going_on or ("Refused", "")
    return reason, f"{text} {work.not_taken}".strip()


def _going_on(cluster: ClusterSpec, snapshot: Snapshot, work: Work) -> tuple[str, str] | None:
    if work.refused:
        return "Refused", work.refused
    if work.no_keys:
        return "SecretNotUsable", work.no_keys
    if work.lost:
        step = work.lost[0].step
        return "ReplacingDisk", f"{work.lost[0].claim.name}: {step.reason}"
    if work.settings is not None and work.settings.blocked_by:
        return settings_left(work.settings)
    for roll in (work.servers, work.brokers):
        if roll.restarts:
            waiting = f" Waiting: {roll.step.reason}" if isinstance(roll.step, Refusal) else ""
            return "Rolling", f"{len(roll.restarts)} pods are to be restarted.{waiting}"
        if isinstance(roll.step, Refusal):
            return "Applying", roll.step.reason
    there = snapshot.brokers.workload.replicas if snapshot.brokers.workload else 0
    if isinstance(work.drain, Refusal):
        return "Draining", work.drain.reason
    if work.drain is not None:
        left, brokers = sum(work.drain.held.values()), ", ".join(map(str, work.drain.brokers))
        leaving = f"{left} replicas are to leave brokers {brokers}." if left else f"Brokers {brokers} go."
        return "Draining", f"{leaving} {work.not_moved}".strip()
    if going := [str(index) for index in sorted(snapshot.brokers.pods) if index >= cluster.brokers.replicas]:
        return "Draining", f"Brokers {', '.join(going)} go."
    ready = len(snapshot.brokers.ready)
    if there < cluster.brokers.replicas or ready < cluster.brokers.replicas:
        text = (
            f"{ready} of {cluster.brokers.replicas} brokers are ready. {_trouble(snapshot.brokers)}".strip()
        )
        return "Starting", text
    if len(snapshot.zookeeper.ready) < cluster.zookeeper.replicas:
        text = f"{len(snapshot.zookeeper.ready)} of {cluster.zookeeper.replicas} servers are ready."
        return "Starting", f"{text} {_trouble(snapshot.zookeeper)}".strip()
    if work.waiting:
        return "Waiting", work.waiting
    return settings_left(work.settings)


def _progressing(cluster: ClusterSpec, snapshot: Snapshot, work: Work) -> Condition:
    if cluster.paused:
        return Condition("Progressing", False, "Paused", "Nothing is done while the BrokerCluster is paused.")
    busy = _busy(cluster, snapshot, work)
    if busy is None:
        return Condition("Progressing", False, "Idle", "Nothing is left to do.")
    return Condition("Progressing", True, *busy)


def _stable(cluster: ClusterSpec, snapshot: Snapshot, work: Work) -> Condition:
    if cluster.paused:  # its manifest may have changed since, and is not compared
        return Condition("Stable", None, "Paused", "Reconciliation is paused.")
    busy = _busy(cluster, snapshot, work)
    if busy is not None:
        return Condition("Stable", False, *busy)
    except_for = [item.type for item in _warnings(cluster, snapshot, work) if item.type in _NOT_AS_REQUESTED]
    if except_for:
        text = f"Nothing is left to do. What is not as in the manifest, say {', '.join(except_for)}."
        return Condition("Stable", True, "Done", text)
    return Condition("Stable", True, "Done", "Everything is as in the manifest.")


_NOT_AS_REQUESTED: Final = frozenset(
    {
        "MoveLimitOverridden",
        "RackUnknown",
        "SettingsOverridden",
        "SettingsReplaced",
        "SettingsUnknown",
        "StorageUnresizable",
    }
)
"""Conditions about parts of a manifest that cannot be carried out."""


def _warnings(cluster: ClusterSpec, snapshot: Snapshot, work: Work) -> list[Condition]:
    """Conditions that are there only while something is wrong."""
    warnings = []
    if isinstance(work.drain, Refusal):
        warnings.append(Condition("ScaleDownBlocked", True, "Refused", work.drain.reason))
    if work.settings is not None and work.settings.refused is not None:
        warnings.append(work.settings.refused)
    if (overridden := set_by_others(work.settings)) is not None:
        warnings.append(overridden)
    if (ignored := ignored_settings(cluster)) is not None:
        warnings.append(ignored)
    if replaced := replaced_settings(cluster):
        text = (
            "spec.brokers.config has settings that the operator sets itself, for spec.listeners or"
            f" spec.authorization, and that have no effect there: {', '.join(replaced[:10])}. Remove them."
        )
        warnings.append(Condition("SettingsReplaced", True, "SetByOperator", text))
    if work.authorities:
        warnings.append(Condition("AuthoritiesChanging", True, "ReplacementRequested", work.authorities))
    if work.unresizable:
        warnings.append(Condition("StorageUnresizable", True, "Refused", work.unresizable))
    if text := _deleted_claims(snapshot):
        warnings.append(Condition("ClaimsDeleting", True, "ClaimDeleted", text))
    if text := _without_rack(cluster, snapshot):
        warnings.append(Condition("RackUnknown", True, "NoSuchLabel", text))
    if work.rates_of_others:
        rates = ", ".join(f"{name} {rate}" for name, rate in sorted(work.rates_of_others.items()))
        text = (
            "Moves do not keep to moveBytesPerSecond: the default of all brokers is set by others, to"
            f" {rates}. Delete it there with kafka-configs --entity-type brokers --entity-default."
        )
        warnings.append(Condition("MoveLimitOverridden", True, "SetByOthers", text))
    if same_value(cluster.brokers.config.get("auto.create.topics.enable"), "true"):
        text = "auto.create.topics.enable is on: a topic that is deleted comes back with its next client."
        warnings.append(Condition("AutoCreateEnabled", True, "Configured", text))
    return warnings


def certificate_conditions(
    expiry: dt.datetime | None, now: dt.datetime, held_by: str
) -> tuple[Condition, ...]:
    """The condition that says when certificates end that are not renewed; none without certificates.

    Args:
        expiry: when the first of them ends.
        held_by: the annotation that keeps the operator from renewals; empty if none does.
    """
    if expiry is None:
        return ()
    if not is_due(expiry, now):
        return (Condition("CertificatesEnding", False, "NotDue", f"They are valid until {written(expiry)}."),)
    why = (
        f"because of the annotation {held_by}: remove it, if only for some minutes."
        if held_by
        else "and the log of the operator says why."
    )
    text = (
        "A certificate of the brokers or of the operator is not renewed. From"
        f" {written(expiry)} on, connections over TLS fail. The operator does not renew it, {why}"
    )
    return (Condition("CertificatesEnding", True, "NotRenewed", text),)


def ignored_settings(cluster: ClusterSpec) -> Condition | None:
    """The condition that names the settings that brokers do not know; None without any."""
    unknown = unknown_settings(cluster.brokers.config)
    if not unknown:
        return None
    text = (
        "Brokers of this version do not know some settings of brokers.config, which are left out of their"
        f" files: {', '.join(unknown[:10])}. Correct the names, or remove them."
    )
    return Condition("SettingsUnknown", True, "Ignored", text)


def _deleted_claims(snapshot: Snapshot) -> str:
    """Which claims somebody has deleted that pods still hold; empty if there are none."""
    held = [
        claim.name
        for component in (snapshot.zookeeper, snapshot.brokers)
        for _, pod in sorted(component.pods.items())
        if not pod.deleting and (claim := component.lost_with(pod)) is not None
    ]
    if not held:
        return ""
    return (
        f"Somebody has deleted these claims: {', '.join(held[:5])}. Their data goes when their pods do, so"
        " the operator does not restart these."
    )


def _without_rack(cluster: ClusterSpec, snapshot: Snapshot) -> str:
    """Which nodes of brokers do not say their rack; empty if all do, or none is to be known."""
    label = cluster.brokers.rack_label
    if label is None or snapshot.nodes is None:
        return ""
    nodes = {pod.node for pod in snapshot.brokers.pods.values() if pod.node in snapshot.nodes}
    bare = sorted(node for node in nodes if node and not snapshot.nodes[node].get(label))
    if not bare:
        return ""
    return f"Nodes without the label {label}, so that replicas are not spread: {', '.join(bare[:5])}."


def _last_roll(snapshot: Snapshot, work: Work, present: Object | None) -> Mapping[str, str] | None:
    """When the last roll began and ended, by comparing with what the status said before."""
    before: Mapping[str, str] = (present or {}).get("lastRoll") or {}
    rolling = [*work.servers.restarts, *work.brokers.restarts]
    if rolling:
        if before and not before.get("finished"):
            return before
        return {"reason": rolling[0].reason, "started": written(snapshot.now)}
    if before and not before.get("finished"):
        return {**before, "finished": written(snapshot.now)}
    return before or None
