"""Which certificates a secured BrokerCluster is to have, by those that it has. Pure but for new keys.

The cluster's authority issues for brokers and the operator, the clients' authority for Users. They are apart
because who has a certificate of the first one is a broker or the operator: no User can ever get one.
An authority is renewed with the same key, long before it ends, without an interruption. All that it has
issued is renewed when it comes near its end, or no longer fits.

On request an authority gets another key, in three steps that are in its Secret with their time. First there
is a next one, which clients and brokers have to trust and which issues nothing. After the overlap it issues
all certificates again, and the previous one is still trusted. After another overlap that is dropped. So every
certificate in use is trusted by all that read their files within the overlap.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import AuthorityReplacement, ClusterSpec
from mainstem_operator.api.listeners import BROKER_USER, OPERATOR_USER
from mainstem_operator.api.secret_data import SecretData
from mainstem_operator.api.timestamps import moment_noted, written
from mainstem_operator.certificates.issuing import (
    AUTHORITY_RENEWAL_DAYS,
    SERVER_DAYS,
    SERVER_RENEWAL_DAYS,
    KeyPair,
    authority_is_usable,
    expires_within,
    expiry_of,
    hosts_in,
    is_issued,
    issue,
    new_authority,
    renewed_authority,
)

KEY_FILE: Final = "tls.key"
CERTIFICATE_FILE: Final = "tls.crt"
TRUST_FILE: Final = "ca.crt"
CLIENTS_TRUST_FILE: Final = "clients-ca.crt"
_NEXT_KEY: Final = "next.key"
_NEXT_CERTIFICATE: Final = "next.crt"
_PREVIOUS_CERTIFICATE: Final = "previous.crt"
_SINCE: Final = "since"
_REQUEST: Final = "replacement-request"


def hosts_of(
    cluster: ClusterSpec, node_addresses: Collection[str], cluster_domain: str = names.CLUSTER_DOMAIN
) -> set[str]:
    """The names and addresses under which clients reach the brokers.

    Args:
        cluster_domain: in which Kubernetes' DNS has the names of Services.
    """
    services = (
        names.bootstrap(cluster.name),
        names.headless(cluster.name, names.BROKER),
        f"*.{names.headless(cluster.name, names.BROKER)}",
    )
    hosts = {
        f"{service}.{cluster.namespace}{suffix}"
        for service in services
        for suffix in ("", ".svc", f".svc.{cluster_domain}")
    }
    if cluster.external is not None:
        hosts |= {cluster.external.host} if cluster.external.host else set(node_addresses)
    return hosts


def plan_certificates(
    cluster: ClusterSpec,
    present: Mapping[str, SecretData],
    clients_trust: str | None,
    node_addresses: Collection[str],
    now: dt.datetime,
    cluster_domain: str = names.CLUSTER_DOMAIN,
) -> dict[str, dict[str, str]]:
    """What each Secret is to hold, by its name; what is good stays as it is.

    Args:
        present: the Secrets that exist, by name.
        clients_trust: `ca.crt` of the certificate that the manifest names, empty if that has none; None if
            the manifest names no certificate.
        cluster_domain: as for `hosts_of`.
    """
    replacement = cluster.authority_replacement
    cluster_data = plan_authority(
        present.get(names.cluster_authority(cluster.name)), "Mainstem brokers", replacement, now
    )
    clients_data = plan_authority(
        present.get(names.clients_authority(cluster.name)), "Mainstem users", replacement, now
    )
    authority = KeyPair(cluster_data[KEY_FILE], cluster_data[CERTIFICATE_FILE])
    trust = trust_in(cluster_data)
    brokers = plan_server(
        pair_in(present.get(names.broker_certificate(cluster.name))),
        authority,
        BROKER_USER,
        hosts_of(cluster, node_addresses, cluster_domain),
        now,
    )
    operator = plan_server(
        pair_in(present.get(names.operator_certificate(cluster.name))), authority, OPERATOR_USER, (), now
    )
    return {
        names.cluster_authority(cluster.name): cluster_data,
        names.clients_authority(cluster.name): clients_data,
        names.broker_certificate(cluster.name): {
            **data_of(brokers),
            TRUST_FILE: trust,
            CLIENTS_TRUST_FILE: trust_in(clients_data),
        },
        names.operator_certificate(cluster.name): {**data_of(operator), TRUST_FILE: trust},
        names.trusted_certificates(cluster.name): {
            TRUST_FILE: trust if clients_trust is None else clients_trust
        },
    }


def plan_authority(
    present: SecretData | None, common_name: str, replacement: AuthorityReplacement, now: dt.datetime
) -> dict[str, str]:
    """What the Secret of an authority is to hold: a new one if there is none that can be used, or the one
    that is there, renewed if it is time, at the step of its replacement that is due.
    """
    pair = pair_in(present)
    if present is None or pair is None or not authority_is_usable(pair):
        return {**data_of(new_authority(common_name, now)), _REQUEST: replacement.request}
    data = dict(present)
    if expires_within(pair, AUTHORITY_RENEWAL_DAYS, now):
        data |= data_of(renewed_authority(pair, now))
    following = _next_of(data)
    if following is None and {_NEXT_KEY, _NEXT_CERTIFICATE} & data.keys():  # spoilt by hand: begin again
        for name in (_NEXT_KEY, _NEXT_CERTIFICATE, _REQUEST):
            data.pop(name, None)
    is_under_way = following is not None or _PREVIOUS_CERTIFICATE in data
    if is_under_way and _since(data) is None:
        data[_SINCE] = written(now)
    is_due = is_under_way and now - (_since(data) or now) >= replacement.overlap
    if following is not None:
        if is_due:
            data |= {
                _PREVIOUS_CERTIFICATE: data[CERTIFICATE_FILE],
                **data_of(following),
                _SINCE: written(now),
            }
            del data[_NEXT_KEY], data[_NEXT_CERTIFICATE]
    elif _PREVIOUS_CERTIFICATE in data:
        if is_due:
            del data[_PREVIOUS_CERTIFICATE]
            data.pop(_SINCE, None)
    elif replacement.request not in ("", data.get(_REQUEST)):
        # Another name than that of the previous one, or clients could take one for the other.
        new = new_authority(f"{common_name} {written(now)}", now)
        data |= {
            _NEXT_KEY: new.key,
            _NEXT_CERTIFICATE: new.certificate,
            _SINCE: written(now),
            _REQUEST: replacement.request,
        }
    return data


def trust_in(authority: SecretData) -> str:
    """The certificates to trust, of the Secret of an authority."""
    present = (authority.get(name) for name in (CERTIFICATE_FILE, _NEXT_CERTIFICATE, _PREVIOUS_CERTIFICATE))
    return "".join(certificate for certificate in present if certificate)


def replacement_under_way(authority: SecretData, overlap: dt.timedelta) -> str:
    """How far the replacement of an authority's key is; empty if none is under way."""
    if _NEXT_CERTIFICATE not in authority and _PREVIOUS_CERTIFICATE not in authority:
        return ""
    until = ""
    if (since := _since(authority)) is not None:
        until = f", not before {written(since + overlap)}"
    if _NEXT_CERTIFICATE in authority:
        return f"Both authorities are trusted. Certificates are issued by the new one next{until}."
    return f"Certificates are issued by the new authority. The previous one is not trusted later{until}."


