"""One look at all Users of a BrokerCluster: finalizers, removals, and what each is to have."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, cluster_of
from mainstem_operator.api.conditions import Condition, absence_of
from mainstem_operator.api.fields import InvalidSpec, Object
from mainstem_operator.api.objects import key_of, removed_users
from mainstem_operator.api.timestamps import moment, written
from mainstem_operator.api.users import AclRule, UserSpec, user_of
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.certificates.apply import NotUsable
from mainstem_operator.kubernetes.client import Refused
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.runtime.context import Context
from mainstem_operator.users.apply import bring_about_user
from mainstem_operator.users.changes import carry_out
from mainstem_operator.users.plan import (
    UserSeen,
    listener_for,
    may_have_acls,
    paused_status,
    plan_removal,
    problem_of,
    ready_condition,
    servers_of,
    user_status,
)

_PENDING_SECONDS: Final = 5.0
_REFUSED_SECONDS: Final = 30.0
_GIVE_UP: Final = dt.timedelta(minutes=5)
# Kubernetes refuses every change of an object whose annotations have more than 256 KiB.
_REMOVED_USERS_BYTES_MAX: Final = 16 * 1024

logger = structlog.get_logger(__name__)


async def reconcile_users(
    context: Context, namespace: str, cluster: str, manifests: Sequence[Object], there: Object | None
) -> float | None:
    """Reconcile the Users of a BrokerCluster; return in how many seconds to continue.

    Args:
        there: the BrokerCluster, or None if there is none.
    """
    alone = Alone()
    pairs: list[tuple[Object, UserSpec]] = []
    for manifest in manifests:
        with alone(key_of(manifest)):
            try:
                pairs.append((manifest, user_of(manifest)))
            except InvalidSpec as error:
                if manifest["metadata"].get("deletionTimestamp"):
                    await _release_kept(context, manifest, f"The manifest is not valid: {error}")
                else:
                    await context.say_invalid(manifest, str(error))
    pause = await _reconcile_valid(context, (namespace, cluster), pairs, there, alone) if pairs else None
    await context.say_defects(manifests, alone)
    if alone.refused:
        return _REFUSED_SECONDS if pause is None else min(pause, _REFUSED_SECONDS)
    return pause


async def _reconcile_valid(
    context: Context,
    cluster: tuple[str, str],
    pairs: Sequence[tuple[Object, UserSpec]],
    there: Object | None,
    alone: Alone,
) -> float | None:
    """The same for those that make sense."""
    namespace, name = cluster
    absence = absence_of(name, namespace, there)
    if absence is not None:
        await _say_or_release(context, pairs, absence, alone, at_once=True)
        return None
    assert there is not None
    try:
        spec = cluster_of(there)
    except InvalidSpec as error:
        text = f"The manifest of the BrokerCluster {name} is not valid: {error}"
        await _say_or_release(context, pairs, Condition("Ready", None, "ClusterNotReady", text), alone)
        return _REFUSED_SECONDS
    if not (there.get("status") or {}).get("brokersReady"):
        text = f"No broker of the BrokerCluster {name} is ready."
        await _say_or_release(context, pairs, Condition("Ready", None, "ClusterNotReady", text), alone)
        return _PENDING_SECONDS
    if context.is_still_open(namespace, name):
        text = f"The brokers of the BrokerCluster {name} are being restarted with its listeners."
        await _say_or_release(context, pairs, Condition("Ready", None, "ClusterNotReady", text), alone)
        return _PENDING_SECONDS
    return await _Batch(context, spec, there, pairs, alone).reconcile()


async def _say_or_release(
    context: Context,
    pairs: Sequence[tuple[Object, UserSpec]],
    condition: Condition,
    alone: Alone,
    *,
    at_once: bool = False,
) -> None:
    """Say why nothing is done. Those that are being deleted are let go, if need be after some time: a
    deletion has to end in every state of the world.
    """
    for manifest, spec in pairs:
        with alone(spec.identity.key):
            if not spec.identity.deleting:
                await context.say(manifest, condition)
            elif at_once or names.USER_FINALIZER not in spec.identity.finalizers:
                await _release(context, manifest)
                await context.say_deleting(manifest)
            elif _overdue(manifest):
                await _release_kept(context, manifest, condition.message)
                await context.say_deleting(manifest)
            else:
                until = written(moment(manifest["metadata"]["deletionTimestamp"]) + _GIVE_UP)
                text = (
                    f"{condition.message} The deletion waits until {until}. After that the password, ACLs and"
                    " quotas of the user are kept."
                )
                await context.say(manifest, Condition("Ready", None, "DeletionWaits", text))


async def _release_kept(context: Context, manifest: Object, why: str) -> None:
    """Let a User go whose password, ACLs and quotas are not removed with it, and say so."""
    if names.USER_FINALIZER in (manifest["metadata"].get("finalizers") or ()):
        text = f"{why} The password, ACLs and quotas of the user are kept."
        await context.event(manifest, "UserKept", text, warning=True)
        logger.warning("user kept", user=manifest["metadata"]["name"], reason=why)
    await _release(context, manifest)


async def _release(context: Context, manifest: Object) -> None:
    """Take our finalizer away, so that the object can go."""
    finalizers = list(manifest["metadata"].get("finalizers") or ())
    if names.USER_FINALIZER in finalizers:
        kept = [name for name in finalizers if name != names.USER_FINALIZER]
        try:
            await context.kube.set_finalizers(manifest, kept)
        except Refused as refused:
            if refused.by_content:
                await context.say_held(manifest, names.USER_FINALIZER, refused)
            raise


def _overdue(manifest: Object) -> bool:
    return dt.datetime.now(dt.UTC) - moment(manifest["metadata"]["deletionTimestamp"]) > _GIVE_UP


class _Batch:
    """One pass over the Users of one BrokerCluster."""

    def __init__(
        self,
        context: Context,
        cluster: ClusterSpec,
        manifest: Object,
        pairs: Sequence[tuple[Object, UserSpec]],
        alone: Alone,
    ) -> None:
        self._context = context
        self._alone = alone
        self._cluster = cluster
        self._outside: str | None = (manifest.get("status") or {}).get("externalBootstrapServers")
        self._pairs = pairs
        self._requests = context.brokers(cluster.namespace, cluster.name).users()

    async def reconcile(self) -> float | None:
        if not await self._context.may_act():  # another replica of the operator acts now
            return _PENDING_SECONDS
        try:
            observed = await self._see()
        except (BrokersUnreachable, BrokersRefused) as error:
            reason = "Unreachable" if isinstance(error, BrokersUnreachable) else names.BROKERS_REFUSED
            condition = Condition("Ready", None, reason, str(error))
            await _say_or_release(self._context, self._pairs, condition, self._alone)
            return _REFUSED_SECONDS
        waits = False
        for manifest, spec in self._pairs:
            try:
                with self._alone.for_defects(spec.identity.key):
                    await self._bring_about(manifest, spec, observed(spec.user))
            except (Refused, BrokersRefused, NotUsable, InvalidSpec) as error:
                waits = True
                with self._alone(spec.identity.key):
                    await self._say(manifest, spec, error)
        return _REFUSED_SECONDS if waits else None

    async def _see(self) -> _Seen:
        """What brokers have of all users; without authorization there are no ACLs to request."""
        security = self._cluster.security
        with_password = await self._requests.with_password()
        quotas = await self._requests.quotas()
        acls = None
        if security is not None and security.super_users is not None:
            acls = await self._requests.acls()
        return _Seen(with_password, acls, quotas)

    async def _bring_about(self, manifest: Object, spec: UserSpec, observed: UserSeen) -> None:
        if spec.identity.deleting:
            if names.USER_FINALIZER in spec.identity.finalizers:
                if observed.acls is None and may_have_acls(spec, observed, manifest.get("status")):
                    await self._note_removal(manifest, spec.user)
                await carry_out(self._requests, spec.user, plan_removal(observed), None)
                await _release(self._context, manifest)
            await self._context.say_deleting(manifest)
            return
        if spec.paused:
            present = manifest.get("status") or {}
            status = paused_status(spec, present, dt.datetime.now(dt.UTC))
            await self._context.put_status(manifest, status)
            return
        problem, listener = problem_of(spec, self._cluster), listener_for(spec, self._cluster)
        login = None
        if problem is None and listener is not None:
            if names.USER_FINALIZER not in spec.identity.finalizers:
                # The change of the object leads to another look, which goes on.
                finalizers = [*spec.identity.finalizers, names.USER_FINALIZER]
                await self._context.kube.set_finalizers(manifest, finalizers)
                return
            place = listener, servers_of(listener, self._cluster, self._outside)
            if not place[1]:
                raise NotUsable(f"The addresses of the listener {listener.name} are not known yet.")
            login = await bring_about_user(
                self._context.kube, self._requests, spec, self._cluster, place, observed
            )
            problem = ready_condition(spec, self._cluster)
        if problem is not None:
            now = dt.datetime.now(dt.UTC)
            status = user_status(spec, problem, login, manifest.get("status"), now)
            if may_have_acls(spec, observed, manifest.get("status")):
                status["hasAcls"] = True
            await self._context.put_status(manifest, status)

    async def _note_removal(self, manifest: Object, user: str) -> None:
        """Note at the BrokerCluster that ACLs of a user are to go: brokers without authorization keep those
        that they have, and neither show nor change them.
        """
        kube, name = self._context.kube, self._cluster.name
        cluster = await kube.get(names.API_VERSION, "BrokerCluster", self._cluster.namespace, name)
        if cluster is None or user in removed_users(cluster):
            return
        noted = ",".join(sorted({*removed_users(cluster), user}))
        if len(noted) > _REMOVED_USERS_BYTES_MAX:
            why = f"its annotation {names.REMOVED_USERS} has no room for another user."
        else:
            try:
                await kube.annotate(cluster, {names.REMOVED_USERS: noted}, unchanged=True)
                return
            except Refused as error:
                if not error.by_content:
                    raise
                why = f"Kubernetes refuses to note the user there: {error}"
        text = (
            f"The ACLs that the user may have are kept, and count once the BrokerCluster {name} has"
            f" spec.authorization, since {why}"
        )
        await self._context.event(manifest, "UserKept", text, warning=True)

    async def _say(self, manifest: Object, spec: UserSpec, error: Exception) -> None:
        """Say what was refused of one User; it holds up no other one."""
        if spec.identity.deleting and isinstance(error, Refused) and error.by_content:
            return  # the removal of its finalizer, which has been said
        if spec.identity.deleting and _overdue(manifest):
            await _release_kept(self._context, manifest, str(error))
            return
        if isinstance(error, Refused) and (error.missing or error.conflict):
            return  # it has changed, or gone, and is looked at again
        reason = {InvalidSpec: "InvalidSpec", NotUsable: "SecretNotUsable", Refused: "Refused"}
        word = next((word for kind, word in reason.items() if isinstance(error, kind)), names.BROKERS_REFUSED)
        condition = Condition("Ready", False, word, str(error))
        await self._context.say(manifest, condition)


class _Seen:
    """What brokers have, by user."""

    def __init__(
        self,
        with_password: set[str],
        acls: Mapping[str, frozenset[AclRule]] | None,
        quotas: Mapping[str, Mapping[str, float]],
    ) -> None:
        self._with_password = with_password
        self._acls = acls
        self._quotas = quotas

    def __call__(self, user: str) -> UserSeen:
        acls = None if self._acls is None else self._acls.get(user, frozenset())
        return UserSeen(user in self._with_password, acls, self._quotas.get(user, {}))
