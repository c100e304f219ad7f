"""`python -m tests.e2e.machine ACTION`: what the Makefile's targets for the end-to-end machine run."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.machine import cluster, engine, images, node_image, tools
from tests.e2e.machine.commands import MachineError, Stages, say
from tests.e2e.machine.settings import CLUSTER_GOES, REPOSITORY, Places, default_places


def main() -> int:
    """Do one of the actions and tell the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.machine", description="Make a cluster of kind."
    )
    parser.add_argument(
        "action", choices=["up", "images", "node-image", "environment", "test", "pytest", "down", "clean"]
    )
    parser.add_argument("pytest", nargs="*", help="what `test` and `pytest` give to pytest, after --")
    parser.add_argument(
        "--for-gate",
        action="store_true",
        help="with `up`: put Spark's image, most of all bytes, only where the load of the gate runs",
    )
    options = parser.parse_args()
    action = options.action
    places = default_places()
    places.cache.mkdir(parents=True, exist_ok=True)
    tools.use_programs_of(places)
    stages, code = Stages(), 0
    try:
        if action == "test":
            code = test(places, stages, options.pytest)
        elif action == "pytest":
            code = run_pytest(places, options.pytest)
        elif action == "up":
            up(places, stages, on_first=(images.SPARK_IMAGE,) if options.for_gate else ())
        elif action == "images":
            build_images(places, stages)
        elif action == "node-image":
            build_node_image(places, stages)
        elif action == "environment":
            print_environment(places)
        else:
            down(places, forget=action == "clean")
    except MachineError as error:
        sys.stderr.write(f"e2e: {error}\n")
        return 1
    if action in ("up", "images", "node-image", "test"):
        sys.stdout.write(f"{stages.summary()}\n")
    return code


def up(places: Places, stages: Stages, on_first: Container[str] = ()) -> None:
    """A cluster with all images on its workers, from whatever is here already.

    Args:
        on_first: images that only the first worker needs to have.
    """
    with stages.stage("Docker engine"):
        docker = engine.start(places)
    with ThreadPoolExecutor(2) as beside:  # images are half waiting for packages, a cluster mostly for itself

        def build() -> cluster.Cargo:
            with stages.stage("images, beside the next ones"):
                return cluster.pack(docker, places, images.build(docker, places))

        building = beside.submit(build)
        with stages.stage("kind and helm"):
            tools.install_kind_and_helm(places)
        with stages.stage("node image"):
            node = node_image.node_image(docker, places)
            cluster.use_kubectl_of(node, docker, places)
        stands = cluster.stands(docker, places)

        def create() -> None:
            if not stands:
                with stages.stage("kind create cluster, beside the next one"):
                    cluster.create(docker, places, node)

        creating = beside.submit(create)
        try:
            cargo = building.result()
            with stages.stage("images to the nodes"):
                cluster.load(docker, places, cargo, creating, on_first)
        finally:
            creating.result()  # why there are no nodes, if there are none
    say(f"ready: kubectl --kubeconfig {places.kubeconfig} get nodes")


def test(places: Places, stages: Stages, arguments: list[str]) -> int:
    """The whole of it: up, pytest, down; the answer is pytest's exit code.

    After a failure a person may want to look at the cluster; in CI there is nobody to do so.
    """
    up(places, stages)
    with stages.stage("tests"):
        code = run_pytest(places, arguments)
    if code and "CI" not in os.environ:
        say("the cluster is left as the tests left it: `make help` tells of e2e-environment and e2e-down")
    else:
        with stages.stage("down"):
            down(places, forget=False)
    return code


def run_pytest(places: Places, arguments: list[str]) -> int:
    """Run tests on the cluster that `up` made; the answer is pytest's exit code."""
    docker = engine.find(places)
    if docker is None:
        raise MachineError("No Docker engine answers: `make e2e-up` starts one.")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=REPOSITORY,
        env=os.environ | cluster.environment(docker, places) | {CLUSTER_GOES: "1"},
        check=False,
    ).returncode


def build_images(places: Places, stages: Stages) -> None:
    """All images, and what they are called."""
    with stages.stage("Docker engine"):
        docker = engine.start(places)
    with stages.stage("images"):
        names = images.build(docker, places)
    for name in names:
        say(docker.docker("images", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}", name).strip())


def build_node_image(places: Places, stages: Stages) -> None:
    """The image of a node, and what it is called."""
    with stages.stage("Docker engine"):
        docker = engine.start(places)
    with stages.stage("node image"):
        name = node_image.node_image(docker, places)
    say(docker.docker("images", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}", name).strip())


def print_environment(places: Places) -> None:
    """Lines for a shell's `eval`: with them kubectl, helm, kind and docker reach the cluster."""
    position = engine.find(places)
    if position is None:
        raise MachineError("No Docker engine answers: `make e2e-up` starts one.")
    for name, value in cluster.environment(position, places).items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


def down(places: Places, *, forget: bool) -> None:
    """Remove the cluster, end our engine, put the machine as it was; `forget` removes the caches too."""
    position = engine.find(places)
    if position is not None:
        cluster.delete(position, places)
    engine.stop(places)
    if forget:
        shutil.rmtree(places.cache)
        say(f"{places.cache} is gone: the next run builds everything again")


if __name__ == "__main__":
    sys.exit(main())
