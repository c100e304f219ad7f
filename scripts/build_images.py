"""Builds the container images: `python -m scripts.build_images [--wheels] [NAME ...]` (all by default).

Fetches what the images hold into `build/` first, with pip, so that the Dockerfiles need no network: each is
then built by a plain `docker build --file broker-image/Dockerfile .`, or buildah. PYTHON_BASE_IMAGE and
JAVA_BASE_IMAGE name other base images than the Dockerfiles' own, IMAGE_TAG another tag than `dev`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from scripts.compile import main as compile_broker
from scripts.lock import LOCKS
from scripts.user_cache import USER_CACHE

REPOSITORY: Final = Path(__file__).resolve().parents[1]
WHEELS: Final = REPOSITORY / "build" / "wheels"
WHEEL_CACHE: Final = USER_CACHE / "wheels"
"""Wheels by lock, for all checkouts: pip takes half a minute to collect them."""
ZOOKEEPER_JARS: Final = REPOSITORY / "build" / "zookeeper"
# Of the jars that pyspark carries, those that a ZooKeeper server and its log need.
_ZOOKEEPER_JAR_NAMES: Final = (
    "zookeeper-3",
    "zookeeper-jute-",
    "slf4j-api-",
    "log4j-api-2",
    "log4j-core-",
    "log4j-layout-template-json-",
    "log4j-slf4j2-impl-",
    "metrics-core-",
    "snappy-java-",
)


class BuildError(Exception):
    """An image could not be built; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Image:
    """One image: its Dockerfile's folder, what of the repository it copies, and whose wheels it holds.

    `wheels` names a folder of build/wheels, and the lock (`locks/`) of what goes there.
    """

    name: str
    folder: str
    sources: tuple[str, ...]
    wheels: str

    @property
    def exists(self) -> bool:
        return all((REPOSITORY / source).exists() for source in self.sources)


