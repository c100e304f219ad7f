"""The whole operator: settings that brokers take while they run are put, and nothing is restarted (R25)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_kubernetes import Kubernetes, Manifest
from tests.support.running_operator import RunningOperator, running_operator

from mainstem_operator.admin import Brokers, BrokersRefused, BrokersUnreachable

Scenario = Callable[[RunningOperator], Awaitable[None]]
Play = Callable[[Scenario], None]


class PlayedBrokers:
    """What is set for all brokers, and the file that each started with.

    `says` is what is wrong with a change, if anything; `code` Kafka's name for that.
    """

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.started: dict[str, dict[str, str]] = {}
        self.questions = 0
        self.asked_files: list[list[int]] = []
        self.changes: list[dict[str, str | None]] = []
        self.says: Callable[[Mapping[str, str | None]], str] = lambda changes: ""
        self.code = "INVALID_CONFIG"
        self.reachable = True
        self.silent: set[int] = set()
        self.dies_after_a_change = False
        self.kubernetes: Kubernetes | None = None

    def of(self, kubernetes: Kubernetes) -> None:
        """From here on: what pods have is the file that is there when they are first seen."""
        self.kubernetes = kubernetes
        self.see_starts()

    def see_starts(self) -> None:
        if self.kubernetes is None:
            return
        for pod in self.kubernetes.find("pods"):
            if "broker" in pod["metadata"]["name"]:
                self.started.setdefault(pod["metadata"]["uid"], settings_in(self.kubernetes))

    async def tell(self) -> dict[str, str]:
        self.questions += 1
        self.see_starts()
        if not self.reachable:
            raise BrokersUnreachable("No broker of events:9092 answered.")
        return dict(self.values)

    async def tell_files(self, names: Collection[str], brokers: Collection[int]) -> dict[int, dict[str, str]]:
        assert self.kubernetes is not None
        self.see_starts()
        self.asked_files.append(sorted(brokers))
        found = {}
        for broker in set(brokers) - self.silent:
            started = self.started[self.kubernetes.get("pods", f"events-broker-{broker}")["metadata"]["uid"]]
            found[broker] = {name: value for name, value in started.items() if name in names}
        return found

    async def check(self, changes: Mapping[str, str | None]) -> None:
        if sentence := self.says(changes):
            raise BrokersRefused(self.code, sentence)

    async def take(self, changes: Mapping[str, str | None]) -> None:
        await self.check(changes)
        self.changes.append(dict(changes))
        for name, value in changes.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
        if self.dies_after_a_change:
            await asyncio.Event().wait()  # for the operator to be ended here


@pytest.fixture
def defaults(monkeypatch: pytest.MonkeyPatch) -> PlayedBrokers:
    played = PlayedBrokers()
    monkeypatch.setattr(Brokers, "default_settings", lambda _: played.tell())
    monkeypatch.setattr(Brokers, "file_settings", lambda _, names, brokers: played.tell_files(names, brokers))
    monkeypatch.setattr(Brokers, "check_default_settings", lambda _, changes: played.check(changes))
    monkeypatch.setattr(Brokers, "change_default_settings", lambda _, changes: played.take(changes))
    return played


def settings_in(kubernetes: Kubernetes) -> dict[str, str]:
    """What is in the brokers' files."""
    text = kubernetes.get("configmaps", "events-broker")["data"]["broker-0.properties"]
    return dict(line.split("=", 1) for line in text.splitlines())


def cluster(annotations: Mapping[str, str] | None = None, **config: Any) -> Manifest:
    return {
        "apiVersion": "mainstem.dev/v1beta1",
        "kind": "Cluster",
        "metadata": {"name": "events", "namespace": "default", "annotations": dict(annotations or {})},
        "spec": {
            "brokers": {
                "replicas": 3,
                "config": {name.replace("_", "."): value for name, value in config.items()},
            }
        },
    }


def broker_uids(kubernetes: Kubernetes) -> set[str]:
    pods = kubernetes.find("pods")
    return {pod["metadata"]["uid"] for pod in pods if "broker" in pod["metadata"]["name"]}


