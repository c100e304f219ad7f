"""One installed chart and its BrokerCluster, as a user has them: what the tests ask of it and do to it."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from tests.e2e.kubectl import KubectlError, Namespace, kubectl, poll

CHART: Final = Path(__file__).resolve().parents[2] / "helm" / "mainstem"
CLUSTER: Final = "events"
IMAGE_TAG: Final = "dev"
OPERATOR_IMAGE: Final = os.environ.get("E2E_OPERATOR_IMAGE", f"mainstem/operator:{IMAGE_TAG}")
"""Another one while the operator is worked on, so that others' releases on the same cluster keep theirs."""
NEXT_OPERATOR_IMAGE: Final = "mainstem/operator:next"
RESYNC_SECONDS: Final = 20
OPERATOR: Final = "app.kubernetes.io/component=operator"
BROKERS: Final = f"mainstem.dev/cluster={CLUSTER},app.kubernetes.io/component=broker"
SERVERS: Final = f"mainstem.dev/cluster={CLUSTER},app.kubernetes.io/component=zookeeper"
CLUSTER_WIDE: Final = (
    "clusterroles",
    "clusterrolebindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
)
"""What the chart makes outside of namespaces, besides the definitions."""
KINDS: Final = ("brokerclusters", "topics", "consumergroups", "users")

_BROKER_RESOURCES: Final = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
_SERVER_RESOURCES: Final = {"requests": {"cpu": "20m", "memory": "192Mi"}, "limits": {"memory": "512Mi"}}


def cluster_spec(brokers: int = 3, servers: int = 3, **more: Any) -> dict[str, Any]:
    """The BrokerCluster of the tests, on local volumes as kind has them."""
    return {
        "brokers": {
            "replicas": brokers,
            "storage": {"type": "local", "size": "1Gi"},
            "rack": {"nodeLabel": "topology.kubernetes.io/zone"},
            "config": {
                "default.replication.factor": min(3, brokers),
                "min.insync.replicas": min(2, brokers),
                "offsets.topic.num.partitions": 5,
                "auto.create.topics.enable": "false",
            },
            "resources": _BROKER_RESOURCES,
        },
        "zookeeper": {
            "replicas": servers,
            "storage": {"type": "local", "size": "1Gi"},
            "resources": _SERVER_RESOURCES,
        },
        "listeners": {"external": {"type": "NodePort"}},
        **more,
    }


