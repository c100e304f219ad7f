"""A running BrokerCluster becomes secured, or open, while all brokers understand each other (R38, R25)."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from tests.unit.operator.snapshots import cluster

from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.cluster.broker_manifests import Placement, settings_of
from mainstem_operator.cluster.security_steps import (
    Step,
    at_step,
    gone_users,
    plan_step,
    refusal,
    step_filed,
    step_of,
    steps_running,
    users_in_the_way,
)

INTERNAL = {"name": "internal", "port": 9092, "tls": False, "authentication": "none"}
TLS = {"name": "tls", "port": 9093}
OUTSIDE = {"type": "nodeport", "name": "external", "port": 9094, "tls": False, "authentication": "none"}
ACL = {"type": "acl"}


def secured(*listeners: dict[str, Any], **spec: Any) -> ClusterSpec:
    return cluster(listeners={"clients": list(listeners)}, **spec)


MANIFESTS = {
    "open": cluster(),
    "secured": secured(INTERNAL, TLS),
    "authorized": secured(INTERNAL, TLS, authorization=ACL),
}


def filed(spec: ClusterSpec) -> dict[str, str]:
    return settings_of(spec, 0, Placement({0: 31_000}))


def endpoints(spec: ClusterSpec) -> tuple[str, set[str]]:
    """The listener that a broker uses to reach others, and those at which it can be reached."""
    settings = filed(spec)
    there = {item.partition("://")[0] for item in settings["advertised.listeners"].split(",")}
    return settings["inter.broker.listener.name"], there


def path(start: str, end: str) -> list[Step]:
    """The steps from one manifest to the other, each with all brokers at it."""
    wanted, step = MANIFESTS[end], step_of(MANIFESTS[start])
    steps = [step]
    while step != step_of(wanted):
        step = plan_step(step_of(wanted), step, [step] * 3, "")
        steps.append(step)
    return steps


def test_the_way_to_security_and_back_goes_through_every_step() -> None:
    assert path("open", "authorized") == list(Step)
    assert path("authorized", "open") == [Step.AUTHORIZED, Step.SECURED, Step.BOTH, Step.OPEN]
    assert path("secured", "authorized") == [Step.SECURED, Step.LENIENT, Step.AUTHORIZED]
    assert path("authorized", "secured") == [Step.AUTHORIZED, Step.SECURED]


@pytest.mark.parametrize("end", MANIFESTS)
@pytest.mark.parametrize("start", MANIFESTS)
def test_brokers_of_two_steps_in_a_row_reach_each_other_and_clients_without_tls_both(
    start: str, end: str
) -> None:
    steps = path(start, end)
    for before, after in itertools.pairwise(steps):
        specs = [
            at_step(MANIFESTS[start if step == step_of(MANIFESTS[start]) else end], step)
            for step in (before, after)
        ]
        for one in specs:
            for other in specs:
                listener, _ = endpoints(one)
                _, reachable = endpoints(other)
                assert listener in reachable, (before, after)
                assert "INTERNAL" in reachable
        assert [step_filed(filed(spec)) for spec in specs] == [before, after], "and is found again"


@pytest.mark.parametrize("seed", range(50))
def test_whatever_people_change_and_whenever_the_operator_dies_brokers_understand_each_other(
    seed: int,
) -> None:
    chance = random.Random(seed)
    wanted = there = Step.OPEN
    brokers = [Step.OPEN] * 3
    for _ in range(200):
        match chance.randrange(3):
            case 0:
                wanted = chance.choice((Step.OPEN, Step.SECURED, Step.AUTHORIZED))
            case 1:  # a look, of whichever operator
                names = ["" if step == Step.OPEN else step.name for step in brokers]
                there = plan_step(wanted, there, steps_running(there, names), "")
            case _:  # one broker is restarted with the present files
                brokers[chance.randrange(3)] = there
        for one in brokers:
            for other in brokers:
                assert abs(one - other) <= 1 or min(one, other) >= Step.SECURED, brokers
    for _ in range(2 * len(Step)):  # left alone, it arrives
        there = plan_step(wanted, there, brokers, "")
        brokers = [there] * 3
    assert there == wanted


def test_a_new_cluster_is_made_as_its_manifest_says() -> None:
    for spec in MANIFESTS.values():
        assert plan_step(step_of(spec), None, [], "") == step_of(spec)
        assert refusal(spec, None, []) == ""
    assert at_step(MANIFESTS["authorized"], Step.AUTHORIZED) == MANIFESTS["authorized"]


def test_acls_are_required_once_every_broker_keeps_them_and_every_user_has_its_own() -> None:
    lenient = [Step.LENIENT] * 3
    assert plan_step(Step.AUTHORIZED, Step.LENIENT, lenient, "") == Step.AUTHORIZED
    assert plan_step(Step.AUTHORIZED, Step.LENIENT, lenient, "alice is not ready") == Step.LENIENT
    some = [Step.SECURED, Step.LENIENT, Step.LENIENT]
    assert plan_step(Step.AUTHORIZED, Step.LENIENT, some, "") == Step.LENIENT
    settings = filed(at_step(MANIFESTS["authorized"], Step.LENIENT))
    assert settings["authorizer.dry.run"] == "true"
    assert "authorizer.dry.run" not in filed(MANIFESTS["authorized"])


def user(name: str, status: str, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "generation": 2, **metadata},
        "spec": {"clusterRef": {"name": "events"}},
        "status": {"observedGeneration": 2, "conditions": [{"type": "Ready", "status": status}]},
    }


def test_users_that_are_not_ready_are_named() -> None:
    ready, unready = user("alice", "True"), user("bob", "False")
    assert users_in_the_way("events", [ready]) == ""
    assert "bob" in users_in_the_way("events", [ready, unready])
    assert "carol" in users_in_the_way("events", [user("carol", "True", generation=3)])
    paused = user("dave", "Unknown")
    paused["status"]["conditions"].append({"type": "Paused", "status": "True"})
    text = users_in_the_way("events", [ready, unready, paused])
    assert text.endswith("these are not: bob, dave (paused).")
    assert users_in_the_way("others", [unready]) == ""
    assert users_in_the_way("events", [user("bob", "False", deletionTimestamp="now")]) == ""


def test_the_acls_of_a_deleted_user_go_unless_there_is_a_new_one_of_its_name() -> None:
    users = [user("alice", "False"), user("bob", "True", deletionTimestamp="now")]
    assert gone_users("events", {"alice", "bob", "carol"}, users) == ["bob", "carol"]
    assert gone_users("others", {"alice"}, users) == ["alice"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (cluster(), secured(TLS), "put {name: internal, port: 9092"),
        (cluster(), secured({**INTERNAL, "tls": True}, TLS), "put {name: internal, port: 9092"),
        (secured(TLS), cluster(), "put spec.listeners.clients back with"),
        (
            cluster(listeners={"external": {"type": "NodePort"}}),
            secured(INTERNAL, {**OUTSIDE, "tls": True}),
            "The node ports serve clients",
        ),
        (
            secured(INTERNAL, {**OUTSIDE, "name": "outside"}),
            cluster(listeners={"external": {"type": "NodePort"}}),
            "The node ports serve clients",
        ),
    ],
)
def test_what_would_cut_clients_off_is_refused_with_what_to_do(
    before: ClusterSpec, after: ClusterSpec, words: str
) -> None:
    assert words in refusal(after, filed(before), [step_of(before)] * 3)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (cluster(), secured(INTERNAL, TLS)),
        (secured(INTERNAL, TLS), cluster()),
        (cluster(listeners={"external": {"type": "NodePort"}}), secured(INTERNAL, TLS, OUTSIDE)),
        (secured(INTERNAL, OUTSIDE), cluster(listeners={"external": {"type": "NodePort"}})),
        (secured(TLS), secured({**TLS, "port": 9097})),
        (secured(INTERNAL, TLS), secured(TLS)),
        (secured(TLS), secured(TLS, {**OUTSIDE, "name": "outside", "tls": True})),
    ],
)
def test_what_clients_can_follow_is_not_refused(before: ClusterSpec, after: ClusterSpec) -> None:
    assert refusal(after, filed(before), [step_of(before)] * 3) == ""


def test_the_listener_without_tls_stays_until_the_last_broker_talks_over_tls() -> None:
    both = at_step(MANIFESTS["secured"], Step.BOTH)
    for there, running in ((both, [Step.BOTH] * 3), (MANIFESTS["secured"], [Step.BOTH, Step.SECURED])):
        assert "until all brokers are restarted" in refusal(secured(TLS), filed(there), running)
    assert refusal(secured(TLS), filed(MANIFESTS["secured"]), [Step.SECURED] * 3) == ""


def test_pods_of_a_secured_cluster_from_before_there_were_steps_are_secured() -> None:
    assert steps_running(Step.AUTHORIZED, ["", "AUTHORIZED"]) == [Step.SECURED, Step.AUTHORIZED]
    assert steps_running(Step.BOTH, ["", "BOTH"]) == [Step.OPEN, Step.BOTH]
    assert steps_running(None, [""]) == [Step.OPEN]