def events(kubernetes: Kubernetes, reason: str) -> list[str]:
    return [event["message"] for event in kubernetes.find("events") if event["reason"] == reason]


def managed(kubernetes: Kubernetes) -> list[str]:
    found: list[str] = kubernetes.get("clusters", "events")["status"].get("managedSettings", [])
    return found


def plan(kubernetes: Kubernetes) -> str:
    return str(kubernetes.get("clusters", "events")["status"].get("plan"))


def told(operator: RunningOperator, type_: str) -> str:
    conditions = operator.kubernetes.get("clusters", "events")["status"]["conditions"]
    return next((str(item["message"]) for item in conditions if item["type"] == type_), "")


async def stable(operator: RunningOperator) -> None:
    await operator.condition("clusters", "events", "Stable", "True")


def test_a_live_setting_is_put_and_nothing_restarts(play: Play, defaults: PlayedBrokers) -> None:
    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        defaults.values = {"max.connections": "99"}  # somebody's, and nobody else's business
        kubernetes.apply(cluster())
        await stable(operator)
        defaults.of(kubernetes)
        assert defaults.questions == 0, "no such setting is named"
        before = broker_uids(kubernetes)
        kubernetes.apply(cluster(log_retention_ms=60_000))
        await stable(operator)
        assert defaults.values == {"max.connections": "99", "log.retention.ms": "60000"}
        assert events(kubernetes, "SettingsChanged") == ["log.retention.ms=60000, without a restart."]
        assert managed(kubernetes) == ["log.retention.ms"]
        assert settings_in(kubernetes)["log.retention.ms"] == "60000", "for brokers that start"
        # No broker has started with it: taken out of the manifest it is as it was.
        assert defaults.asked_files == []
        kubernetes.apply(cluster())
        await stable(operator)
        assert defaults.values == {"max.connections": "99"}
        assert managed(kubernetes) == []
        assert broker_uids(kubernetes) == before
        assert events(kubernetes, "RestartingPod") == []
        assert "log.retention.ms" not in settings_in(kubernetes)
        assert defaults.asked_files[-1] == [0, 1, 2]

    play(scenario)


def test_what_brokers_started_with_is_taken_back_by_a_roll_and_the_default_goes_last(
    play: Play, defaults: PlayedBrokers
) -> None:
    """From milliseconds to hours: else Kafka's own retention would hold in between, and delete."""

    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster(log_retention_ms=60_000))
        await stable(operator)
        defaults.of(kubernetes)
        before, restarts_at_change = broker_uids(kubernetes), list[int]()

        def says(changes: Mapping[str, str | None]) -> str:
            restarts_at_change.append(len(events(kubernetes, "RestartingPod")))
            return ""

        defaults.says = says
        kubernetes.apply(cluster(log_retention_hours=3))
        await stable(operator)
        assert not before & broker_uids(kubernetes)
        assert (defaults.values, managed(kubernetes)) == ({}, [])
        assert restarts_at_change == [3]
        assert len(events(kubernetes, "RestartingPod")) == 3

    play(scenario)


def test_a_broker_that_has_the_old_value_in_its_file_is_restarted_and_one_that_is_silent_is_waited_for(
    play: Play, defaults: PlayedBrokers
) -> None:
    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster())
        await stable(operator)
        defaults.of(kubernetes)
        kubernetes.apply(cluster(log_retention_ms=60_000))
        await stable(operator)
        uid = kubernetes.get("pods", "events-broker-1")["metadata"]["uid"]
        defaults.started[uid] = settings_in(kubernetes)  # its container has ended and begun again
        defaults.silent = {2}
        kubernetes.apply(cluster())
        await operator.until(lambda: uid not in broker_uids(kubernetes), "it is restarted")
        await operator.until(lambda: "broker 2 can't be asked" in told(operator, "Stable"), "the other waits")
        assert defaults.values == {"log.retention.ms": "60000"}
        assert managed(kubernetes) == ["log.retention.ms"]
        defaults.silent = set()
        kubernetes.annotate("clusters", "events", {"look": "now"})
        await stable(operator)
        assert (defaults.values, managed(kubernetes)) == ({}, [])
        assert len(events(kubernetes, "RestartingPod")) == 1

    play(scenario)


