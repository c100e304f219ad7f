"""One good manifest of each kind that says something in every field it can: what wrong ones are made from."""

from __future__ import annotations

from typing import Any, Final

from tests.e2e.definitions import Manifest, manifest

_RESOURCES: Final[dict[str, Any]] = {
    "requests": {"cpu": "500m", "memory": "1Gi"},
    "limits": {"cpu": 2, "memory": "2Gi"},
}
_POD: Final[dict[str, Any]] = {
    "labels": {"example.com/team": "events"},
    "annotations": {"example.com/note": "Anything at all: 100 %."},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "important",
    "serviceAccountName": "default",
    "imagePullSecrets": [{"name": "registry.example.com"}],
}
_STORAGE: Final = {
    "type": "persistent",
    "size": "1.5Ti",
    "storageClassName": "fast-ssd",
    "retention": "Delete",
}

WHOLE: Final[dict[str, Manifest]] = {
    "BrokerCluster": manifest(
        "BrokerCluster",
        {
            "brokers": {
                "replicas": 5,
                "image": "registry.example.com:5000/mainstem/broker:0.1.0@sha256:abc",
                "storage": _STORAGE,
                "config": {"num.partitions": 6, "log.retention.bytes": "-1"},
                "resources": _RESOURCES,
                "rack": {"nodeLabel": "topology.kubernetes.io/zone"},
                "spread": "Required",
                "pod": _POD,
            },
            "zookeeper": {
                "replicas": 5,
                "image": "mainstem/zookeeper",
                "storage": _STORAGE,
                "resources": _RESOURCES,
                "pod": _POD,
            },
            "listeners": {
                "external": {"type": "NodePort", "host": "kafka.example.org", "nodePortFirst": 31000}
            },
            "rolling": {"stuckAfterSeconds": 900, "moveBytesPerSecond": 20_000_000},
            "networkPolicy": {"enabled": False},
            "deletionProtection": True,
            "warehouse": {
                "location": "s3://lake/events",
                "endpoint": "https://s3.example.com:9000",
                "region": "eu-central-1",
                "credentialsSecret": "lake",
                "allowTransforms": True,
                "residentLoader": {"resources": _RESOURCES},
                "pod": {"labels": {"team": "data"}, "annotations": {"example.com/mesh": "off"}},
            },
        },
    ),
    "Topic": manifest(
        "Topic",
        {
            "clusterRef": {"name": "events"},
            "topicName": "Clicks_2026.v1",
            "partitions": 6,
            "replicas": 3,
            "config": {"retention.ms": 604_800_000, "min.cleanable.dirty.ratio": "0.5"},
            "deletionPolicy": "Delete",
            "deletionProtection": True,
            "warehouse": {
                "table": "clicks",
                "schedule": "0,30 8-18/2 1 jan-mar MON-FRI",
                "timeZone": "Europe/Berlin",
                "format": "json",
                "schemaRegistry": "http://registry.default:8081",
                "columns": {"price": "decimal(10,2)", "tags": '{"type":"array","elementType":"long"}'},
                "eventTime": "time",
                "partitionBy": "day",
                "headers": True,
                "deadLetter": {"table": "dead_letters"},
                "onGap": "skip",
                "executors": 4,
                "maxRecords": 1_000_000,
                "maxRejectedPercent": 5,
                "eventTimeUnit": "ms",
                "eventDayMin": "2020-01-01",
                "eventDayMax": "2030-12-31",
                "freshWithinSeconds": 3600,
                "transform": {
                    "function": "orders.jobs:clean",
                    "image": "registry.example.com/orders-jobs:1",
                    "inputs": {
                        "users": {"topic": "users.v1", "format": "json", "columns": {"id": "long"}},
                        "shops": {"table": "shops"},
                    },
                    "deadlineSeconds": 600,
                },
                "backfill": {"requestId": "b1", "mode": "Replace", "days": ["2026-11-21"]},
                "rewind": {"requestId": "r1", "to": "2026-11-21T09:30:00Z"},
                "replayDeadLetters": {"requestId": "d1"},
                "retention": "untilLoaded",
                "retentionLimit": "50Gi",
                "maintenance": {"schedule": "30 3 * * *", "keepFilesHours": 48},
                "suspend": True,
                "resources": _RESOURCES,
            },
        },
    ),
    "ConsumerGroup": manifest(
        "ConsumerGroup",
        {
            "clusterRef": {"name": "events"},
            "groupId": "billing, the second",
            "maxLag": 10_000,
            "maxLagSeconds": 300,
            "reset": {
                "requestId": "replay-of-november",
                "to": "datetime",
                "datetime": "2026-11-01T00:00:00.5+01:00",
                "topics": ["clicks", "flights"],
                "policy": "Fail",
                "dryRun": True,
            },
        },
    ),
    "User": manifest(
        "User",
        {
            "clusterRef": {"name": "events"},
            "authentication": {"type": "scram-sha-512", "passwordFrom": {"name": "chosen", "key": "word"}},
            "acls": [
                {
                    "resource": "topic",
                    "name": "clicks",
                    "patternType": "prefix",
                    "operations": ["read", "describe-configs"],
                    "host": "10.0.0.7",
                    "deny": True,
                }
            ],
            "quotas": {
                "producerByteRate": 1_000_000,
                "consumerByteRate": 2_000_000,
                "requestPercentage": 50,
                "controllerMutationRate": 10,
            },
        },
    ),
}
