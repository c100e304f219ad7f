"""The images of the project, and those of the tests, on whatever bases this machine can have."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from scripts import build_images
from tests.e2e.machine.commands import MachineError, say
from tests.e2e.machine.debian import debian_image, java_image
from tests.e2e.machine.engine import Engine
from tests.e2e.machine.settings import PUBLIC_JAVA_IMAGE, PUBLIC_PYTHON_IMAGE, REPOSITORY, S3_MODULE, Places
from tests.e2e.machine.tools import go_install

_PYTHON_PACKAGES: Final = ("ca-certificates", "python3")
CLIENT_IMAGE: Final = "mainstem/e2e-client:dev"
OPERATOR_IMAGE: Final = "mainstem/operator:dev"
NEXT_OPERATOR_IMAGE: Final = "mainstem/operator:next"
"""The same by another name, for operators to be upgraded to."""
S3_IMAGE: Final = "mainstem/e2e-s3:dev"


def build(engine: Engine, places: Places) -> list[str]:
    """Build every image, and return their names.

    Raises:
        MachineError: one cannot be built.
    """
    environment = os.environ | engine.environment | _base_images(engine)
    names: list[str] = []
    try:
        for image in build_images.IMAGES:
            if not image.exists:
                say(f"{image.folder}/ has no sources yet: its image is left out")
                continue
            build_images.fetch(image)
            names.append(build_images.build(image, environment))
        names.append(_build_client(environment))
    except build_images.BuildError as error:
        raise MachineError(str(error)) from error
    names.append(_build_s3(engine, places))
    engine.docker("tag", OPERATOR_IMAGE, NEXT_OPERATOR_IMAGE)
    return [*names, NEXT_OPERATOR_IMAGE]


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


def _build_client(environment: dict[str, str]) -> str:
    folder = "tests/e2e/client-image"
    build_images.fetch_wheels("client")
    copied = [f"{folder}/Dockerfile", f"{folder}/round_trip.py", "build/wheels/client"]
    bases = {"BASE_IMAGE": environment["PYTHON_BASE_IMAGE"]}
    build_images.docker_build(CLIENT_IMAGE, f"{folder}/Dockerfile", copied, bases, environment)
    return CLIENT_IMAGE


def _build_s3(engine: Engine, places: Places) -> str:
    server = go_install(places, S3_MODULE, places.cache / "s3")
    with tempfile.TemporaryDirectory(dir=places.cache) as folder:
        shutil.copy(server, folder)
        dockerfile = REPOSITORY / "tests/e2e/s3-image/Dockerfile"
        engine.docker("build", "--quiet", "--file", dockerfile, "--tag", S3_IMAGE, Path(folder))
    return S3_IMAGE