def test_an_idle_look_asks_once_and_writes_nothing(play: Play, defaults: PlayedBrokers) -> None:
    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster(log_retention_ms=60_000))
        await stable(operator)
        await operator.until(lambda: defaults.values != {}, "it is put")
        writes, questions, asked = len(kubernetes.writes), defaults.questions, len(kubernetes.requests)
        kubernetes.set_ready("events-broker-0", True)
        await operator.until(lambda: len(kubernetes.requests) > asked + 15, "a look")
        await operator.until(lambda: defaults.questions > questions, "its question")
        assert kubernetes.writes[writes:] == []
        assert defaults.questions <= questions + 2  # the look may have been one of two
        assert len(defaults.changes) == 1

    play(scenario)


def test_a_change_by_others_of_what_the_manifest_names_is_put_back(
    play: Play, defaults: PlayedBrokers
) -> None:
    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster(log_retention_ms=60_000))
        await stable(operator)
        defaults.values |= {"log.retention.ms": "1", "log.segment.bytes": "1048576"}
        kubernetes.annotate("clusters", "events", {"look": "now"})
        await operator.until(lambda: defaults.values["log.retention.ms"] == "60000", "it is put back")
        assert defaults.values["log.segment.bytes"] == "1048576"

    play(scenario)


def test_of_an_edit_of_both_kinds_the_live_part_comes_first_and_the_rest_rolls(
    play: Play, defaults: PlayedBrokers
) -> None:
    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster())
        await stable(operator)
        before, restarts_at_change = broker_uids(kubernetes), list[int]()

        def says(changes: Mapping[str, str | None]) -> str:
            restarts_at_change.append(len(events(kubernetes, "RestartingPod")))
            return ""

        defaults.says = says
        kubernetes.apply(cluster(log_retention_ms=60_000, num_partitions=7))
        await operator.until(lambda: not before & broker_uids(kubernetes), "each is restarted")
        await stable(operator)
        assert set(restarts_at_change) == {0}, "asked and put before"
        assert len(events(kubernetes, "RestartingPod")) == 3
        settings = kubernetes.get("configmaps", "events-broker")["data"]["broker-0.properties"]
        assert "num.partitions=7\n" in settings
        assert "log.retention.ms=60000\n" in settings

    play(scenario)


def test_what_brokers_refuse_is_told_and_nothing_of_the_edit_is_done(
    play: Play, defaults: PlayedBrokers
) -> None:
    """A broker that started with it would not come back."""
    sentence = "Invalid value 'soon' for log.retention.ms: it must be of type long."

    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster())
        await stable(operator)
        before, files = broker_uids(kubernetes), settings_in(kubernetes)
        defaults.says = lambda changes: sentence if changes.get("log.retention.ms") == "soon" else ""
        kubernetes.apply(cluster(log_retention_ms="soon", log_segment_bytes=1_048_576, num_partitions=7))
        condition = await operator.condition("clusters", "events", "SettingsRefused", "True", "InvalidConfig")
        assert condition["message"].startswith(sentence)
        await operator.condition("clusters", "events", "Stable", "False", "SettingsRefused")
        await operator.condition("clusters", "events", "Ready", "True")
        assert (defaults.values, managed(kubernetes)) == ({}, [])
        assert len(events(kubernetes, "SettingsRefused")) == 1
        lines = kubernetes.get("clusters", "events")["status"]["plan"]
        assert {line["action"] for line in lines} == {"ChangeSettings", "Restart"}
        assert lines[1]["waitingFor"].startswith(sentence)
        questions = defaults.questions
        kubernetes.annotate("clusters", "events", {"look": "now"})
        await operator.until(lambda: defaults.questions > questions, "a look")
        kubernetes.annotate("clusters", "events", {"look": "again"})
        await operator.until(lambda: defaults.questions > questions + 1, "another, when that has ended")
        assert broker_uids(kubernetes) == before
        assert settings_in(kubernetes) == files
        kubernetes.apply(cluster(log_segment_bytes=1_048_576, num_partitions=7))
        await stable(operator)
        assert defaults.values == {"log.segment.bytes": "1048576"}
        assert not before & broker_uids(kubernetes)
        types = {item["type"] for item in kubernetes.get("clusters", "events")["status"]["conditions"]}
        assert "SettingsRefused" not in types

    play(scenario)


