"""Which settings hold without a restart, what is put, and what is taken back when (R25)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.operator.snapshots import cluster, component, snapshot, with_pod

from mainstem_broker.config.broker_settings import BROKER_SETTINGS
from mainstem_operator.api.clusters import MANAGED_SETTINGS, ClusterSpec
from mainstem_operator.cluster.broker_manifests import Placement, config_hash, settings_of
from mainstem_operator.cluster.rolling_restart import plan_broker_roll, unless_blocked
from mainstem_operator.cluster.settings.known import KNOWN_SETTINGS
from mainstem_operator.cluster.settings.plan import (
    LIVE_SETTINGS,
    SettingsPlan,
    brokers_behind,
    live_settings,
    plan_refused,
    plan_settings,
    plan_unset,
)
from mainstem_operator.cluster.status import Work, cluster_conditions, cluster_status, plan_lines
from mainstem_operator.proofs import PodDeletion, Refusal

NOWHERE = Placement({}, {})
PLAN_ONLY = {"mainstem.dev/plan-only": "true"}


def configured(config: Mapping[str, Any], annotations: Mapping[str, str] | None = None) -> ClusterSpec:
    return cluster(annotations=annotations, brokers={"config": dict(config)})


def noted(*names: str) -> dict[str, Any]:
    return {"managedSettings": list(names)}


def plan_of(
    spec: ClusterSpec, status: Mapping[str, Any] | None, present: Mapping[str, str] | None, **filed: str
) -> SettingsPlan:
    """Where the files there are as they should be, but for `filed`, by names with _ for dots."""
    file = settings_of(spec, 0, NOWHERE)
    there = {**file, **{name.replace("_", "."): value for name, value in filed.items()}}
    return plan_settings(spec, status, there, file, present)


def test_live_are_the_settings_that_brokers_say_they_take_while_they_run() -> None:
    """The operator's list is the broker's own: whoever changes one is told of the other."""
    dynamic = {name for name, setting in BROKER_SETTINGS.items() if setting.dynamic != "read-only"}
    assert dynamic - LIVE_SETTINGS == {
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
    }, "they go round with a roll"
    assert dynamic >= LIVE_SETTINGS
    assert not LIVE_SETTINGS & MANAGED_SETTINGS


def test_known_are_the_settings_of_the_brokers_own_table() -> None:
    assert BROKER_SETTINGS.keys() == KNOWN_SETTINGS


PLAIN = "listener.name.outside.plain"
TOKENS = "listener.name.outside.oauthbearer.sasl.oauthbearer.expected.audience"


def test_a_setting_that_brokers_do_not_know_is_named_in_a_condition() -> None:
    """Brokers only log it, and a misspelled retention fills the disk."""

    def unknown(config: Mapping[str, Any]) -> list[str]:
        conditions = cluster_conditions(configured(config), snapshot(), Work(), None)
        return [item.message for item in conditions if item.type == "SettingsUnknown"]

    (message,) = unknown({"log.retention.houres": "7", "log.retention.ms": "7"})
    assert "log.retention.houres" in message
    assert "log.retention.ms" not in message
    known = ("log.retention.ms", "listener.name.outside.max.connections", f"{PLAIN}.sasl.jaas.config", TOKENS)
    assert unknown(dict.fromkeys(known, "7")) == []
    (message,) = unknown({"listener.name.outside.max.conections": "7", f"{PLAIN}.sasl.jas.config": "7"})
    assert "listener.name.outside.max.conections, " in message


@pytest.mark.parametrize(
    "name", ["log.retention.houres", "zookeeper.set.acl", f"{PLAIN}.connections.max.reauth.ms"]
)
def test_a_setting_that_brokers_do_not_know_is_not_in_their_files(name: str) -> None:
    """R25: with some of them a broker does not start, which nobody would see before its node is lost."""
    unknown, plain = configured({"num.partitions": 7, name: "true"}), configured({"num.partitions": 7})
    assert settings_of(unknown, 0, NOWHERE) == settings_of(plain, 0, NOWHERE)
    assert config_hash(unknown, NOWHERE) == config_hash(plain, NOWHERE)


def test_a_wrong_value_that_would_let_nobody_in_is_not_on_all_brokers_at_once() -> None:
    few = configured({"max.connections": 1})
    assert live_settings(few.brokers.config) == {}
    assert config_hash(few, NOWHERE) != config_hash(cluster(), NOWHERE)


def test_files_hold_every_setting_and_only_those_that_are_not_live_restart_brokers() -> None:
    plain = configured({"num.partitions": 7})
    mixed = configured({"num.partitions": 7, "log.retention.ms": 60_000, "min.insync.replicas": 3})
    assert settings_of(mixed, 0, NOWHERE) == {
        **settings_of(plain, 0, NOWHERE),
        "log.retention.ms": "60000",
        "min.insync.replicas": "3",
    }
    assert config_hash(mixed, NOWHERE) == config_hash(plain, NOWHERE) != config_hash(cluster(), NOWHERE)


def test_a_live_setting_of_our_own_restarts_brokers_where_the_manifest_names_none() -> None:
    """`min.insync.replicas` of one broker and of three; nobody puts it as a default."""
    assert config_hash(cluster(1), NOWHERE) != config_hash(cluster(3), NOWHERE)


def test_what_differs_is_set_and_what_is_as_it_should_be_is_not() -> None:
    expected = configured({"log.retention.ms": 60_000, "log.segment.bytes": 1_048_576, "num.partitions": 3})
    names = ("log.retention.ms", "log.segment.bytes")
    plan = plan_of(expected, noted("log.retention.ms"), {"log.retention.ms": "60000"})
    assert plan == SettingsPlan({"log.segment.bytes": "1048576"}, managed=names)
    present = {"log.retention.ms": "60000", "log.segment.bytes": "1048576"}
    assert plan_of(expected, None, present) == SettingsPlan(managed=names)


def test_a_setting_that_is_spelled_otherwise_is_neither_set_nor_taken_for_that_of_others() -> None:
    """Brokers print the value that they have parsed."""
    expected = configured({"unclean.leader.election.enable": "False", "log.retention.ms": "060000"})
    present = {"unclean.leader.election.enable": "false", "log.retention.ms": "60000"}
    names = ("log.retention.ms", "unclean.leader.election.enable")
    assert plan_of(expected, noted(*names), present) == SettingsPlan(managed=names)
    assert plan_of(expected, None, present).others == {}
    assert plan_of(expected, noted(*names), {**present, names[1]: "true"}).changes == {names[1]: "False"}


def test_a_change_by_others_of_what_the_manifest_names_is_put_back() -> None:
    expected = configured({"log.retention.ms": 60_000})
    result = plan_of(expected, noted("log.retention.ms"), {"log.retention.ms": "1"})
    assert result.changes == {"log.retention.ms": "60000"}


def test_what_an_earlier_manifest_named_is_to_go_and_what_none_named_is_left() -> None:
    present = {"log.retention.ms": "60000", "log.segment.bytes": "1048576"}
    plan = plan_of(cluster(), noted("log.retention.ms"), present)
    assert (plan.changes, plan.leaving) == ({}, ("log.retention.ms",))
    assert plan.managed == ("log.retention.ms",), "noted until it is done"
    assert plan_of(cluster(), None, present) == SettingsPlan()


def test_of_what_nobody_was_asked_about_new_lines_of_the_files_are_known_and_noted() -> None:
    expected = configured({"log.retention.ms": 60_000, "log.segment.bytes": 1_048_576})
    plan = plan_of(expected, noted("message.max.bytes"), None, log_retention_ms="1")
    changes, names = {"log.retention.ms": "60000"}, ("log.retention.ms", "message.max.bytes")
    assert plan == SettingsPlan(changes, ("message.max.bytes",), managed=names, untested=True)
    assert not plan_of(expected, None, None).untested
    bare = plan_settings(expected, None, None, settings_of(expected, 0, NOWHERE))
    assert bare.managed == ("log.retention.ms", "log.segment.bytes"), "all is new"
    assert not bare.untested


def test_what_others_set_before_there_were_notes_holds_on_until_the_manifest_says_something_new() -> None:
    """An upgrade without an edit must not bring a shorter retention about."""
    day, year = configured({"log.retention.ms": 86_400_000}), {"log.retention.ms": "31536000000"}
    plan = plan_of(day, None, year)
    assert plan == SettingsPlan(others=year)
    condition = conditions(day, Work(settings=plan))["SettingsOverridden"]
    assert condition.message == (
        "Someone else has set this for all brokers, and it takes precedence over spec.brokers.config:"
        " log.retention.ms=31536000000. Write it into spec.brokers.config, or remove it:"
        " mainstem config unset --all-brokers log.retention.ms."
    )
    assert conditions(day, Work(settings=plan))["Stable"].holds
    edited = plan_of(day, None, year, log_retention_ms="172800000")
    assert (edited.changes, edited.others) == ({"log.retention.ms": "86400000"}, {})
    agreed = plan_of(configured(year), None, year, log_retention_ms="86400000")
    assert (agreed.changes, agreed.managed) == ({}, ("log.retention.ms",))
    taken_back = plan_of(day, None, {})
    assert (taken_back.changes, taken_back.managed) == (
        {"log.retention.ms": "86400000"},
        ("log.retention.ms",),
    )


# --- Taking back ---

LEAVING = SettingsPlan(leaving=("log.retention.ms",), managed=("log.retention.ms",))
EVERY = (0, 1, 2)


def test_behind_are_brokers_that_started_with_another_value_than_their_file_has() -> None:
    file = {"min.insync.replicas": "2"}
    reported = {
        0: {"min.insync.replicas": "3"},
        1: {"min.insync.replicas": "2"},
        2: {"log.retention.ms": "1"},
    }
    assert brokers_behind(["min.insync.replicas"], reported, file) == {0, 2}
    assert brokers_behind(["log.retention.ms"], reported, file) == {2}
    assert brokers_behind([], reported, file) == set()
    assert brokers_behind(["min.insync.replicas"], reported, {"min.insync.replicas": "02"}) == {0, 2}


def test_a_broker_that_is_behind_is_restarted_as_for_any_setting() -> None:
    roll = plan_broker_roll(cluster(), snapshot(), "hash", behind={1})
    assert [(item.pod.index, item.reason) for item in roll.restarts] == [(1, "its settings have changed")]
    assert isinstance(roll.step, PodDeletion)


@pytest.mark.parametrize(
    ("message", "behind", "rolling", "kept"),
    [
        (EVERY, (), False, ""),
        (EVERY, (1,), True, "broker 1 started with it."),
        ((0, 2), (0, 2), True, "each of the brokers 0, 2 started with it."),
        ((0, 2), (), False, "there is no report of the settings at the start of broker 1."),
        (EVERY, (), True, "brokers are to be restarted or removed."),
    ],
)
def test_a_default_goes_when_no_broker_started_with_it_and_none_is_to_be_restarted(
    message: tuple[int, ...], behind: tuple[int, ...], rolling: bool, kept: str
) -> None:
    assert plan_unset(LEAVING, component("broker"), message, behind, rolling=rolling).kept == kept


def test_a_default_stays_while_it_is_not_known_what_there_is_to_do() -> None:
    waiting = replace(LEAVING, waiting="no broker answers.")
    assert plan_unset(waiting, component("broker"), EVERY, (), rolling=False).kept == "no broker answers."


def test_a_default_stays_while_a_pod_is_going_but_waits_for_none_that_is_still_to_start() -> None:
    going = with_pod(component("broker"), 2, deleting=True)
    assert plan_unset(LEAVING, going, EVERY, (), rolling=False).kept
    pending = with_pod(component("broker"), 2, node=None)
    for brokers in component("broker", 2, replicas=3), pending:
        assert plan_unset(LEAVING, brokers, (0, 1), (), rolling=False).kept == ""
    assert plan_unset(LEAVING, component("broker", 0, replicas=3), (), (), rolling=False).kept


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [("unclean.leader.election.enable", "true", "false"), ("min.insync.replicas", "1", "2")],
)
def test_what_costs_records_is_off_at_once_and_its_default_goes_when_it_can(
    name: str, value: str, instead: str
) -> None:
    plan = plan_of(cluster(), noted(name), {name: value})
    assert (plan.changes, plan.leaving) == ({name: instead}, (name,))
    plan = plan_of(cluster(), noted(name), {name: instead})
    assert (plan.changes, plan.leaving, plan.gone) == ({}, (name,), frozenset())
    plan = plan_of(cluster(), noted(name), {})
    assert (plan.changes, plan.leaving, plan.gone) == ({}, (name,), frozenset({name})), "it is not put again"


# --- Histories ---

NAMES = ["log.retention.ms", "log.segment.bytes", "min.insync.replicas"]
CONFIGS = st.dictionaries(st.sampled_from([*NAMES, "num.partitions"]), st.sampled_from(["5", "6", "7"]))
STEPS = st.one_of(
    st.tuples(st.just("edit"), CONFIGS),
    st.tuples(st.just("crash"), st.sampled_from(EVERY)),
    st.tuples(st.sampled_from(["away", "missing"]), st.sampled_from(EVERY)),
    st.tuples(st.just("pass"), st.sampled_from([1, 2, 3, 4, 5, 99])),
)
"""An edit; a broker that restarts of itself, that runs and answers nobody for a while, or whose pod can't be
placed until it starts; a pass of the operator, which dies after its n-th act."""

OUT_OF_REACH: Final = [("crash", 2), ("away", 2)]


class Died(Exception):
    pass


class World:
    """Brokers with the files that they started with, what is set for all, and the operator's acts on them."""

    def __init__(self, others: Mapping[str, str]) -> None:
        self.config: dict[str, str] = {}
        self.defaults = dict(others)
        self.status: dict[str, Any] = {}
        self.file = self._file()
        self.hash = config_hash(self.spec, NOWHERE)
        self.started = {broker: dict(self.file) for broker in EVERY}
        self.hashes = dict.fromkeys(EVERY, self.hash)
        self.away: set[int] = set()
        self.missing: set[int] = set()
        self.allowed: dict[str, set[str | None]] = {}
        self.acts_left = 0
        self.restarted = 0
        self.ever_noted: set[str] = set()
        self.allow()

    @property
    def spec(self) -> ClusterSpec:
        return configured(self.config)

    def _file(self) -> dict[str, str]:
        return settings_of(self.spec, 0, NOWHERE)

    def says(self, name: str) -> str | None:
        return self._file().get(name)

    def in_effect(self, broker: int, name: str) -> str | None:
        return self.defaults.get(name, self.started[broker].get(name))

    def allow(self) -> None:
        for name in NAMES:
            self.allowed.setdefault(name, {self.in_effect(0, name)}).add(self.says(name))

    def check(self) -> None:
        for name in NAMES:
            for broker in set(EVERY) - self.missing:
                result = self.in_effect(broker, name)
                assert result in self.allowed[name], f"broker {broker} runs with {name}={result}"

    def edit(self, config: Mapping[str, str]) -> None:
        self.config = dict(config)
        self.allow()

    def start(self, broker: int) -> None:
        self.started[broker] = dict(self.file)
        self.hashes[broker] = self.hash
        self.away.discard(broker)
        self.missing.discard(broker)
        self.check()

    def act(self) -> None:
        self.check()
        self.acts_left -= 1
        if self.acts_left == 0:
            raise Died

    def look(self) -> bool:
        """One pass, as `reconcile_cluster` has it; whether all is at rest."""
        spec = self.spec
        plan = plan_settings(spec, self.status, self.file, self._file(), self.defaults)
        self.act()
        self.status = noted(*plan.managed)
        self.ever_noted |= set(plan.managed)
        self.act()
        self.defaults |= plan.changes
        self.act()
        self.file, self.hash = self._file(), config_hash(spec, NOWHERE)
        self.act()
        reported = {
            broker: self.started[broker] for broker in EVERY if broker not in self.away | self.missing
        }
        behind = brokers_behind(plan.leaving, reported, self.file)
        seen = snapshot()
        for broker in EVERY:
            node = None if broker in self.missing else "node"
            pods = with_pod(seen.brokers, broker, config_hash=self.hashes[broker], node=node)
            seen = replace(seen, brokers=pods)
        roll = plan_broker_roll(spec, seen, self.hash, behind=behind)
        plan = plan_unset(plan, seen.brokers, reported, behind, rolling=bool(roll.restarts))
        if roll.restarts:
            self.restarted += 1
            self.start(roll.restarts[0].pod.index)
        if plan.leaving and not plan.kept:
            for name in plan.leaving:
                self.defaults.pop(name, None)
            self.act()
            self.status = noted(*(name for name in plan.managed if name not in plan.gone))
        self.check()
        if plan.changes or plan.leaving or roll.restarts:
            return False
        self.allowed = {name: {self.in_effect(0, name)} for name in NAMES}
        self.check()
        return not self.missing

    def rest(self) -> None:
        self.away.clear()
        for broker in sorted(self.missing):
            self.start(broker)
        self.acts_left = 10**6
        for _ in range(10):
            if self.look():
                return
        pytest.fail("it comes to no rest")


