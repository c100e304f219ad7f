"""Which of the brokers' settings hold without a restart, what is put, and what is taken back when. Pure.

All of `spec.brokers.config` is in the brokers' files, so that a broker that starts, at whatever time, has it.
Those settings that brokers take while they run are also put as the default of all brokers (KIP-226), which
takes precedence over a file: what has changed holds everywhere at once, without a restart.

As with Topics, the manifest decides what it names, and defaults for other settings are left to who set them.
What it has named is noted in the status (`managedSettings`) before it is in a file or a default. What it
names no more is taken back: brokers that started with it in their file are restarted without it, and only
when none has it left does the default go. Until then it holds on all of them, or what the operator's own
files say instead, and never Kafka's own default, which might delete what neither the old manifest nor the new
one would. What is set for a single broker counts more than all of this, and is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.conditions import Condition
from mainstem_operator.api.fields import Object
from mainstem_operator.api.setting_values import same_value
from mainstem_operator.snapshot import Component

LIVE_SETTINGS: Final = frozenset(
    {
        "audit.log.categories",
        "background.threads",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "errors.deadletterqueue.auto.create.topics.enable",
        "errors.deadletterqueue.topic.name.prefix",
        "follower.fetch.last.tiered.offset.enable",
        "follower.replication.throttled.rate",
        "group.consumer.assignment.interval.ms",
        "group.coordinator.cached.buffer.max.bytes",
        "group.share.assignment.interval.ms",
        "group.streams.assignment.interval.ms",
        "leader.replication.throttled.rate",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleaner.threads",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.local.retention.bytes",
        "log.local.retention.ms",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.remote.copy.lag.bytes",
        "log.remote.copy.lag.ms",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "max.decompressed.message.bytes",
        "message.max.bytes",
        "min.insync.replicas",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
        "producer.id.expiration.ms",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.reader.threads",
        "share.coordinator.cached.buffer.max.bytes",
        "transaction.partition.verification.enable",
        "unclean.leader.election.enable",
    }
)
"""Those that brokers take while they run, as their own table has them, but for the limits on connections: a
test says so. A wrong limit on all brokers at once would lock everyone out, including the operator. So
limits go round with a roll, which ends at the first broker.

A list and no question to the brokers: whether a pod is to be restarted must not depend on who answers just
now. Brokers of another version that don't accept one say so, and a condition reports it.
"""

_OFF: Final = {"unclean.leader.election.enable": "false"}
"""What holds at once in place of what the manifest names no more, since waiting for that costs records. For
others it is what the file has instead, if it has anything."""

_SHOWN_MAX: Final = 5


def settings_at_start(settings: Mapping[str, str]) -> dict[str, str]:
    """Those for which brokers have to be restarted."""
    return {name: value for name, value in settings.items() if name not in LIVE_SETTINGS}


def live_settings(config: Mapping[str, str]) -> dict[str, str]:
    """Those of `spec.brokers.config` that brokers take while they run."""
    return {name: value for name, value in config.items() if name in LIVE_SETTINGS}


@dataclass(frozen=True, slots=True)
class SettingsPlan:
    """What is left to do about settings that need no restart.

    `changes` are to be put as the default of all brokers, `leaving` are to be taken back; those of them that
    are `gone` have no default any more. `others` are defaults that are left to who set them, though the
    manifest says something else. `managed` are the names to note in the status. `untested` says that the
    files are to get a value that no broker has said it takes. `sent` says that all was put that there was
    to put: only who sees it as it should be is done. `waiting` says why it is not known what there is to do,
    or why it could not be done, `kept` why what is leaving can't go yet, `refused` what brokers say against
    the changes.
    """

    changes: Mapping[str, str] = field(default_factory=dict)
    leaving: tuple[str, ...] = ()
    gone: frozenset[str] = frozenset()
    others: Mapping[str, str] = field(default_factory=dict)
    managed: tuple[str, ...] = ()
    untested: bool = False
    sent: bool = False
    waiting: str = ""
    kept: str = ""
    refused: Condition | None = None

    @property
    def summary(self) -> str:
        """The changes, for people."""
        return _listed([*_lines(self.changes), *(f"{name} removed" for name in sorted(self.leaving))])

    @property
    def obstacle(self) -> str:
        """Why what is left is not done."""
        return self.waiting or self.kept if self.refused is None else self.refused.message

    @property
    def blocked_by(self) -> str:
        """Why files stay as they are, and no broker is restarted: with a new value it might not come back.

        Values that files have already hinder nothing: what else is in the manifest must get there, also if
        brokers answer no client or don't know a setting. It may be what mends them.
        """
        if not self.untested:
            return ""
        return self.waiting if self.refused is None else self.refused.message


def managed_settings(status: Object | None) -> tuple[str, ...]:
    """The names that a BrokerCluster's status notes."""
    return tuple((status or {}).get("managedSettings") or ())