def test_an_answer_that_is_no_refusal_of_a_value_is_waited_out(play: Play, defaults: PlayedBrokers) -> None:
    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster())
        await stable(operator)
        before = broker_uids(kubernetes)
        defaults.code, defaults.says = (
            "REQUEST_TIMED_OUT",
            lambda changes: "ZooKeeper did not answer in time.",
        )
        kubernetes.apply(cluster(log_retention_ms=60_000, num_partitions=7))
        await operator.until(lambda: "ZooKeeper did not answer" in told(operator, "Stable"), "it is told")
        assert told(operator, "SettingsRefused") == ""
        assert "log.retention.ms" not in settings_in(kubernetes)
        assert broker_uids(kubernetes) == before
        defaults.says = lambda changes: ""
        kubernetes.annotate("clusters", "events", {"look": "now"})
        await stable(operator)
        assert defaults.values == {"log.retention.ms": "60000"}
        assert not before & broker_uids(kubernetes)

    play(scenario)


def test_a_plan_that_is_only_shown_names_what_would_be_set(play: Play, defaults: PlayedBrokers) -> None:
    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster())
        await stable(operator)
        defaults.of(kubernetes)
        only = {"mainstem.dev/plan-only": "true"}
        kubernetes.apply(cluster(only, log_retention_ms=60_000))
        await operator.condition("clusters", "events", "Stable", "False", "ChangingSettings")
        (line,) = kubernetes.get("clusters", "events")["status"]["plan"]
        assert (line["action"], line["target"]) == ("ChangeSettings", "log.retention.ms=60000")
        assert defaults.values == {}
        assert managed(kubernetes) == ["log.retention.ms"], "since it is in the files, as all settings are"
        assert settings_in(kubernetes)["log.retention.ms"] == "60000"
        kubernetes.annotate("clusters", "events", {"mainstem.dev/plan-only": None})
        await operator.until(lambda: defaults.values == {"log.retention.ms": "60000"}, "it is put")
        kubernetes.apply(cluster(only))
        await operator.until(lambda: "taken back" in told(operator, "Stable"), "the plan")
        assert defaults.values == {"log.retention.ms": "60000"}
        assert managed(kubernetes) == ["log.retention.ms"]

    play(scenario)


def test_while_paused_nothing_is_put_and_what_was_noted_stays(play: Play, defaults: PlayedBrokers) -> None:
    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster(log_retention_ms=60_000))
        await stable(operator)
        defaults.of(kubernetes)
        kubernetes.annotate("clusters", "events", {"mainstem.dev/pause-reconciliation": "true"})
        await operator.condition("clusters", "events", "Paused", "True")
        questions = defaults.questions
        kubernetes.apply(cluster({"mainstem.dev/pause-reconciliation": "true"}))
        await operator.condition("clusters", "events", "Stable", "Unknown", "Paused")
        assert (defaults.questions, managed(kubernetes)) == (questions, ["log.retention.ms"])
        kubernetes.annotate("clusters", "events", {"mainstem.dev/pause-reconciliation": None})
        await operator.until(lambda: defaults.values == {}, "it is taken back")

    play(scenario)


def test_while_no_broker_answers_nothing_is_decided_and_nobody_is_restarted(
    play: Play, defaults: PlayedBrokers
) -> None:
    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster(log_retention_ms=60_000))
        await stable(operator)
        before = broker_uids(kubernetes)
        defaults.reachable = False
        kubernetes.apply(cluster(log_retention_ms=70_000))
        condition = await operator.condition("clusters", "events", "Stable", "False", "ChangingSettings")
        assert "No broker of events:9092 answered." in condition["message"]
        assert managed(kubernetes) == ["log.retention.ms"]
        defaults.reachable = True
        kubernetes.annotate("clusters", "events", {"look": "now"})
        await operator.until(lambda: defaults.values == {"log.retention.ms": "70000"}, "it is put")
        assert broker_uids(kubernetes) == before

    play(scenario)


