"""The kind cluster: made, filled with images, and removed."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Container, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import yaml
from tests.e2e.machine import archive
from tests.e2e.machine.commands import MachineError, fan_out, run, say, succeeds
from tests.e2e.machine.engine import Engine
from tests.e2e.machine.settings import CLUSTER_NAME, REPOSITORY, Places
from tests.e2e.machine.tools import is_made_of, make_tool

_NETWORK = "kind"
_CONFIGURATION = REPOSITORY / "tests/e2e/kind.yaml"
_NODES_SECONDS_MAX = 120
_STANDING_SECONDS_MAX = 20


def environment(engine: Engine, places: Places) -> dict[str, str]:
    """What kind, kubectl and helm need in their environment to find the cluster."""
    return engine.environment | {"KUBECONFIG": str(places.kubeconfig)}


def use_kubectl_of(node_image: str, engine: Engine, places: Places) -> None:
    """Take kubectl out of the node image: it is the cluster's own version, and already built."""
    kubectl = places.cache / "node-kubectl"
    stamp = places.cache / ".node-kubectl-from"
    if not (kubectl.exists() and is_made_of(stamp, node_image)):
        container = engine.docker("create", node_image).strip()
        try:
            path = "/usr/bin/kubectl" if node_image.startswith("kindest/") else "/usr/local/bin/kubernetes"
            engine.docker("cp", f"{container}:{path}", kubectl)
        finally:
            engine.docker("rm", "--volumes", container)
        stamp.write_text(node_image)
    make_tool(places, "kubectl", kubectl)


def stands(engine: Engine, places: Places) -> bool:
    """Whether the cluster is there with every node ready; removes one of which not all nodes are.

    Kubernetes calls a node ready for most of a minute after it has stopped, so the nodes are asked first.
    """
    inside = environment(engine, places)
    if CLUSTER_NAME not in run(["kind", "get", "clusters", "--quiet"], environment=inside).split():
        return False
    try:
        run(["kind", "export", "kubeconfig", "--name", CLUSTER_NAME], environment=inside)
        deadline = time.monotonic() + _STANDING_SECONDS_MAX
        while fault := _fault(engine, places):
            if time.monotonic() > deadline:
                raise MachineError(fault)
            time.sleep(0.5)
        _wait_for_nodes(engine, places, _STANDING_SECONDS_MAX)
    except MachineError as error:
        say(f"the cluster {CLUSTER_NAME} that is here does not work and is made anew: {error}")
        delete(engine, places)
        return False
    say(f"the cluster {CLUSTER_NAME} is there already")
    return True


def _fault(engine: Engine, places: Places) -> str:
    """Why the nodes of the cluster that is there cannot be used; empty if they can."""
    nodes = _nodes(engine, places)
    running = ["systemctl", "is-active", "--quiet", "kubelet"]
    answering = [
        node
        for node in nodes
        if _takes_images(engine, node) and succeeds(["docker", "exec", node, *running], engine.environment)
    ]
    return fault_of(nodes, answering, _worker_count())


def fault_of(nodes: Collection[str], answering: Collection[str], worker_count: int) -> str:
    """Why nodes cannot be used; empty if they can.

    Args:
        nodes: all that the cluster has.
        answering: those whose containerd and kubelet run.
        worker_count: how many workers there are to be.
    """
    workers = [node for node in nodes if not _is_control_plane(node)]
    if len(workers) != worker_count:
        return f"It has {len(workers)} workers, not {worker_count}."
    if len(workers) == len(nodes):
        return "It has no control plane."
    silent = sorted(set(nodes) - set(answering))
    return f"These nodes do not answer: {', '.join(silent)}." if silent else ""


def create(engine: Engine, places: Places, node_image: str) -> None:
    """Make the cluster and wait until every node is ready.

    Raises:
        MachineError: kind's own reason.
    """
    create_it = ["kind", "create", "cluster", "--name", CLUSTER_NAME, "--config", str(_CONFIGURATION)]
    inside = environment(engine, places)
    run([*create_it, "--image", node_image, "--wait", "120s"], environment=inside, timeout_seconds=600)
    _wait_for_nodes(engine, places, _NODES_SECONDS_MAX)


def _wait_for_nodes(engine: Engine, places: Places, seconds: int) -> None:
    waiting = ["kubectl", "wait", "node", "--all", "--for=condition=Ready", f"--timeout={seconds}s"]
    run(waiting, environment=environment(engine, places))


