"""How a running BrokerCluster becomes secured, or open again, so that clients are served all the time. Pure.

Brokers that do not yet, or no longer, have a listener cannot be reached by those that use it. So the way goes
by steps, each a roll of all brokers, and brokers of two neighbouring steps understand each other:

    OPEN        one listener without TLS
    BOTH        all listeners; brokers talk to each other over the one without TLS
    SECURED     brokers talk to each other over TLS
    LENIENT     ACLs are kept; what they would deny is recorded, and still allowed
    AUTHORIZED  ACLs count

A step is taken when every pod runs with the one before. It is found in what is there: the settings in the
brokers' files, and the annotations of pods. So an operator that dies is followed by one that carries on, and
a manifest that changes on the way is followed forwards or backwards.

Clients move while the listener `internal`, without TLS at port 9092, is there: it is the one that they have
always used. The manifest has to list it until brokers are SECURED, and people leave it out when all have
moved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.fields import Object
from mainstem_operator.api.listeners import BROKER_USER, INTERNAL, External, Listener, Security
from mainstem_operator.api.objects import text_in

_INTERNAL_NAME: Final = INTERNAL.name.upper()
_EXTERNAL_NAME: Final = "EXTERNAL"
_INTERNAL_ITEM: Final = f"{{name: internal, port: {INTERNAL.port}, tls: false, authentication: none}}"


class Step(IntEnum):
    """How secured brokers are."""

    OPEN = 0
    BOTH = 1
    SECURED = 2
    LENIENT = 3
    AUTHORIZED = 4


def step_of(cluster: ClusterSpec) -> Step:
    """The step that settings made of `cluster` are."""
    security = cluster.security
    if security is None:
        return Step.OPEN
    if security.talks_without_tls:
        return Step.BOTH
    if security.super_users is None:
        return Step.SECURED
    return Step.LENIENT if security.is_lenient else Step.AUTHORIZED


def step_filed(settings: Mapping[str, str] | None) -> Step | None:
    """The step that the brokers' files are at; None if there are none."""
    if settings is None:
        return None
    if not settings.get("listeners", "").startswith(f"BROKERS://:{names.BROKERS_PORT}"):
        return Step.OPEN
    if settings.get("inter.broker.listener.name") == _INTERNAL_NAME:
        return Step.BOTH
    if not settings.get("super.users", "").startswith(f"User:{BROKER_USER};"):
        return Step.SECURED  # without an authorizer, or with one of the manifest's settings
    return Step.LENIENT if settings.get("authorizer.dry.run") == "true" else Step.AUTHORIZED


def steps_running(filed: Step | None, annotations: Iterable[str]) -> list[Step]:
    """The steps that pods have started with.

    Args:
        filed: the one that the brokers' files are at.
        annotations: of the pods; that of an open one is empty, and so are those of secured ones from before
            there were steps, which no open one can be beside.
    """
    without = Step.SECURED if filed is not None and filed > Step.BOTH else Step.OPEN
    return [Step[name] if name in Step.__members__ else without for name in annotations]


def plan_step(wanted: Step, filed: Step | None, running: Collection[Step], waiting: str) -> Step:
    """The step that brokers' files should be at now.

    Args:
        wanted: the manifest's.
        running: those that pods have started with.
        waiting: why ACLs cannot be required yet; empty if nothing is in the way.
    """
    if filed is None or filed == wanted:
        return wanted
    if wanted < filed:  # ACLs may go all at once
        following = Step.SECURED if filed > Step.SECURED else Step(filed - 1)
    else:
        following = Step(filed + 1)
    if following == Step.AUTHORIZED and (waiting or any(step < Step.LENIENT for step in running)):
        return filed
    return following if all(_understand_each_other(step, following) for step in running) else filed


def _understand_each_other(one: Step, other: Step) -> bool:
    return abs(one - other) <= 1 or min(one, other) >= Step.SECURED