@pytest.mark.parametrize(
    ("sentence", "edit"),
    [
        ("No broker of events:9092 answered.", {}),
        ("log.retention.ms cannot be changed while brokers run.", {}),
        ("log.retention.ms cannot be changed while brokers run.", {"log_segment_bytes": 1_048_576}),
    ],
)
def test_settings_that_files_have_already_do_not_hinder_a_new_image(
    play: Play, defaults: PlayedBrokers, sentence: str, edit: dict[str, Any]
) -> None:
    """It may be what mends the brokers: such as they are, they answer no client, or don't know a setting."""

    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster(log_retention_ms=60_000))
        await stable(operator)
        before = broker_uids(kubernetes)
        defaults.values, defaults.reachable = {}, not sentence.startswith("No broker")
        defaults.says = lambda changes: sentence if "log.retention.ms" in changes else ""
        manifest = cluster(log_retention_ms=60_000, **edit)
        manifest["spec"]["brokers"]["image"] = "mended:2"
        kubernetes.apply(manifest)
        await operator.until(lambda: not before & broker_uids(kubernetes), "each is restarted")
        await operator.until(lambda: sentence in told(operator, "Stable"), "what is left is told")
        assert (sentence in told(operator, "SettingsRefused")) == defaults.reachable
        assert ("log.segment.bytes" in settings_in(kubernetes)) == bool(edit)
        assert len(events(kubernetes, "RestartingPod")) == 3

    play(scenario)


def test_while_brokers_run_and_none_is_ready_files_get_no_new_value(
    play: Play, defaults: PlayedBrokers
) -> None:
    """As while ZooKeeper is away: a typo would be in the files of whichever broker starts next."""

    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster(log_retention_ms=60_000))
        await stable(operator)
        names = {f"events-broker-{broker}" for broker in range(3)}
        operator.health.starting = names
        for name in names:
            kubernetes.set_ready(name, False)
        kubernetes.apply(cluster(log_retention_ms="soon"))
        await operator.until(
            lambda: "No broker is ready and answers. Until then files" in told(operator, "Stable"), "it waits"
        )
        assert settings_in(kubernetes)["log.retention.ms"] == "60000"
        operator.health.starting = set()  # no process is left: the files may be what it needs
        kubernetes.annotate("clusters", "events", {"look": "now"})
        await operator.until(lambda: settings_in(kubernetes)["log.retention.ms"] == "soon", "files")

    play(scenario)


def test_unclean_elections_end_at_once_while_a_broker_is_lost(play: Play, defaults: PlayedBrokers) -> None:
    async def scenario(operator: RunningOperator) -> None:
        kubernetes, name = operator.kubernetes, "unclean.leader.election.enable"
        kubernetes.apply(cluster())
        await stable(operator)
        defaults.of(kubernetes)
        kubernetes.apply(cluster(unclean_leader_election_enable="true"))
        await stable(operator)
        kubernetes.set_ready("events-broker-2", False)
        defaults.silent = {2}  # its node is lost
        kubernetes.apply(cluster())
        await operator.until(lambda: defaults.values == {name: "false"}, "none from now on")
        await operator.until(lambda: "broker 2 can't be asked" in plan(kubernetes), "the rest waits")
        kubernetes.set_unschedulable("events-broker-2")  # another pod in its place, which will read the files
        await operator.until(lambda: (defaults.values, managed(kubernetes)) == ({}, []), "it is taken back")
        assert defaults.changes == [{name: "true"}, {name: "false"}, {name: None}]
        assert events(kubernetes, "RestartingPod") == []

    play(scenario)


