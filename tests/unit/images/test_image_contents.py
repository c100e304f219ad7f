"""Each image holds every module that its programs import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.build_images import IMAGES, REPOSITORY, Image

from mainstem.cli.main import COMMANDS


def modules_of_commands() -> Iterator[str]:
    for commands in COMMANDS.values():
        yield from (command.module for command in commands)


ROOTS = {
    "mainstem": "command",
    "mainstem_broker": "broker-image/src",
    "mainstem_operator": "operator",
    "mainstem_loader": "spark-jobs",
    "mainstem_registry": "schema-registry",
    "pyspark_mainstem": "spark-jobs",
}
"""Our packages, and the folders that they lie in."""
PROGRAMS = {
    "broker": ("mainstem_broker.__main__", "mainstem.cli.main", *modules_of_commands()),
    "operator": ("mainstem_operator.__main__", "mainstem_operator.definitions"),
    "registry": ("mainstem_registry.__main__",),
    "spark": ("mainstem_loader.__main__", "mainstem_loader.resident.__main__"),
}


@pytest.mark.parametrize(
    "image", [image for image in IMAGES if image.name in PROGRAMS], ids=lambda it: it.name
)
def test_an_image_holds_every_module_that_its_programs_import_when_they_start(image: Image) -> None:
    """Else its container ends with a ModuleNotFoundError, which only a run of the image would show."""
    sources = [REPOSITORY / source for source in image.sources]
    dockerfile = (REPOSITORY / image.folder / "Dockerfile").read_text()
    for module in imported_by(PROGRAMS[image.name]):
        path = path_of(module)
        assert any(path.is_relative_to(source) for source in sources), f"{module} is not sent to the build"
    for source in image.sources:
        assert f"COPY {source} " in dockerfile, f"{source} is sent to the build and not copied"


def imported_by(programs: tuple[str, ...]) -> set[str]:
    """Our modules that are imported when the programs start, near or far."""
    results: set[str] = set()
    to_read = list(programs)
    while to_read:
        module = to_read.pop()
        if module not in results:
            results.add(module)
            to_read += imports_of(path_of(module))
    return results


def imports_of(path: Path) -> Iterator[str]:
    """Our modules that the module at `path` imports at its top."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in ROOTS and is_module(name))


def is_module(name: str) -> bool:
    return path_of(name).exists()


def path_of(module: str) -> Path:
    """The file of a module, or of a package's __init__."""
    path = REPOSITORY / ROOTS[module.split(".")[0]] / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