def plan_settings(
    cluster: ClusterSpec,
    status: Object | None,
    filed: Mapping[str, str] | None,
    file: Mapping[str, str],
    present: Mapping[str, str] | None = None,
) -> SettingsPlan:
    """What is to be done; before any request, as far as it is known.

    What files have and no status notes is from before there were notes: a default that differs from it has
    been set by others, and held. It holds on, until the manifest says something new.

    Args:
        filed: what is in the brokers' files; None if there are none.
        file: what is to be in them.
        present: the defaults of all brokers; None before they are read.
    """
    live, noted = live_settings(cluster.brokers.config), managed_settings(status)
    new = {name: value for name, value in live.items() if not same_value((filed or {}).get(name), value)}
    leaving = tuple(name for name in noted if name not in live)
    plan = SettingsPlan(
        new, leaving, managed=tuple(sorted({*noted, *new})), untested=filed is not None and bool(new)
    )
    if present is None:
        return plan
    others = {
        name: present[name]
        for name, value in live.items()
        if name not in plan.managed and not same_value(present.get(name, value), value)
    }
    instead = {name: value for name, value in {**_OFF, **file}.items() if name in leaving and name in present}
    return replace(
        plan,
        changes={
            name: value
            for name, value in {**live, **instead}.items()
            if name not in others and not same_value(present.get(name), value)
        },
        gone=frozenset(leaving) - present.keys(),
        others=others,
        managed=tuple(sorted({*noted, *live} - others.keys())),
    )


def plan_refused(plan: SettingsPlan, sentence: str) -> SettingsPlan:
    """A plan that brokers refused, with their sentence."""
    files = (
        "No broker is restarted, and their files stay as they are, until spec.brokers.config is corrected."
        if plan.untested
        else "It is in their files, so those that start have it if they take it then."
    )
    text = f"{sentence} Nothing of this is set: {_listed(_lines(plan.changes))}. {files}"
    return replace(plan, refused=Condition("SettingsRefused", True, "InvalidConfig", text))


def brokers_behind(
    leaving: Collection[str], reported_files: Mapping[int, Mapping[str, str]], file: Mapping[str, str]
) -> frozenset[int]:
    """The brokers that started with another value of a setting that leaves than their file has now.

    Args:
        reported_files: what each broker that answers has from its file.
        file: what is in the files; of settings that leave they all have the same.
    """
    return frozenset(
        broker
        for broker, values in reported_files.items()
        if not all(same_value(values.get(name), file.get(name)) for name in leaving)
    )


def plan_unset(
    plan: SettingsPlan,
    brokers: Component,
    reported_brokers: Collection[int],
    behind: Collection[int],
    *,
    rolling: bool,
) -> SettingsPlan:
    """Whether what is leaving can go now; `kept` says why not.

    Pods that are missing or have no node yet are not waited for: they will start with the files there are.

    Args:
        reported_brokers: the brokers that reported what they have from their files.
        behind: those of them that have to be restarted first.
        rolling: whether a broker is to be restarted or to go: the old value holds until all run with what
            replaces it.
    """
    silent = {
        index
        for index, pod in brokers.pods.items()
        if pod.deleting or (pod.scheduled and index not in reported_brokers)
    }
    if plan.blocked_by or plan.waiting:
        kept = plan.blocked_by or plan.waiting
    elif behind:
        kept = f"{_brokers(behind)} started with it."
    elif silent:
        kept = f"there is no report of the settings at the start of {_brokers(silent)}."
    elif rolling or not reported_brokers:
        kept = "brokers are to be restarted or removed."
    else:
        kept = ""
    return replace(plan, kept=kept)


def _lines(settings: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(settings.items())]


def _listed(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _SHOWN_MAX} more" if len(parts) > _SHOWN_MAX else ""
    return ", ".join(parts[:_SHOWN_MAX]) + more


def _brokers(indices: Collection[int]) -> str:
    shown = ", ".join(str(index) for index in sorted(indices)[:_SHOWN_MAX])
    return f"broker {shown}" if len(indices) == 1 else f"each of the brokers {shown}"


def settings_left(plan: SettingsPlan | None) -> tuple[str, str] | None:
    """Why settings are not as the manifest says yet: a reason and a sentence; None if they are."""
    if plan is None:
        return None
    if plan.refused is not None:
        return plan.refused.type, plan.refused.message
    if plan.waiting:
        files = " Until then files stay as they are, and no broker is restarted." if plan.blocked_by else ""
        return "ChangingSettings", f"Settings that need no restart wait: {plan.waiting}{files}"
    if plan.sent:
        return "ChangingSettings", f"Set, but not yet reported by all brokers: {plan.summary}."
    if plan.summary:
        kept = f" Waiting: {plan.kept}" if plan.kept else ""
        return "ChangingSettings", f"To be set without a restart: {plan.summary}.{kept}"
    return None


def set_by_others(plan: SettingsPlan | None) -> Condition | None:
    """The condition for defaults of others that take precedence over the manifest."""
    if plan is None or not plan.others:
        return None
    text = (
        f"Someone else has set this for all brokers, and it takes precedence over spec.brokers.config:"
        f" {_listed(_lines(plan.others))}. Write it into spec.brokers.config, or remove it:"
        f" mainstem config unset --all-brokers {' '.join(sorted(plan.others))}."
    )
    return Condition("SettingsOverridden", True, "SetByOthers", text)
