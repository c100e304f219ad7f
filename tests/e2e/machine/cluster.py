"""The kind cluster: made, filled with images, and removed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.e2e.machine.commands import run, say
from tests.e2e.machine.engine import Engine
from tests.e2e.machine.settings import CLUSTER_NAME, HELM_MODULE, KIND_MODULE, REPOSITORY, Places
from tests.e2e.machine.tools import go_install, make_tool

_NETWORK = "kind"


def environment(engine: Engine, places: Places) -> dict[str, str]:
    """What kind, kubectl and helm need in their environment to find the cluster."""
    return engine.environment | {"KUBECONFIG": str(places.kubeconfig)}


def install_tools(places: Places) -> None:
    """kind, helm and kubectl, in versions that fit the cluster."""
    go_install(KIND_MODULE, places.programs)
    go_install(HELM_MODULE, places.programs)


def use_kubectl_of(node_image: str, engine: Engine, places: Places) -> None:
    """Take kubectl out of the node image: it is the cluster's own version, and already built."""
    kubectl = places.cache / "node-kubectl"
    stamp = places.cache / ".node-kubectl-from"
    if not (kubectl.exists() and stamp.exists() and stamp.read_text() == node_image):
        container = engine.docker("create", node_image).strip()
        try:
            path = "/usr/bin/kubectl" if node_image.startswith("kindest/") else "/usr/local/bin/kubernetes"
            engine.docker("cp", f"{container}:{path}", kubectl)
        finally:
            engine.docker("rm", "--volumes", container)
        stamp.write_text(node_image)
    make_tool(places, "kubectl", kubectl)


def create(engine: Engine, places: Places, node_image: str) -> None:
    """Make the cluster, unless it runs, and wait until every node is ready.

    Raises:
        MachineError: kind's own reason.
    """
    inside = environment(engine, places)
    if CLUSTER_NAME in run(["kind", "get", "clusters", "--quiet"], environment=inside).split():
        say(f"the cluster {CLUSTER_NAME} is there already")
        run(["kind", "export", "kubeconfig", "--name", CLUSTER_NAME], environment=inside)
    else:
        configuration = REPOSITORY / "tests/e2e/kind.yaml"
        create_it = ["kind", "create", "cluster", "--name", CLUSTER_NAME, "--config", str(configuration)]
        run([*create_it, "--image", node_image, "--wait", "120s"], environment=inside, timeout_seconds=600)
    run(["kubectl", "wait", "node", "--all", "--for=condition=Ready", "--timeout=120s"], environment=inside)


def load(engine: Engine, places: Places, images: Sequence[str]) -> None:
    """Put images on every worker that lacks them; the control plane runs none of them."""
    inside = environment(engine, places) | {"TMPDIR": str(_space(places))}
    nodes = run(["kind", "get", "nodes", "--name", CLUSTER_NAME], environment=inside).split()
    workers = [node for node in nodes if not node.endswith("-control-plane")]
    command = ["kind", "load", "docker-image", "--name", CLUSTER_NAME, "--nodes", ",".join(workers)]
    run([*command, *images], environment=inside)


def delete(engine: Engine, places: Places) -> None:
    """Remove the cluster and its network, if they are there."""
    inside = environment(engine, places)
    if (places.programs / "kind").exists():
        run(["kind", "delete", "cluster", "--name", CLUSTER_NAME], environment=inside)
        if _NETWORK in engine.docker("network", "ls", "--format", "{{.Name}}").split():
            engine.docker("network", "rm", _NETWORK)
    places.kubeconfig.unlink(missing_ok=True)


def _space(places: Places) -> os.PathLike[str]:
    """Where kind may put an archive of all images for a moment."""
    folder = places.cache / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
