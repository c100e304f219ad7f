"""Brings the Secrets of a secured BrokerCluster about: reads them, lets the plan decide, writes what differs.

The operator reads Secrets by name only. It may neither list nor watch them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import structlog

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.fields import Object
from mainstem_operator.api.listeners import Security
from mainstem_operator.api.objects import Identity
from mainstem_operator.api.secret_data import SecretData, decoded, encoded
from mainstem_operator.certificates.plan import (
    CERTIFICATE_FILE,
    KEY_FILE,
    TRUST_FILE,
    first_expiry,
    is_due,
    plan_certificates,
    plan_renewals,
    replacement_under_way,
)
from mainstem_operator.kubernetes.client import Kube, Refused, whose
from mainstem_operator.kubernetes.manifests import Manifest, owner_reference
from mainstem_operator.snapshot import belongs_to, is_orphan

logger = structlog.get_logger(__name__)

_CERTIFICATE: Final = (KEY_FILE, CERTIFICATE_FILE)


class NotUsable(Exception):
    """A Secret that is needed cannot be used; `str()` says which, and what to do."""


async def put_certificates(
    kube: Kube,
    cluster: ClusterSpec,
    security: Security,
    node_addresses: Collection[str],
    cluster_domain: str = names.CLUSTER_DOMAIN,
) -> tuple[str, dt.datetime | None]:
    """Create or renew the Secrets where that is due; how far a replacement of authorities is, if any, and
    when the first certificate of brokers and operator ends.

    Args:
        cluster_domain: in which Kubernetes' DNS has the names of Services.

    Raises:
        NotUsable: a Secret is missing or incomplete, or a name is taken by an object of others.
        Refused: Kubernetes refuses.
    """
    clients_trust = None
    if security.certificate_secret is not None:
        clients_trust = await _trust_of(kube, cluster, security.certificate_secret)
    present: dict[str, Object] = {}
    for name in (
        names.cluster_authority(cluster.name),
        names.clients_authority(cluster.name),
        names.broker_certificate(cluster.name),
        names.operator_certificate(cluster.name),
        names.trusted_certificates(cluster.name),
    ):
        live = await kube.get("v1", "Secret", cluster.namespace, name)
        if live is not None:
            require_owner(
                live,
                cluster.identity.uid,
                f"the BrokerCluster {cluster.name}",
                {names.CLUSTER_LABEL: cluster.name},
            )
            present[name] = live
    # All other Secrets are made again from these, and what they hold counts only if these have issued it.
    authorities = (names.cluster_authority(cluster.name), names.clients_authority(cluster.name))
    require_adopted(
        [present[name] for name in authorities if name in present],
        cluster.adopted_secrets,
        f"BrokerCluster {cluster.name}",
    )
    planned = plan_certificates(
        cluster,
        {name: decoded(live) for name, live in present.items()},
        clients_trust,
        node_addresses,
        dt.datetime.now(dt.UTC),
        cluster_domain,
    )
    for name, data in planned.items():
        # An authority is written before what it issues. A Secret that has changed meanwhile is not written.
        secret = _secret(cluster.identity, name, data)
        live = present.get(name)
        if live is None:
            await kube.create(secret)  # fails if another replica of the operator was faster
        elif needs_write(live, data):
            await kube.apply(secret, live, unchanged=True)
    authority = planned[names.cluster_authority(cluster.name)]
    under_way = replacement_under_way(authority, cluster.authority_replacement.overlap)
    return under_way, first_expiry(cluster.name, planned)


async def renew_certificates(kube: Kube, cluster: Identity, *, may_write: bool) -> dt.datetime | None:
    """Renew the certificates of brokers and operator that are due, where the manifest cannot be followed or
    is not valid; when the first of them ends, None if there are none.

    What the manifest asks for has no part in it: a certificate for hosts of a refused manifest would cut off
    the clients of those that brokers have.

    Args:
        may_write: whether to renew. Otherwise they are only read.

    Raises:
        Refused: Kubernetes refuses to show a Secret, or does not answer.
    """
    present: dict[str, Object] = {}
    for name in (names.broker_certificate(cluster.name), names.operator_certificate(cluster.name)):
        live = await kube.get("v1", "Secret", cluster.namespace, name)
        if live is None or not is_owned(live, cluster.uid):
            break  # without the brokers' one, there is none of the operator
        present[name] = live
    data = {name: decoded(live) for name, live in present.items()}
    expiry, now = first_expiry(cluster.name, data), dt.datetime.now(dt.UTC)
    if not may_write or expiry is None or not is_due(expiry, now):
        return expiry
    authority = names.cluster_authority(cluster.name)
    live = await kube.get("v1", "Secret", cluster.namespace, authority)
    if live is None or not is_owned(live, cluster.uid):
        return expiry
    for name, renewal in plan_renewals(cluster.name, {**data, authority: decoded(live)}, now).items():
        try:
            await kube.apply(_secret(cluster, name, renewal), present[name], unchanged=True)
        except Refused as error:
            if not error.by_content:
                raise
            logger.warning("certificate not renewed", secret=name, error=str(error))
        else:
            data[name] = renewal
    return first_expiry(cluster.name, data)


def _secret(cluster: Identity, name: str, data: SecretData) -> Manifest:
    """It belongs to the BrokerCluster, and goes with it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": cluster.namespace,
            "labels": names.labels(cluster.name, names.BROKER),
            "ownerReferences": [owner_reference(cluster)],
        },
        "type": "Opaque",
        "data": encoded(data),
    }


async def _trust_of(kube: Kube, cluster: ClusterSpec, name: str) -> str:
    """`ca.crt` of the certificate that the manifest names; empty if it has none, as those that cert-manager
    gets from an ACME issuer do not: every system trusts their authorities.
    """
    live = await kube.get("v1", "Secret", cluster.namespace, name)
    if live is None:
        raise NotUsable(f"spec.tls.secretName names the Secret {name}, which does not exist: create it.")
    data = decoded(live)
    missing = [file for file in _CERTIFICATE if not data.get(file)]
    if missing:
        raise NotUsable(
            f"The Secret {name} of spec.tls.secretName has no {missing[0]}: it needs"
            f" {' and '.join(_CERTIFICATE)}, as cert-manager writes them, and {TRUST_FILE} unless clients"
            " trust its authority without it."
        )
    return data.get(TRUST_FILE, "")


def require_owner(live: Object, uid: str, owner: str, made_for: Mapping[str, str]) -> None:
    """Require that a Secret was made for the object of this uid, or for one of its name that has left it
    behind: what others have made is never changed.

    Args:
        made_for: the labels that say whose name it was made for.

    Raises:
        NotUsable: it was not.
    """
    if not is_owned(live, uid) and not belongs_to(live, uid, made_for):
        name = live["metadata"]["name"]
        raise NotUsable(
            f"The Secret {name} exists and belongs to {whose(live)}, not to {owner}: delete or rename it."
        )


def is_owned(live: Object, uid: str) -> bool:
    """Whether the object of this uid is an owner. Any owner counts, not only the one that controls it, as
    others may have put themselves in its place.
    """
    return any(owner.get("uid") == uid for owner in live["metadata"].get("ownerReferences") or ())


def require_adopted(secrets: Iterable[Object], adopted: Collection[str], owner: str) -> None:
    """Require of Secrets whose keys or passwords are to be used that an owner has them, or is to adopt them.

    Whoever may create Secrets can make one that looks like an orphan of ours, and knows the key in it. A uid
    in the owner's own manifest is what he cannot forge.

    Args:
        adopted: the uids that the owner's manifest names.
        owner: its kind and name.

    Raises:
        NotUsable: one of them is an orphan that the manifest does not name.
    """
    orphans = [live["metadata"] for live in secrets if is_orphan(live)]
    if all(orphan["uid"] in adopted for orphan in orphans):
        return
    # With those that are named already, so that one annotation is enough for all.
    which = " and ".join(orphan["name"] for orphan in orphans)
    raise NotUsable(
        f"No object owns the Secret{'s' * (len(orphans) > 1)} {which}, and whoever has created it may know"
        " the keys or the password in it. If it was left behind by an object that you have deleted, set the"
        f" annotation {names.ADOPT_SECRETS}={','.join(orphan['uid'] for orphan in orphans)} on the {owner}."
        " Otherwise delete it: a new one is made, and clients need its content."
    )


def needs_write(live: Object, data: SecretData) -> bool:
    """Whether a Secret of ours is to hold something else, or is to get an owner again."""
    return decoded(live) != data or is_orphan(live)


async def secret_of(kube: Kube, cluster: Identity, name: str) -> dict[str, str]:
    """What a Secret holds that the BrokerCluster's own pass makes or takes over.

    Raises:
        NotUsable: it has not done so yet.
    """
    live = await kube.get("v1", "Secret", cluster.namespace, name)
    if live is None:
        raise NotUsable(f"The Secret {name} does not exist yet.")
    if not is_owned(live, cluster.uid):
        raise NotUsable(f"The Secret {name} does not belong to the BrokerCluster {cluster.name} yet.")
    return decoded(live)


def client_properties(secret: Mapping[str, str]) -> dict[str, str] | None:
    """The settings with which the operator connects, of what its Secret holds; None if a part is missing."""
    if any(not secret.get(file) for file in (*_CERTIFICATE, TRUST_FILE)):
        return None
    return {
        "security.protocol": "SSL",
        "ssl.ca.pem": secret[TRUST_FILE],
        "ssl.certificate.pem": secret[CERTIFICATE_FILE],
        "ssl.key.pem": secret[KEY_FILE],
    }