def _next_of(data: SecretData) -> KeyPair | None:
    pair = KeyPair(data.get(_NEXT_KEY, ""), data.get(_NEXT_CERTIFICATE, ""))
    return pair if authority_is_usable(pair) else None


def _since(data: SecretData) -> dt.datetime | None:
    return moment_noted(data.get(_SINCE))


def plan_server(
    present: KeyPair | None, authority: KeyPair, common_name: str, hosts: Collection[str], now: dt.datetime
) -> KeyPair:
    """The certificate that exists, if it does, or a new one."""
    if (
        present is not None
        and is_issued(present, authority, common_name, hosts)
        and not expires_within(present, SERVER_RENEWAL_DAYS, now)
    ):
        return present
    return issue(authority, common_name, hosts, SERVER_DAYS, now)


def plan_renewals(
    cluster: str, present: Mapping[str, SecretData], now: dt.datetime
) -> dict[str, dict[str, str]]:
    """What the Secrets of brokers and operator are to hold whose certificates are due, by name, whatever the
    manifest says now: a new key and certificate of the same authority, with the same hosts.

    Args:
        present: those of the Secrets that exist, and that of the brokers' authority, by name.
    """
    authority = pair_in(present.get(names.cluster_authority(cluster)))
    if authority is None or not authority_is_usable(authority):
        return {}
    renewals = {}
    for name, user in _users_of_certificates(cluster).items():
        data = present.get(name, {})
        pair = pair_in(data)
        if pair is not None and is_issued(pair, authority, user, ()):
            planned = plan_server(pair, authority, user, hosts_in(pair), now)
            if planned != pair:
                renewals[name] = {**data, **data_of(planned)}
    return renewals


def first_expiry(cluster: str, present: Mapping[str, SecretData]) -> dt.datetime | None:
    """When the first of the certificates of brokers and operator ends; None if there are none that can be
    read.
    """
    ends = []
    for name in _users_of_certificates(cluster):
        pair = pair_in(present.get(name))
        if pair is not None:
            with suppress(ValueError):
                ends.append(expiry_of(pair))
    return min(ends, default=None)


def is_due(expiry: dt.datetime, now: dt.datetime) -> bool:
    """Whether a certificate of brokers or operator that ends then is to be renewed."""
    return expiry - now < dt.timedelta(days=SERVER_RENEWAL_DAYS)


def _users_of_certificates(cluster: str) -> dict[str, str]:
    """Who the certificates in Secrets are for, by the names of these."""
    return {
        names.broker_certificate(cluster): BROKER_USER,
        names.operator_certificate(cluster): OPERATOR_USER,
    }


def pair_in(data: SecretData | None) -> KeyPair | None:
    """The key and the certificate in a Secret; None if one of them is missing."""
    if data is None or KEY_FILE not in data or CERTIFICATE_FILE not in data:
        return None
    return KeyPair(data[KEY_FILE], data[CERTIFICATE_FILE])


def data_of(pair: KeyPair) -> dict[str, str]:
    return {KEY_FILE: pair.key, CERTIFICATE_FILE: pair.certificate}
