"""Spark's executors as Kubernetes pods: how many, and what Spark and Kubernetes have to be told. Pure.

The driver runs in a pod of its own, in client mode, and makes the executors' pods itself, so nothing else has
to be installed in the cluster. Pods are owned by the driver's, and go with it.

Executors of plain loads only start Python workers: rows never reach the JVM, so its heap is small and the
memory is overhead, as Spark calls it. Rows of transforms pass through the JVM.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mainstem_loader.errors import SettingsError
from mainstem_loader.whole_numbers import is_whole_number

MASTER: Final = "k8s://https://kubernetes.default.svc"

RECORDS_PER_EXECUTOR_MIN: Final = 5_000_000
"""Two cores load that many in a few seconds, about as long as a pod takes to start and register."""
HEAP: Final = "512m"
HEAP_OF_TRANSFORMS: Final = "1536m"
USER_ID: Final = 10001
CONTAINER: Final = "executor"
SECRET_MODE: Final = 0o440  # for the group, which is fsGroup's

_STORE_SETTINGS: Final = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP")


@dataclass(frozen=True, slots=True)
class ExecutorPods:
    """What executors' pods are like.

    Attributes:
        count_max: the most there may be at once.
        cores, memory_mib: of each.
        records_min: how many records make one worth its start.
        image: the loader's own.
        namespace, driver_pod, driver_ip: of the driver, whose pod owns them.
        pull_secrets: names of the Secrets with which the image is pulled.
        pull_policy: when it is pulled, as Kubernetes calls it; empty for Spark's default.
        secret: whose keys become their environment, such as the credentials of the store; None for none.
        environment: settings of the store, without secrets.
        heap: of the JVM, as Spark writes it.
        identity: a Secret with what connections to brokers need, and where the driver has it mounted, so that
            the files that its client properties name are there in executors too; None for none.
        placement: where they may run and how urgent they are, as a part of a pod's spec: nodeSelector,
            tolerations, affinity and priorityClassName.
        annotations: of their metadata. Labels they have only from Spark.
    """

    count_max: int
    image: str
    namespace: str
    driver_pod: str
    driver_ip: str
    cores: int = 1
    memory_mib: int = 2048
    records_min: int = RECORDS_PER_EXECUTOR_MIN
    pull_secrets: tuple[str, ...] = ()
    secret: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    heap: str = HEAP
    identity: tuple[str, str] | None = None
    placement: Mapping[str, Any] = field(default_factory=dict)
    pull_policy: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


def pods_from_environment(
    environment: Mapping[str, str], count_max: int, records_min: int = RECORDS_PER_EXECUTOR_MIN
) -> ExecutorPods:
    """As a pod is told about itself: SPARK_IMAGE, POD_NAMESPACE, POD_NAME, POD_IP (downward API), and if need
    be EXECUTOR_SECRET, EXECUTOR_PULL_SECRETS (comma separated), EXECUTOR_PULL_POLICY, EXECUTOR_CORES,
    EXECUTOR_MEMORY_MIB, EXECUTOR_IDENTITY_SECRET with EXECUTOR_IDENTITY_PATH, EXECUTOR_PLACEMENT and
    EXECUTOR_ANNOTATIONS (JSON).

    Raises:
        SettingsError: something is missing, so this is no pod that can have executors.
    """
    needed = ("SPARK_IMAGE", "POD_NAMESPACE", "POD_NAME", "POD_IP")
    missing = [name for name in needed if not environment.get(name)]
    if missing:
        raise SettingsError(
            f"--executors needs {', '.join(missing)} in the environment, as the pods of the operator's"
            " CronJobs have them; elsewhere, leave it away."
        )
    return ExecutorPods(
        count_max=count_max,
        image=environment["SPARK_IMAGE"],
        namespace=environment["POD_NAMESPACE"],
        driver_pod=environment["POD_NAME"],
        driver_ip=environment["POD_IP"],
        records_min=records_min,
        pull_secrets=tuple(filter(None, environment.get("EXECUTOR_PULL_SECRETS", "").split(","))),
        secret=environment.get("EXECUTOR_SECRET") or None,
        cores=_positive(environment, "EXECUTOR_CORES", 1),
        memory_mib=_positive(environment, "EXECUTOR_MEMORY_MIB", 2048),
        environment=tuple((name, environment[name]) for name in _STORE_SETTINGS if environment.get(name)),
        identity=_identity(environment),
        placement=json.loads(environment.get("EXECUTOR_PLACEMENT") or "{}"),
        pull_policy=environment.get("EXECUTOR_PULL_POLICY", ""),
        annotations=json.loads(environment.get("EXECUTOR_ANNOTATIONS") or "{}"),
    )


def _identity(environment: Mapping[str, str]) -> tuple[str, str] | None:
    secret, path = environment.get("EXECUTOR_IDENTITY_SECRET"), environment.get("EXECUTOR_IDENTITY_PATH")
    return (secret, path) if secret and path else None


def _positive(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not is_whole_number(text) or int(text) < 1:
        raise SettingsError(f"{name} is {text!r}; it must be a whole number of at least 1.")
    return int(text)


def executor_count(pods: ExecutorPods, record_count: int, task_count: int) -> int:
    """How many executors a load is worth; 0 when the driver does it faster by itself."""
    worthwhile = record_count // pods.records_min
    useful = -(-task_count // pods.cores)
    return min(pods.count_max, worthwhile, useful)


def spark_settings(pods: ExecutorPods, count: int) -> dict[str, str]:
    """Spark's settings for that many executors.

    Both of the driver's addresses are the pod's: since Spark 4.3 executors call the one it binds to.
    """
    settings = {
        "spark.kubernetes.namespace": pods.namespace,
        "spark.kubernetes.container.image": pods.image,
        "spark.kubernetes.driver.pod.name": pods.driver_pod,
        "spark.driver.host": pods.driver_ip,
        "spark.driver.bindAddress": pods.driver_ip,
        "spark.executor.instances": str(count),
        "spark.executor.cores": str(pods.cores),
        "spark.kubernetes.executor.limit.cores": str(pods.cores),
        "spark.executor.memory": pods.heap,
        "spark.executor.memoryOverhead": f"{pods.memory_mib}m",
        "spark.kubernetes.executor.podTemplateContainerName": CONTAINER,
        # Unlike any other's: a driver that is started again must not meet the pods of the one before.
        # The driver's has the dots of its Topic's name, and Spark takes a label of host names.
        "spark.kubernetes.executor.podNamePrefix": f"{pods.driver_pod.replace('.', '-')[:36]}"
        f"-{secrets.token_hex(3)}",
        "spark.kubernetes.allocation.batch.size": str(count),
        "spark.dynamicAllocation.enabled": "false",
        # The account of loads has rights on pods alone, and nothing else is needed.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    }
    if pods.pull_secrets:
        settings["spark.kubernetes.container.image.pullSecrets"] = ",".join(pods.pull_secrets)
    if pods.pull_policy:
        settings["spark.kubernetes.container.image.pullPolicy"] = pods.pull_policy
    settings |= {f"spark.executorEnv.{name}": value for name, value in pods.environment}
    return settings


def pod_template(pods: ExecutorPods) -> dict[str, Any]:
    """The executors' pod template: what "restricted" pod security asks for, scratch room, credentials."""
    container: dict[str, Any] = {
        "name": CONTAINER,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    if pods.secret is not None:
        container["envFrom"] = [{"secretRef": {"name": pods.secret}}]
    volumes: list[dict[str, Any]] = [{"name": "scratch", "emptyDir": {}}]
    if pods.identity is not None:
        secret, path = pods.identity
        container["volumeMounts"].append({"name": "identity", "mountPath": path, "readOnly": True})
        volumes.append({"name": "identity", "secret": {"secretName": secret, "defaultMode": SECRET_MODE}})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"annotations": dict(pods.annotations)},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": volumes,
            **pods.placement,
        },
    }
