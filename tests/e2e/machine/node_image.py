"""The image of a node: `kindest/node` where it can be had, else one built from source.

The parts: Kubernetes' programs, built from their Go modules, as small images; the node, a Debian with systemd
and containerd, which holds them as containerd's images. Each part is an image whose tag is the key of what it
was made from, so a part that is there need not be made again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.e2e.machine.commands import run, say
from tests.e2e.machine.debian import debian_image
from tests.e2e.machine.engine import Engine
from tests.e2e.machine.settings import (
    GO_PROGRAMS,
    KUBERNETES_VERSION,
    MACHINE,
    OFFICIAL_NODE_IMAGE,
    PROVISIONER_PACKAGE,
    Places,
    key_of,
)
from tests.e2e.machine.tools import go_build

_NODE: Final = MACHINE / "node"
_PACKAGES: Final = [
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "curl",
    "ebtables",
    "ethtool",
    "ipset",
    "iproute2",
    "iptables",
    "jq",
    "kmod",
    "mount",
    "nftables",
    "procps",
    "runc",
    "socat",
    "systemd",
    "systemd-sysv",
    "util-linux",
]
_PROGRAMS: Final = ("kubernetes", "etcd", "coredns", "crictl", "pause", "local-path-provisioner")
_KUBEADM: Final = "kubeadm"


def node_image(engine: Engine, places: Places) -> str:
    """Name of an image that kind can make nodes of: E2E_NODE_IMAGE, the official one, or ours.

    Raises:
        MachineError: none can be had.
    """
    requested = os.environ.get("E2E_NODE_IMAGE")
    if requested:
        return requested
    key = key_of(_PACKAGES, [_NODE, GO_PROGRAMS])
    own = f"mainstem/node:{KUBERNETES_VERSION}-{key}"
    if engine.has_image(own):
        return own
    if engine.pull(OFFICIAL_NODE_IMAGE):
        return OFFICIAL_NODE_IMAGE
    say(f"{OFFICIAL_NODE_IMAGE} cannot be pulled: building a node image from source")
    build(engine, places, own)
    return own


def build(engine: Engine, places: Places, name: str) -> None:
    """Build the node image as `name`."""
    # Debian's packages are mostly waited for, and Go's are built on all cores but at the end.
    with ThreadPoolExecutor(1) as beside:
        debian = beside.submit(debian_image, engine, "mainstem/node-base", _PACKAGES)
        programs = _build_programs(places)
        base = debian.result()
    tag = name.rpartition(":")[2]
    with tempfile.TemporaryDirectory(dir=places.cache) as folder:
        context = Path(folder)
        shutil.copytree(_NODE, context, dirs_exist_ok=True)
        (context / "built").mkdir()
        for path in programs:
            os.link(path, context / "built" / path.name)
        say("building the image of Kubernetes' programs")
        built: dict[str, str] = {}
        for target in ("programs", "coredns", "pause"):
            built[target] = f"mainstem/node-{target}:{tag}"
            _docker_build(engine, context, "programs.Dockerfile", built[target], target, BASE_IMAGE=base)
        names = _names_that_kubeadm_expects(places)
        for image in names:
            program = next((target for target in ("coredns", "pause") if f"/{target}:" in image), "programs")
            engine.docker("tag", built[program], image)
        engine.docker("save", "--output", context / "images.tar", built["programs"], *names)
        say("building the node image")
        pause = next(image for image in names if "/pause:" in image)
        _docker_build(
            engine,
            context,
            "Dockerfile",
            name,
            "",
            BASE_IMAGE=base,
            PROGRAMS_IMAGE=built["programs"],
            PAUSE_IMAGE=pause,
            KUBERNETES_VERSION=KUBERNETES_VERSION,
        )
        engine.docker("rmi", *names)


def _build_programs(places: Places) -> list[Path]:
    """Build what runs on a node."""
    folder = places.cache / "node-programs"
    go_build(places, "Kubernetes, etcd and CoreDNS", ["./...", PROVISIONER_PACKAGE], folder)
    return [folder / name for name in _PROGRAMS]


def _names_that_kubeadm_expects(places: Places) -> list[str]:
    """The images of a control plane of this version, by the names that kubeadm asks for."""
    with tempfile.TemporaryDirectory(dir=places.cache) as folder:
        kubeadm = Path(folder) / _KUBEADM
        kubeadm.symlink_to(places.cache / "node-programs" / "kubernetes")
        return run([kubeadm, "config", "images", "list", "--kubernetes-version", KUBERNETES_VERSION]).split()


def _docker_build(
    engine: Engine, context: Path, dockerfile: str, name: str, target: str, **arguments: str
) -> None:
    options = [
        word for argument, value in arguments.items() for word in ("--build-arg", f"{argument}={value}")
    ]
    if target:
        options += ["--target", target]
    engine.docker("build", "--quiet", "--file", context / dockerfile, "--tag", name, *options, context)
