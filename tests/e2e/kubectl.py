"""The cluster under test, through kubectl: any cluster that KUBECONFIG names."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.support.waiting import let_pass

RESTRICTED: Final = {"pod-security.kubernetes.io/enforce": "restricted"}
_LAST_LINES: Final = 20


class KubectlError(AssertionError):
    """kubectl failed; the message is its own."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """One namespace of the cluster; every call is kubectl's, in that namespace."""

    name: str

    def kubectl(
        self, *arguments: str, standard_input: str | None = None, timeout_seconds: float = 300
    ) -> str:
        """Run kubectl here and return its output.

        Raises:
            KubectlError: it failed.
        """
        return kubectl(
            "--namespace", self.name, *arguments, standard_input=standard_input, seconds=timeout_seconds
        )

    def create(self) -> None:
        """Make the namespace, with restricted pod security."""
        metadata = {"name": self.name, "labels": RESTRICTED}
        apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def delete(self) -> None:
        """Remove it with all it holds, and wait until it is gone."""
        kubectl("delete", "namespace", self.name, "--ignore-not-found", "--timeout=300s", seconds=330)

    def apply(self, *manifests: dict[str, Any]) -> None:
        apply(*manifests, namespace=self.name)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object as the API server has it."""
        results: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "--output=json"))
        return results

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind, or those with the labels of `selector`."""
        result = json.loads(self.kubectl("get", kind, f"--selector={selector}", "--output=json"))
        items: list[dict[str, Any]] = result["items"]
        return items

    def wait_ready(self, workload: str, timeout_seconds: float = 180) -> None:
        """Wait until every pod of a workload (`statefulset/broker`) is ready.

        Raises:
            KubectlError: not in time; the message tells what the pods say of themselves.
        """
        try:
            self.kubectl(
                "rollout",
                "status",
                workload,
                f"--timeout={timeout_seconds:.0f}s",
                timeout_seconds=timeout_seconds + 30,
            )
        except KubectlError as error:
            raise KubectlError(f"{error}\n{self.description()}") from error

    def description(self) -> str:
        """Pods and latest events, for the report of a failed test."""
        pods = self.kubectl("get", "pods", "--output=wide")
        events = self.kubectl("get", "events", "--sort-by=.lastTimestamp").splitlines()
        return "\n".join([pods, *events[-_LAST_LINES:]])

    def run_pod(self, name: str, image: str, arguments: Sequence[str], timeout_seconds: float = 120) -> str:
        """Run a pod to its end, remove it and return its log.

        Raises:
            KubectlError: it failed or took too long; the message has its log.
        """
        self.apply(_pod(name, image, arguments))

        def ended() -> bool:
            return self.get("pod", name)["status"]["phase"] in ("Succeeded", "Failed")

        in_time = poll(ended, timeout_seconds)
        phase = self.get("pod", name)["status"]["phase"]
        log = self.kubectl("logs", name) if in_time else ""
        if phase != "Succeeded":
            raise KubectlError(f"pod {name} is {phase}:\n{log}\n{self.description()}")
        self.kubectl("delete", "pod", name, "--wait=false")
        return log


def kubectl(*arguments: str, standard_input: str | None = None, seconds: float = 300) -> str:
    """Run kubectl and return its output.

    Raises:
        KubectlError: it failed.
    """
    finished = subprocess.run(
        ["kubectl", *arguments],
        input=standard_input,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if finished.returncode:
        raise KubectlError(f"kubectl {' '.join(arguments)}: {finished.stderr.strip()}")
    return finished.stdout


def apply(*manifests: dict[str, Any], namespace: str = "default") -> None:
    """Server-side apply of several objects."""
    documents = "\n---\n".join(map(json.dumps, manifests))  # a List would be checked here, and null refused
    options = ["--server-side", "--field-manager=mainstem-e2e", f"--namespace={namespace}"]
    kubectl("apply", *options, "--filename=-", standard_input=documents)


def poll(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    """Evaluate the condition once a second until it holds; False when time is up."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        let_pass(1.0, "between two looks")
    return True


def _pod(name: str, image: str, arguments: Sequence[str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": name,
                    "image": image,
                    "args": list(arguments),
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }
