"""Who a load is to the brokers of a secured BrokerCluster: its name, its key, and what it may do.

Pure but for new keys. Each load logs in under a name of its own, with a certificate of the authority that
also issues those of Users. The name has an underscore, which that of a User cannot have. Where there is
authorization the load may read its topic and the topics that its transform reads, delete from its topic if
retention waits for loads, and do nothing else. The resident loader is one process, and so one load with one
name: it may do what the load of each of its Topics may.

The key is in a Secret that belongs to the CronJob or StatefulSet whose pods log in with it, and goes with it.
The driver and its executors mount it, so it is in no environment, on no command line, and not among what
Spark sends to executors.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.fields import Object
from mainstem_operator.api.listeners import LOADS
from mainstem_operator.api.secret_data import SecretData, encoded
from mainstem_operator.api.topics import TopicSpec
from mainstem_operator.api.users import EVERY_HOST, AclRule
from mainstem_operator.certificates.issuing import (
    SERVER_DAYS,
    SERVER_RENEWAL_DAYS,
    KeyPair,
    expires_within,
    is_issued,
    issue,
)
from mainstem_operator.certificates.plan import TRUST_FILE
from mainstem_operator.kubernetes.manifests import SECRET_MODE, Manifest

MOUNT_PATH: Final = "/etc/mainstem-load"
PROPERTIES_FILE: Final = "client.properties"
_KEY_FILE: Final = "load.pem"
"""The key and its certificate. In one file, so that nobody reads a new key with an old certificate."""
_USER_PREFIX: Final = "mainstem_"
LOAD_SUFFIX: Final = "-load"
"""Of the names of loads."""
IDENTITY_MOUNT: Final[Manifest] = {"name": "identity", "mountPath": MOUNT_PATH, "readOnly": True}
"""Of the volume that `identity_volume` is."""


def identity_volume(workload: str) -> Manifest:
    """The volume with the key of the pods of a CronJob or StatefulSet."""
    secret = {"secretName": names.load_identity(workload), "defaultMode": SECRET_MODE}
    return {"name": "identity", "secret": secret}


def load_user(load: str) -> str:
    """The user as whom the load of that name logs in."""
    return f"{_USER_PREFIX}{load}"


def load_acls(topic: TopicSpec) -> frozenset[AclRule]:
    """What the topic's load may do."""
    transform = None if topic.warehouse is None else topic.warehouse.transform
    inputs = [] if transform is None else [source.topic for source in transform.inputs.values()]
    allowed = {("read", name) for name in (topic.topic, *inputs) if name is not None}
    if topic.warehouse is not None and topic.warehouse.until_loaded is not None:
        # Kafka knows one right to delete records, and the topic with them.
        allowed.add(("delete", topic.topic))
    return frozenset(AclRule("topic", name, False, what, True, EVERY_HOST) for what, name in allowed)


def resident_acls(topics: Iterable[TopicSpec]) -> frozenset[AclRule]:
    """What the resident loader of these Topics may do."""
    return frozenset(rule for topic in topics for rule in load_acls(topic))


def kept_acls(present: Iterable[AclRule], entries: Iterable[Mapping[str, Any]]) -> frozenset[AclRule]:
    """The rules of the resident loader that entries of it need, whose Topics nobody looks at.

    Args:
        present: all rules that brokers have of it. The entries are in a ConfigMap, so nothing is granted
            for their sake.
        entries: with the arguments of `load_arguments`.
    """
    topics = {topic for entry in entries for topic in _topics_read_by(entry["arguments"])}
    return frozenset(rule for rule in present if rule.resource == "topic" and rule.name in topics)


def _topics_read_by(arguments: Sequence[str]) -> set[str]:
    """The topic of a load, which is its first argument, and those of its inputs."""
    inputs = (value for option, value in pairwise(arguments) if option == "--input")
    sources = (value.partition("=")[2].split(":") for value in inputs)
    return {arguments[0], *(source[1] for source in sources if source[0] == "topic" and len(source) > 1)}


def gone_users(users: Iterable[str], loads: Iterable[str]) -> set[str]:
    """Those of `users`, by which brokers know ACLs, that were loads and are none of `loads`.

    A user of others may have a name that begins as those of loads do.
    """
    were_loads = {
        user
        for user in users
        if user == load_user(names.RESIDENT_LOADER)
        or (user.startswith(_USER_PREFIX) and user.endswith(LOAD_SUFFIX))
    }
    return were_loads - {load_user(load) for load in loads}


def plan_load_key(load: str, present: SecretData, authority: KeyPair, now: dt.datetime) -> KeyPair:
    """The key and certificate that the Secret has, or new ones."""
    text = present.get(_KEY_FILE, "")
    key, begin, certificate = text.partition("-----BEGIN CERTIFICATE-----")
    pair = KeyPair(key, begin + certificate)
    if is_issued(pair, authority, load_user(load), ()) and not expires_within(pair, SERVER_RENEWAL_DAYS, now):
        return pair
    return issue(authority, load_user(load), (), SERVER_DAYS, now)


def identity_data(pair: KeyPair, trust: str) -> dict[str, str]:
    """What the load's Secret is to hold. `trust`: the certificates of the brokers' authority."""
    properties = {
        "security.protocol": LOADS.protocol,
        "ssl.ca.location": f"{MOUNT_PATH}/{TRUST_FILE}",
        "ssl.certificate.location": f"{MOUNT_PATH}/{_KEY_FILE}",
    }
    return {
        TRUST_FILE: trust,
        _KEY_FILE: pair.key + pair.certificate,
        PROPERTIES_FILE: "".join(f"{name}={value}\n" for name, value in properties.items()),
    }


def identity_secret(cluster: ClusterSpec, workload: Object, data: SecretData) -> Manifest:
    """The Secret with the key of a load, for the CronJob or StatefulSet whose pods log in with it."""
    metadata = workload["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.load_identity(metadata["name"]),
            "namespace": cluster.namespace,
            "labels": metadata["labels"],
            "ownerReferences": [
                {
                    "apiVersion": workload["apiVersion"],
                    "kind": workload["kind"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "type": "Opaque",
        "data": encoded(data),
    }