@settings(max_examples=300)
@given(others=st.dictionaries(st.sampled_from(NAMES), st.just("9")), history=st.lists(STEPS, max_size=25))
@example({}, [("edit", {NAMES[0]: "5"}), ("pass", 99), *OUT_OF_REACH, ("edit", {}), ("pass", 99)])
@example({}, [("edit", {NAMES[2]: "7"}), ("pass", 99), *OUT_OF_REACH, ("edit", {}), ("pass", 99)])
def test_in_any_history_a_broker_runs_with_what_the_manifest_said_or_says_and_in_the_end_with_that(
    others: dict[str, str], history: list[tuple[str, Any]]
) -> None:
    """Never with Kafka's own default in between, whoever restarts or dies whenever."""
    world = World(others)
    for step, what in history:
        match step:
            case "edit":
                world.edit(what)
            case "crash":
                world.start(what)
            case "away":
                world.away.add(what)
            case "missing":
                world.missing.add(what)
            case _:
                world.acts_left = what
                try:
                    world.look()
                except Died:
                    pass
        world.check()
    world.rest()
    for name in NAMES:
        expected = world.says(name) if name in world.ever_noted else others.get(name, world.says(name))
        assert {world.in_effect(broker, name) for broker in EVERY} == {expected}, name
    assert {name: value for name, value in world.defaults.items() if name not in world.ever_noted} == {
        name: value for name, value in others.items() if name not in world.ever_noted
    }
    assert set(world.status["managedSettings"]) == live_settings(world.config).keys()


