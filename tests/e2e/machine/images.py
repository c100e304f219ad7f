"""The images of the project, and those of the tests, on whatever bases this machine can have."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from scripts import build_images
from scripts.compile import main as compile_broker
from tests.e2e.machine import archive
from tests.e2e.machine.commands import MachineError, say
from tests.e2e.machine.debian import debian_image, java_image
from tests.e2e.machine.engine import Engine
from tests.e2e.machine.settings import (
    PUBLIC_JAVA_IMAGE,
    PUBLIC_PYTHON_IMAGE,
    REPOSITORY,
    S3_MODULE,
    Places,
    key_of,
)
from tests.e2e.machine.tools import go_install, is_made_of

_PYTHON_PACKAGES: Final = ("ca-certificates", "python3")
CLIENT_IMAGE: Final = "mainstem/e2e-client:dev"
OPERATOR_IMAGE: Final = "mainstem/operator:dev"
SPARK_IMAGE: Final = "mainstem/spark:dev"
NEXT_OPERATOR_IMAGE: Final = "mainstem/operator:next"
"""The same by another name, for operators to be upgraded to."""
S3_IMAGE: Final = "mainstem/e2e-s3:dev"
_CLIENT: Final = "tests/e2e/client-image"
_BUILDER: Final = "scripts/build_images.py"


def build(engine: Engine, places: Places) -> list[str]:
    """Build every image that is not there as its sources are now, and return the names of all.

    Raises:
        MachineError: one cannot be built.
    """
    bases = _base_images(engine)
    environment = os.environ | engine.environment | bases
    for base in bases.values():
        engine.pull(base)  # one that the environment names may not be here yet
    bases_ids = [archive.image_id(engine, base) for base in bases.values()]
    built = Built(engine, places.cache / "built-images")
    names: list[str] = []
    try:
        for image in build_images.IMAGES:
            if not image.exists:
                say(f"{image.folder}/ has no sources yet: its image is left out")
                continue
            if image.name == "broker":
                compile_broker()  # what it copies; `fetch` says what is wrong, if that fails
            name = build_images.name_of(image, environment)
            key = key_of(
                [*bases_ids, build_images.wheels_key(image.wheels)],
                [REPOSITORY / path for path in (f"{image.folder}/Dockerfile", *image.sources, _BUILDER)],
            )
            if not built.has(name, key):
                build_images.fetch(image)
                build_images.build(image, environment)
                built.note(name, key)
            names.append(name)
        key = key_of([*bases_ids, build_images.wheels_key("client")], [REPOSITORY / _CLIENT])
        if not built.has(CLIENT_IMAGE, key):
            _build_client(environment)
            built.note(CLIENT_IMAGE, key)
    except build_images.BuildError as error:
        raise MachineError(str(error)) from error
    _build_s3(engine, places)
    engine.docker("tag", OPERATOR_IMAGE, NEXT_OPERATOR_IMAGE)
    return [*names, CLIENT_IMAGE, S3_IMAGE, NEXT_OPERATOR_IMAGE]


class Built:
    """Notes of what images were made from, in a folder.

    A build that changes nothing takes seconds as well, since the engine gets all that it would copy.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def has(self, name: str, key: str) -> bool:
        """Whether the image is there, made from what has this key."""
        stamp = self._stamp(name)
        return self._engine.has_image(name) and is_made_of(stamp, self._text(name, key))

    def note(self, name: str, key: str) -> None:
        """Note that the image was made from that."""
        self._stamp(name).write_text(self._text(name, key))

    def _stamp(self, name: str) -> Path:
        return self._folder / name.replace("/", "-").replace(":", "-")

    def _text(self, name: str, key: str) -> str:
        """With its id: others may have made an image of this name."""
        return f"{key} {archive.image_id(self._engine, name)}"


def _base_images(engine: Engine) -> dict[str, str]:
    """PYTHON_BASE_IMAGE and JAVA_BASE_IMAGE: as the environment says, the public ones, or ones made here."""
    python = os.environ.get("PYTHON_BASE_IMAGE")
    java = os.environ.get("JAVA_BASE_IMAGE")
    if not python:
        public = engine.pull(PUBLIC_PYTHON_IMAGE)
        python = (
            PUBLIC_PYTHON_IMAGE if public else debian_image(engine, "mainstem/python-base", _PYTHON_PACKAGES)
        )
    if not java:
        public = engine.pull(PUBLIC_JAVA_IMAGE)
        java = PUBLIC_JAVA_IMAGE if public else java_image(engine, "mainstem/java-base", python)
    return {"PYTHON_BASE_IMAGE": python, "JAVA_BASE_IMAGE": java}


def _build_client(environment: dict[str, str]) -> None:
    build_images.fetch_wheels("client")
    copied = [f"{_CLIENT}/Dockerfile", f"{_CLIENT}/round_trip.py", "build/wheels/client"]
    bases = {"BASE_IMAGE": environment["PYTHON_BASE_IMAGE"]}
    build_images.docker_build(CLIENT_IMAGE, f"{_CLIENT}/Dockerfile", copied, bases, environment)


def _build_s3(engine: Engine, places: Places) -> None:
    server = go_install(places, S3_MODULE, places.cache / "s3")
    with tempfile.TemporaryDirectory(dir=places.cache) as folder:
        shutil.copy(server, folder)
        dockerfile = REPOSITORY / "tests/e2e/s3-image/Dockerfile"
        engine.docker("build", "--quiet", "--file", dockerfile, "--tag", S3_IMAGE, Path(folder))