def test_a_broker_that_started_with_an_old_file_just_after_it_was_asked_is_found(
    play: Play, defaults: PlayedBrokers
) -> None:
    """Kubernetes may be late with the files."""

    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster())
        await stable(operator)
        defaults.of(kubernetes)
        kubernetes.apply(cluster(log_retention_ms=60_000))
        await stable(operator)
        uid, old = kubernetes.get("pods", "events-broker-1")["metadata"]["uid"], settings_in(kubernetes)

        def says(changes: Mapping[str, str | None]) -> str:
            if None in changes.values():
                defaults.started[uid] = old
            return ""

        defaults.says = says
        kubernetes.apply(cluster())
        await stable(operator)
        assert uid not in broker_uids(kubernetes)
        assert (defaults.values, managed(kubernetes)) == ({}, [])
        assert len(events(kubernetes, "RestartingPod")) == 1

    play(scenario)


def test_what_others_set_before_an_upgrade_holds_until_it_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defaults: PlayedBrokers
) -> None:
    """Else a year's retention would be a day at once, with nobody's edit, and the rest deleted."""
    year = {"log.retention.ms": "31536000000"}

    async def scenario() -> None:
        kubernetes = Kubernetes()
        async with running_operator(tmp_path, monkeypatch, kubernetes=kubernetes) as operator:
            kubernetes.apply(cluster(log_retention_ms=86_400_000))
            await stable(operator)
        del kubernetes.get("clusters", "events")["status"]["managedSettings"]  # as operators left it before
        defaults.values, defaults.changes = dict(year), []
        async with running_operator(tmp_path, monkeypatch, kubernetes=kubernetes) as operator:
            await operator.condition("clusters", "events", "SettingsOverridden", "True", "SetByOthers")
            kubernetes.apply(cluster(log_retention_ms=86_400_000, num_partitions=7))
            await stable(operator)
            assert "log.retention.ms=31536000000" in told(operator, "SettingsOverridden")
            assert (defaults.values, defaults.changes, managed(kubernetes)) == (year, [], [])
            defaults.values = {}
            kubernetes.annotate("clusters", "events", {"look": "now"})
            await operator.until(lambda: defaults.values == {"log.retention.ms": "86400000"}, "it is put")
            await operator.until(lambda: told(operator, "SettingsOverridden") == "", "it is told no more")
            assert managed(kubernetes) == ["log.retention.ms"]

    asyncio.run(scenario())


def test_what_files_get_is_noted_before_so_that_brokers_can_lose_it_again(
    play: Play, defaults: PlayedBrokers
) -> None:
    """Of a new Cluster too, whose brokers can't be asked for a while, and of one that is only planned."""

    async def scenario(operator: RunningOperator) -> None:
        kubernetes = operator.kubernetes
        kubernetes.apply(cluster({"mainstem.dev/plan-only": "true"}, log_retention_ms=60_000))
        await operator.until(lambda: settings_in(kubernetes)["log.retention.ms"] == "60000", "files")
        assert managed(kubernetes) == ["log.retention.ms"]
        writes = [path for _, path in kubernetes.writes if "/dry" not in path]
        noted = next(place for place, path in enumerate(writes) if path.endswith("/events/status"))
        filed = next(place for place, path in enumerate(writes) if path.endswith("configmaps/events-broker"))
        assert noted < filed

    play(scenario)


def test_what_an_operator_put_that_died_at_once_the_next_one_takes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defaults: PlayedBrokers
) -> None:
    """It is noted before it is put: else nobody would know whose it is."""

    async def scenario() -> None:
        kubernetes = Kubernetes()
        async with running_operator(tmp_path, monkeypatch, kubernetes=kubernetes) as operator:
            kubernetes.apply(cluster())
            await stable(operator)
            defaults.of(kubernetes)
            defaults.dies_after_a_change = True
            kubernetes.apply(cluster(log_retention_ms=60_000))
            await operator.until(lambda: defaults.values != {}, "it is put")
        defaults.dies_after_a_change = False
        kubernetes.apply(cluster())
        async with running_operator(tmp_path, monkeypatch, kubernetes=kubernetes) as operator:
            await operator.until(lambda: defaults.values == {}, "it is taken back")
            await stable(operator)
            assert managed(kubernetes) == []

    asyncio.run(scenario())