def refusal(cluster: ClusterSpec, filed: Mapping[str, str] | None, running: Collection[Step]) -> str:
    """Why the manifest's listeners can't be reached without cutting clients off; empty if they can."""
    there, security = step_filed(filed), cluster.security
    if filed is None or there is None:
        return ""
    if security is None:
        if there > Step.OPEN and not _has_internal(filed):
            return (
                "Clients connect over TLS now and would be cut off: put spec.listeners.clients back with"
                f" {_INTERNAL_ITEM} in it, let clients move to it, and then remove spec.listeners.clients."
            )
        return _external_refusal(filed, _external_listener(cluster.external))
    if min((there, *running)) > Step.BOTH:
        return ""
    if INTERNAL not in security.listeners:
        return (
            f"Clients and brokers use port {INTERNAL.port} without TLS until all brokers are restarted: put"
            f" {_INTERNAL_ITEM} into spec.listeners.clients, and leave it out once clients have moved."
        )
    external = next((one for one in security.listeners if one.external is not None), None)
    return _external_refusal(filed, external) if there == Step.OPEN else ""


def _has_internal(filed: Mapping[str, str]) -> bool:
    protocols = filed.get("listener.security.protocol.map", "").split(",")
    listeners = filed.get("listeners", "").split(",")
    return f"{_INTERNAL_NAME}://:{INTERNAL.port}" in listeners and f"{_INTERNAL_NAME}:PLAINTEXT" in protocols


def _external_listener(external: External | None) -> Listener | None:
    if external is None:
        return None
    return Listener(external.listener, external.port, tls=False, authentication="none", external=external)


def _external_refusal(filed: Mapping[str, str], wanted: Listener | None) -> str:
    """Node ports have one listener, so it stays without TLS until all else is done, or goes before."""
    plain = f"{_EXTERNAL_NAME}://:{names.EXTERNAL_PORT}"
    others = [
        each
        for each in filed.get("listeners", "").split(",")
        if each != plain and each.endswith(f":{names.EXTERNAL_PORT}")
    ]
    has_external = plain in filed.get("listeners", "").split(",") or bool(others)
    if wanted is None or not has_external:
        return ""
    stays = wanted.name.upper() == _EXTERNAL_NAME and wanted.port == names.EXTERNAL_PORT
    if stays and wanted.protocol == "PLAINTEXT" and not others:
        return ""
    return (
        "The node ports serve clients outside meanwhile, so their listener must stay as it is: write it as"
        f" {{name: external, port: {names.EXTERNAL_PORT}, type: nodeport, tls: false, authentication: none}},"
        " or remove it first."
    )


def at_step(cluster: ClusterSpec, step: Step) -> ClusterSpec:
    """The BrokerCluster as its brokers are at a step on the way."""
    if step == step_of(cluster):
        return cluster
    if step == Step.OPEN:
        outside = cluster.external
        is_plain = outside is not None and outside.listener == _EXTERNAL_NAME.lower()
        return replace(cluster, security=None, external=outside if is_plain else None)
    security = cluster.security
    if security is None:  # on its way back
        external = _external_listener(cluster.external)
        listeners = (INTERNAL,) if external is None else (INTERNAL, external)
        security = Security(listeners, None, None, has_loads=False)
    return replace(
        cluster,
        security=replace(
            security,
            talks_without_tls=step == Step.BOTH,
            is_lenient=step == Step.LENIENT,
            super_users=security.super_users if step > Step.SECURED else None,
        ),
    )


def users_in_the_way(cluster: str, users: Collection[Object]) -> str:
    """Why ACLs cannot be required yet: Users of the BrokerCluster that have none of theirs."""
    unready = [
        user["metadata"]["name"] + (" (paused)" if _holds(user, "Paused") else "")
        for user in users
        if text_in(user, "clusterRef", "name") == cluster
        and not user["metadata"].get("deletionTimestamp")
        and not _is_ready(user)
    ]
    if not unready:
        return ""
    listed = ", ".join(sorted(unready)[:5])
    return f"ACLs are required once all Users are ready; these are not: {listed}."


def gone_users(cluster: str, noted: Collection[str], users: Collection[Object]) -> list[str]:
    """Those of the noted names that no User of the BrokerCluster has, or one that is being deleted. The ACLs
    of one that was created again are those of its manifest.
    """
    present = {
        user["metadata"]["name"]
        for user in users
        if text_in(user, "clusterRef", "name") == cluster and not user["metadata"].get("deletionTimestamp")
    }
    return sorted(set(noted) - present)


def _is_ready(user: Object) -> bool:
    observed = (user.get("status") or {}).get("observedGeneration")
    return observed == user["metadata"].get("generation") and _holds(user, "Ready")


def _holds(user: Object, condition: str) -> bool:
    conditions = (user.get("status") or {}).get("conditions") or ()
    return any(item["type"] == condition and item["status"] == "True" for item in conditions)
