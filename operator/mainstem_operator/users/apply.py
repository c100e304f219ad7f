"""Bringing one User about: its Secret first, then what brokers keep of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.listeners import Listener
from mainstem_operator.api.objects import annotations_of
from mainstem_operator.api.secret_data import decoded, encoded
from mainstem_operator.api.users import UserSpec
from mainstem_operator.brokers.user_requests import UserRequests
from mainstem_operator.certificates.apply import (
    NotUsable,
    needs_write,
    require_adopted,
    require_owner,
    secret_of,
)
from mainstem_operator.certificates.issuing import KeyPair, authority_is_usable
from mainstem_operator.certificates.plan import TRUST_FILE, pair_in
from mainstem_operator.kubernetes.client import Kube
from mainstem_operator.kubernetes.manifests import Manifest
from mainstem_operator.users.changes import carry_out
from mainstem_operator.users.plan import (
    UserSeen,
    checked_password,
    password_mark,
    plan_key,
    plan_password,
    plan_user,
    secret_with,
)


async def bring_about_user(
    kube: Kube,
    requests: UserRequests,
    spec: UserSpec,
    cluster: ClusterSpec,
    place: tuple[Listener, str],
    observed: UserSeen,
) -> str | KeyPair:
    """Do what is left to do; the password or the key with which the user logs in.

    Args:
        place: the listener where it logs in, and its addresses.

    Raises:
        InvalidSpec, NotUsable: a Secret that is needed is missing or cannot be used.
        Refused, BrokersRefused, BrokersUnreachable: Kubernetes or the brokers refuse, or do not answer.
    """
    namespace = spec.identity.namespace
    live = await kube.get("v1", "Secret", namespace, spec.secret)
    present = {} if live is None else decoded(live)
    if live is not None:
        require_owner(live, spec.identity.uid, f"the User {spec.user}", {names.USER_LABEL: spec.user})
        # A supplied password replaces what it holds, and a certificate counts only if it was issued here.
        if spec.authentication == "scram-sha-512" and spec.password_from is None and "password" in present:
            require_adopted([live], spec.adopted_secrets, f"User {spec.user}")
    login = await _login(kube, spec, cluster, present)
    trust = await secret_of(kube, cluster.identity, names.trusted_certificates(cluster.name))
    listener, servers = place
    data = secret_with(spec, listener, servers, trust.get(TRUST_FILE, ""), login)
    secret = _secret(spec, data)
    if live is None:
        live = await kube.apply(secret, None)
    elif needs_write(live, data):
        live = await kube.apply(secret, live, unchanged=True)
    mark = password_mark(cluster.identity.uid, spec.identity.uid, login) if isinstance(login, str) else None
    plan = plan_user(spec, observed, password_is_set=annotations_of(live).get(names.PASSWORD_SET) == mark)
    await carry_out(requests, spec.user, plan, login if isinstance(login, str) else None)
    if plan.set_password:
        await kube.annotate(secret, {names.PASSWORD_SET: mark})
    return login


async def _login(
    kube: Kube, spec: UserSpec, cluster: ClusterSpec, present: Mapping[str, str]
) -> str | KeyPair:
    namespace = spec.identity.namespace
    if spec.authentication == "scram-sha-512":
        supplied = None
        if spec.password_from is not None:
            name, key = spec.password_from
            source = await kube.get("v1", "Secret", namespace, name)
            supplied = checked_password(None if source is None else decoded(source).get(key), name, key)
        return plan_password(present, supplied)
    authority = pair_in(await secret_of(kube, cluster.identity, names.clients_authority(cluster.name)))
    if authority is None or not authority_is_usable(authority):
        raise NotUsable(
            f"The Secret {names.clients_authority(cluster.name)} has no key: the operator creates it again."
        )
    return plan_key(spec, present, authority, dt.datetime.now(dt.UTC))


def _secret(spec: UserSpec, data: Mapping[str, str]) -> Manifest:
    """It belongs to the User, and goes with it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": spec.secret,
            "namespace": spec.identity.namespace,
            "labels": {
                "app.kubernetes.io/name": "mainstem",
                names.USER_LABEL: spec.user,
                names.MANAGED_BY_LABEL: names.FIELD_MANAGER,
            },
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": "User",
                    "name": spec.user,
                    "uid": spec.identity.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "type": "Opaque",
        "data": encoded(data),
    }