# --- What is reported ---


def conditions(spec: ClusterSpec, work: Work, present: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {item.type: item for item in cluster_conditions(spec, snapshot(), work, present)}


CHANGES = SettingsPlan(
    {"log.retention.ms": "60000"}, ("message.max.bytes",), managed=("log.retention.ms",), untested=True
)
TOLD = "log.retention.ms=60000, message.max.bytes removed"
SENTENCE = "Invalid value 'soon' for log.retention.ms: it must be of type long."


def test_the_plan_names_what_would_be_set_and_why_it_waits() -> None:
    (line,) = plan_lines(Work(settings=CHANGES))
    assert line == {"action": "ChangeSettings", "target": TOLD, "reason": "brokers take them while they run"}
    kept = replace(CHANGES, kept="broker 1 started with it.")
    (line,) = plan_lines(Work(settings=kept))
    assert line["waitingFor"] == "broker 1 started with it."
    result = conditions(configured({}, PLAN_ONLY), Work(settings=kept))
    assert (result["Stable"].reason, result["Ready"].holds) == ("ChangingSettings", True)
    assert result["Stable"].message == f"To be set without a restart: {TOLD}. Waiting: {kept.kept}"


def test_a_cluster_is_not_stable_before_what_was_put_is_seen() -> None:
    result = conditions(cluster(), Work(settings=replace(CHANGES, sent=True)))
    assert (result["Stable"].holds, result["Stable"].reason) == (False, "ChangingSettings")
    assert result["Stable"].message == f"Set, but not yet reported by all brokers: {TOLD}."
    assert plan_lines(Work(settings=replace(CHANGES, sent=True))) == []


def test_a_refusal_is_a_condition_with_the_brokers_own_sentence_and_ends_the_roll() -> None:
    plan = plan_refused(CHANGES, SENTENCE)
    roll = unless_blocked(plan_broker_roll(cluster(), snapshot(), "another"), plan.blocked_by)
    assert roll.restarts
    assert isinstance(roll.step, Refusal)
    result = conditions(cluster(), Work(brokers=roll, settings=plan))
    refused = result["SettingsRefused"]
    assert (refused.holds, refused.reason) == (True, "InvalidConfig")
    assert refused.message.startswith(f"{SENTENCE} Nothing of this is set: log.retention.ms=60000. No broker")
    assert (result["Stable"].holds, result["Stable"].reason) == (False, "SettingsRefused")
    assert result["Ready"].holds, "it goes on as it is"
    lines = plan_lines(Work(brokers=roll, settings=plan))
    assert all(SENTENCE in line["waitingFor"] for line in lines[:2])


def test_while_nobody_says_whether_a_new_value_is_right_brokers_are_left_alone() -> None:
    waiting = replace(CHANGES, waiting="Broker 1 was not asked in time.")
    assert waiting.blocked_by == waiting.waiting
    sentence = "Settings that need no restart wait: Broker 1 was not asked in time."
    for spec in cluster(), cluster(5):
        result = conditions(spec, Work(settings=waiting))
        assert (
            result["Stable"].message
            == f"{sentence} Until then files stay as they are, and no broker is restarted."
        )
        assert "SettingsRefused" not in result


def test_values_that_files_have_already_hinder_nothing_and_what_goes_on_is_reported_first() -> None:
    current = replace(CHANGES, untested=False)
    waiting = replace(current, waiting="No broker of events:9092 answered.")
    refused = plan_refused(current, SENTENCE)
    roll = plan_broker_roll(cluster(), snapshot(), "another")
    for plan in waiting, refused:
        assert plan.blocked_by == ""
        assert unless_blocked(roll, plan.blocked_by) == roll
        assert conditions(cluster(), Work(brokers=roll, settings=plan))["Stable"].reason == "Rolling"
        assert conditions(cluster(5), Work(settings=plan))["Stable"].reason == "Starting"
    result = conditions(cluster(), Work(settings=refused))
    assert (result["Stable"].reason, result["SettingsRefused"].holds) == ("SettingsRefused", True)
    assert result["Stable"].message.endswith("so those that start have it if they take it then.")
    result = conditions(cluster(), Work(settings=waiting))
    assert result["Stable"].message == f"Settings that need no restart wait: {waiting.waiting}"


def test_the_note_stays_where_nobody_looked_and_goes_with_the_last_setting() -> None:
    present = noted("log.retention.ms")

    def status(work: Work) -> Any:
        return cluster_status(cluster(), snapshot(), work, present).get("managedSettings")

    assert status(Work()) == ["log.retention.ms"]
    named = replace(CHANGES, managed=("log.retention.ms", "message.max.bytes"))
    assert status(Work(settings=named)) == ["log.retention.ms", "message.max.bytes"]
    assert status(Work(settings=plan_refused(named, SENTENCE))) == ["log.retention.ms"]
    assert status(Work(settings=SettingsPlan())) is None


def test_of_many_changes_the_first_are_shown() -> None:
    many = SettingsPlan({f"setting.{number}": "1" for number in range(8)})
    assert many.summary.endswith("setting.4=1 and 3 more")