IMAGES: Final = (
    Image("zookeeper", "zookeeper-image", ("zookeeper-image",), "spark"),
    # The operator moves replicas by the command's library.
    Image(
        "operator",
        "operator",
        ("operator/mainstem_operator", "command/mainstem"),
        "operator",
    ),
    Image("registry", "schema-registry", ("schema-registry/mainstem_registry",), "registry"),
    Image(
        "spark",
        "spark-jobs",
        ("spark-jobs/mainstem_loader", "spark-jobs/pyspark_mainstem", "spark-jobs/spark_container.py"),
        "spark",
    ),
    # Last, since it takes compiled modules, which are often still being made. The command rides along, so
    # that people and tests have it inside a cluster.
    Image("broker", "broker-image", ("broker-image/src", "command"), "broker"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the arguments name, and tell the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.build_images", description="Build container images."
    )
    parser.add_argument("names", nargs="*", choices=[[], *(image.name for image in IMAGES)], metavar="NAME")
    parser.add_argument("--wheels", action="store_true", help="only fetch what the Dockerfiles copy")
    options = parser.parse_args(arguments)
    try:
        for image in IMAGES:
            if options.names and image.name not in options.names:
                continue
            fetch(image)
            if not options.wheels:
                sys.stdout.write(f"{build(image, os.environ)}\n")
    except BuildError as error:
        sys.stderr.write(f"build_images: {error}\n")
        return 1
    return 0


def fetch(image: Image) -> None:
    """Put the wheels that `image` installs, and pip, in build/wheels; ZooKeeper's jars in build/zookeeper.

    Does nothing when they were made from the same lock before. The broker's compiled
    modules are made here too, as wheels are, for this machine's Python, which is the images'.

    Raises:
        BuildError: pip's reason, or the compiler's.
    """
    fetch_wheels(image.wheels)
    if image.name == "zookeeper":
        _take_zookeeper_jars(WHEELS / image.wheels)
    if image.name == "broker" and compile_broker() != 0:
        raise BuildError("The broker's modules could not be compiled: see above.")


def fetch_wheels(name: str) -> None:
    """Fill build/wheels/NAME with the wheels of the lock NAME, and with pip; pip checks their hashes."""
    folder, lock = WHEELS / name, LOCKS / f"{name}.txt"
    key = wheels_key(name)
    stamp = folder / ".made-from"
    if stamp.exists() and stamp.read_text() == key:
        return
    shutil.rmtree(folder, ignore_errors=True)
    kept = WHEEL_CACHE / name / key
    try:
        shutil.copytree(kept, folder)
    except OSError:  # there are none, or another checkout with a newer lock is removing them
        shutil.rmtree(folder, ignore_errors=True)
        _make_wheels(folder, lock, LOCKS / "pip.txt")
        _keep(folder, kept)
    stamp.write_text(key)


def wheels_key(name: str) -> str:
    """Changes with the wheels that `fetch_wheels` puts into build/wheels/NAME."""
    texts = ((LOCKS / f"{name}.txt").read_text(), (LOCKS / "pip.txt").read_text(), sys.version)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _make_wheels(folder: Path, lock: Path, pip_lock: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    pip += ["--require-hashes", "--no-deps"]
    _run([*pip, "--wheel-dir", folder, "--requirement", lock])
    _run([*pip, "--wheel-dir", folder / "pip", "--requirement", pip_lock])
    next((folder / "pip").glob("pip-*.whl")).rename(folder / "pip" / "pip.whl")


def _keep(folder: Path, kept: Path) -> None:
    """Copy `folder` to `kept`, whole or not at all, and remove what was kept for an older lock."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    for old in kept.parent.iterdir():
        shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=kept.parent.parent) as scratch:
        copied = shutil.copytree(folder, Path(scratch, "wheels"))
        with suppress(OSError):  # another checkout has kept the same meanwhile
            copied.rename(kept)


def _take_zookeeper_jars(wheels: Path) -> None:
    shutil.rmtree(ZOOKEEPER_JARS, ignore_errors=True)
    ZOOKEEPER_JARS.mkdir(parents=True)
    with zipfile.ZipFile(next(wheels.glob("pyspark-*.whl"))) as pyspark:
        for entry in pyspark.namelist():
            name = Path(entry).name
            if entry.startswith("pyspark/jars/") and name.startswith(_ZOOKEEPER_JAR_NAMES):
                (ZOOKEEPER_JARS / name).write_bytes(pyspark.read(entry))


def name_of(image: Image, environment: Mapping[str, str]) -> str:
    """The name and the tag that `build` gives an image."""
    return f"mainstem/{image.name}:{environment.get('IMAGE_TAG', 'dev')}"


def build(image: Image, environment: Mapping[str, str]) -> str:
    """Build `image` with docker and return its name.

    Raises:
        BuildError: docker's reason.
    """
    name = name_of(image, environment)
    python, java = environment.get("PYTHON_BASE_IMAGE", ""), environment.get("JAVA_BASE_IMAGE", "")
    bases = {"BASE_IMAGE": java if image.name == "zookeeper" else python}
    if image.name == "spark":
        bases["JAVA_IMAGE"] = java
    copied = [f"{image.folder}/Dockerfile", *image.sources]
    copied.append("build/zookeeper" if image.name == "zookeeper" else f"build/wheels/{image.wheels}")
    docker_build(name, f"{image.folder}/Dockerfile", copied, bases, environment)
    return name


def docker_build(
    name: str,
    dockerfile: str,
    copied: Sequence[str],
    arguments: Mapping[str, str],
    environment: Mapping[str, str],
) -> None:
    """`docker build` of the repository's root, sending only `copied`; empty arguments are left out."""
    command = ["docker", "build", "--quiet", "--file", dockerfile, "--tag", name]
    for argument, value in arguments.items():
        if value:
            command += ["--build-arg", f"{argument}={value}"]
    with tempfile.TemporaryFile() as context:
        with tarfile.open(fileobj=context, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in copied:
                archive.add(REPOSITORY / path, path, filter=_without_caches)
        context.seek(0)
        _run([*command, "-"], environment=environment, standard_input=context)


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


def _run(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    standard_input: IO[bytes] | None = None,
) -> None:
    words = [str(word) for word in command]
    try:
        finished = subprocess.run(
            words, cwd=REPOSITORY, env=environment, stdin=standard_input, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise BuildError(f"{words[0]} is not installed: install it, then run this again.") from error
    if finished.returncode:
        output = (finished.stdout + finished.stderr).decode(errors="replace").strip().splitlines()
        raise BuildError("\n  ".join([" ".join(words[:3]) + " failed:", *output[-15:]]))


if __name__ == "__main__":
    sys.exit(main())