@dataclass(frozen=True, slots=True)
class Cargo:
    """Images for the workers, by name; `packed` is None where kind has to load them itself."""

    names: Sequence[str]
    packed: Sequence[archive.Image] | None


def pack(engine: Engine, places: Places, images: Sequence[str]) -> Cargo:
    """Make images ready for `load`."""
    folder = places.cache / "packed-images"
    return Cargo(images, archive.pack(engine, images, folder) if archive.can_pack(engine) else None)


def load(
    engine: Engine,
    places: Places,
    cargo: Cargo,
    creating: Future[None],
    on_first: Container[str] = (),
) -> None:
    """Put images on every worker, unless all are there; the control plane runs none of them.

    As `kind load docker-image` does, but packed, in one stream to all workers, and as soon as these take
    images, which is long before `creating` the cluster has ended. A worker unpacks an image when it first
    runs it.

    Args:
        on_first: images that only the first worker needs to have.

    Raises:
        MachineError: a worker's own reason.
    """
    workers = _workers(engine, places, creating)
    if all(
        _image_on(engine, node, image) == archive.image_id(engine, image)
        for node in workers
        for image in cargo.names
        if node == workers[0] or image not in on_first
    ):
        return
    if cargo.packed is None:
        command = ["kind", "load", "docker-image", "--name", CLUSTER_NAME, "--nodes", ",".join(workers)]
        space = places.cache / "tmp"  # kind puts an archive of all images there for a moment
        space.mkdir(exist_ok=True)
        run([*command, *cargo.names], environment=environment(engine, places) | {"TMPDIR": str(space)})
        return
    importing = ["ctr", "--namespace=k8s.io", "images", "import", "--no-unpack", "--digests", "-"]
    for images, nodes in (
        ([image for image in cargo.packed if image.name not in on_first], workers),
        ([image for image in cargo.packed if image.name in on_first], workers[:1]),
    ):
        if images and nodes:
            fan_out(
                partial(archive.write, images),
                [["docker", "exec", "--interactive", node, *importing] for node in nodes],
                environment=engine.environment,
            )


def _workers(engine: Engine, places: Places, creating: Future[None]) -> list[str]:
    """The workers in the order of `kind.yaml`, once all take images; none where there is no cluster."""
    count = _worker_count()
    deadline = time.monotonic() + _NODES_SECONDS_MAX
    while time.monotonic() < deadline:
        workers = sorted(node for node in _nodes(engine, places) if not _is_control_plane(node))
        if len(workers) == count and all(_takes_images(engine, node) for node in workers):
            return workers
        if creating.done() and creating.exception() is not None:
            return []
        time.sleep(0.5)
    raise MachineError(f"The {count} workers did not start within {_NODES_SECONDS_MAX} s.")


def _worker_count() -> int:
    configured = yaml.safe_load(_CONFIGURATION.read_text())["nodes"]
    return sum(node["role"] == "worker" for node in configured)


def _nodes(engine: Engine, places: Places) -> list[str]:
    listing = ["kind", "get", "nodes", "--name", CLUSTER_NAME]
    return run(listing, environment=environment(engine, places)).split()


def _is_control_plane(node: str) -> bool:
    return node.endswith("-control-plane")


def _takes_images(engine: Engine, node: str) -> bool:
    """Whether the containerd of a node answers."""
    asking = ["ctr", "--namespace=k8s.io", "images", "list", "--quiet"]
    return succeeds(["docker", "exec", node, *asking], engine.environment)


def _image_on(engine: Engine, node: str, image: str) -> str | None:
    """The id of the image by this name on a node, as its kubelet knows it; None without one."""
    try:
        result = json.loads(engine.docker("exec", node, "crictl", "inspecti", image))
    except MachineError:
        return None
    return str(result["status"]["id"])


def delete(engine: Engine, places: Places) -> None:
    """Remove the cluster and its network, if they are there."""
    inside = environment(engine, places)
    if (places.programs / "kind").exists():
        run(["kind", "delete", "cluster", "--name", CLUSTER_NAME], environment=inside)
        if _NETWORK in engine.docker("network", "ls", "--format", "{{.Name}}").split():
            engine.docker("network", "rm", _NETWORK)
    places.kubeconfig.unlink(missing_ok=True)