@dataclass(slots=True)
class Installation:
    """A release of the chart in a namespace of its own, and, by default, its BrokerCluster."""

    namespace: Namespace
    expected_log: list[str] = field(default_factory=list)
    """What the test makes the operator log as a warning or an error; parts of lines."""
    restarts_at_first: list[str] = field(default_factory=list)
    """What the operator reported of pods that it restarted before the BrokerCluster was first stable."""
    _admin: tuple[str, AdminClient] | None = None

    # --- Helm ---

    def install(self, spec: Mapping[str, Any] | None = None, **values: Any) -> None:
        """Install the chart, or bring the release to these values. `spec` is the BrokerCluster's."""
        chosen = {
            "image": {"tag": IMAGE_TAG, "operator": OPERATOR_IMAGE},
            "resyncSeconds": RESYNC_SECONDS,
            "cluster": {"create": spec is not None, "name": CLUSTER, "spec": dict(spec or {})},
            **values,
        }
        self.helm(
            "upgrade", "--install", "mainstem", str(CHART), "--values=-", standard_input=json.dumps(chosen)
        )

    def uninstall(self) -> None:
        self.helm("uninstall", "mainstem", "--wait", "--timeout=2m")

    def remove(self) -> None:
        """Uninstall what is installed, if anything is, and delete the namespace."""
        if self.helm("list", "--short").split():
            self.uninstall()
            self.wait_for_no_brokers()  # with them the namespace would take minutes
        self.namespace.delete()

    def cluster_wide(self) -> set[str]:
        """Objects outside of namespaces that carry the release's name."""
        names = kubectl("get", ",".join(CLUSTER_WIDE), "--output=name").split()
        return {name for name in names if f"/{self.namespace.name}-mainstem" in name}

    def wait_for_no_brokers(self) -> None:
        """Wait until no pod of a BrokerCluster is left, once there is no BrokerCluster."""
        wait_until(lambda: not self.namespace.list("pods", "mainstem.dev/cluster"), "no pod is left", 180)

    def helm(self, *arguments: str, standard_input: str | None = None) -> str:
        finished = subprocess.run(
            ["helm", "--namespace", self.namespace.name, *arguments],
            input=standard_input,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert finished.returncode == 0, f"helm {' '.join(arguments)}: {finished.stderr}{finished.stdout}"
        return finished.stdout

    # --- Objects and their conditions ---

    def apply(self, kind: str, name: str, spec: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Server-side apply of a Topic or ConsumerGroup; `fields` are its spec's unless `spec` is given."""
        whole = {"clusterRef": {"name": CLUSTER}, **fields} if spec is None else dict(spec)
        manifest = {
            "apiVersion": "mainstem.dev/v1beta1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": whole,
        }
        self.namespace.apply(manifest)

    def patch_cluster(self, patch: Mapping[str, Any]) -> None:
        """Merge `patch` into the BrokerCluster's spec."""
        self.patch("brokercluster", CLUSTER, {"spec": patch})

    def patch(self, kind: str, name: str, patch: Mapping[str, Any]) -> None:
        self.namespace.kubectl("patch", kind, name, "--type=merge", f"--patch={json.dumps(patch)}")

    def annotate(self, kind: str, name: str, annotation: str, value: str | None) -> None:
        self.patch(kind, name, {"metadata": {"annotations": {f"mainstem.dev/{annotation}": value}}})

    def delete(self, kind: str, name: str, seconds: float = 60) -> None:
        """Delete an object and wait until it is gone."""
        self.namespace.kubectl("delete", kind, name, f"--timeout={seconds:.0f}s", "--ignore-not-found")

    def status(self, kind: str, name: str) -> dict[str, Any]:
        results: dict[str, Any] = self.namespace.get(kind, name).get("status") or {}
        return results

    def until(
        self, kind: str, name: str, type_: str, status: str = "True", reason: str = "", seconds: float = 90
    ) -> dict[str, Any]:
        """Wait for a condition of the object's present generation, and answer it."""
        seen: dict[str, Any] = {}

        def holds() -> bool:
            result = self.namespace.get(kind, name)
            for item in (result.get("status") or {}).get("conditions") or ():
                if item["type"] == type_:
                    seen.clear()
                    seen.update(item)
            current = seen.get("observedGeneration") == result["metadata"]["generation"]
            return bool(current and seen["status"] == status and (not reason or seen["reason"] == reason))

        in_time = poll(holds, seconds)
        assert in_time, (
            f"{kind}/{name} is not {type_}={status} {reason} within {seconds} s but {seen}\n"
            f"{self.namespace.description()}"
        )
        return dict(seen)

    def settled(self, seconds: float = 180) -> None:
        """Wait until the BrokerCluster serves, is whole, and the operator has nothing left to do."""
        for type_ in ("Stable", "Ready", "Healthy", "CoordinationHealthy", "Stable"):
            self.until("brokercluster", CLUSTER, type_, seconds=seconds)

    # --- Brokers ---

    @property
    def outside(self) -> str:
        """The bootstrap servers for this machine, which is outside the cluster."""
        return str(self.status("brokercluster", CLUSTER)["externalBootstrapServers"])

    @property
    def admin(self) -> AdminClient:
        """A stock client; it is kept, because its requests end with it."""
        servers = self.outside
        if self._admin is None or self._admin[0] != servers:  # a BrokerCluster made again has other ports
            self._admin = servers, AdminClient({"bootstrap.servers": servers})
        return self._admin[1]

    def topics(self) -> dict[str, Any]:
        """The topics as a stock client sees them."""
        topics: dict[str, Any] = self.admin.list_topics(timeout=30).topics
        return topics

    def pods(self, selector: str = BROKERS) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self.namespace.list("pods", selector)}

    def uids(self, selector: str = BROKERS) -> dict[str, str]:
        return {name: str(pod["metadata"]["uid"]) for name, pod in self.pods(selector).items()}

    def node_of(self, pod: str) -> str:
        return str(self.namespace.get("pod", pod)["spec"]["nodeName"])

    def events(self, reason: str) -> list[str]:
        """The messages of the operator's events with this reason."""
        path = '--output=jsonpath={range .items[*]}{.message}{"\\n"}{end}'
        result = self.namespace.kubectl("get", "events", f"--field-selector=reason={reason}", path)
        return result.splitlines()

    def operator_metrics(self) -> dict[str, float]:
        """The operator's metrics, by name and labels; exactly one operator must run."""
        (pod,) = self.pods(OPERATOR)
        path = f"/api/v1/namespaces/{self.namespace.name}/pods/{pod}:8080/proxy/metrics"
        lines = kubectl("get", "--raw", path).splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def looks(self) -> float:
        """How often the only operator has reconciled a BrokerCluster; 0 while it does not report."""
        try:
            reported = self.operator_metrics()
        except (KubectlError, ValueError):
            return 0
        return reported.get('mainstem_operator_reconcile_total{kind="cluster",result="ok"}', 0)

    # --- Invariants ---

    def check(self, since: dt.datetime) -> None:
        """What holds after every test: no unexpected line in the operator's log, every status current."""
        bad = self.unexpected_log_lines(since)
        assert not bad, "the operator logged:\n" + "\n".join(bad)
        late = self.behind()
        assert poll(lambda: not self.behind(), 45), f"statuses are behind: {late}"

    def unexpected_log_lines(self, since: dt.datetime) -> list[str]:
        """Warnings and errors of the operator since then that no test provoked."""
        stamp = since.strftime("%Y-%m-%dT%H:%M:%SZ")
        with suppress(KubectlError):
            log = self.namespace.kubectl(
                "logs", f"--selector={OPERATOR}", "--tail=-1", f"--since-time={stamp}"
            )
            return [line for line in log.splitlines() if self._is_bad(line)]
        return []

    def _is_bad(self, line: str) -> bool:
        try:
            level = json.loads(line).get("level")
        except ValueError:
            level = "error"  # a traceback, say
        return level not in ("info", "debug") and not any(part in line for part in self.expected_log)

    def behind(self) -> list[str]:
        """Objects whose status is of an older generation."""
        result = self.namespace.list(",".join(KINDS))
        return [
            f"{item['kind']}/{item['metadata']['name']}"
            for item in result
            if (item.get("status") or {}).get("observedGeneration") != item["metadata"]["generation"]
        ]


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
    """Wait for something of the test's own.

    Raises:
        AssertionError: not in time.
    """
    assert poll(condition, seconds), f"not within {seconds} s: {what}"


def reasons(conditions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Type and reason of conditions."""
    return {str(item["type"]): str(item["reason"]) for item in conditions}
