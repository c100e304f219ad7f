"""The wheel in a clean virtual environment, without the checkout (R36)."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from tests.support.ports import own_ports

pytestmark = pytest.mark.processes

REPOSITORY = Path(__file__).parents[2]
PACKAGES = (
    "mainstem",
    "mainstem_broker",
    "mainstem_loader",
    "mainstem_operator",
    "mainstem_registry",
    "pyspark_mainstem",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("mainstem-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a virtual environment with the wheel.

    It sees the dependencies installed for the tests but not the checkout: a .pth file adds only the folder it
    names, and the editable installation is a .pth file in that folder.
    """
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False, symlinks=True)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")),
            *("install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", str(wheel)),
        ],
        check=True,
        capture_output=True,
    )
    return environment / "bin"


class Installed:
    """Runs the installed command in `folder`."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAINSTEM_")}
        self._environment = inherited | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": ""}

    def run(self, *arguments: str, stdin: str = "", exit_code: int = 0, program: str = "mainstem") -> str:
        ended = subprocess.run(
            [str(self._programs / program), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self._folder,
            env=self._environment,
            timeout=200,
            check=False,
        )
        assert ended.returncode == exit_code, ended.stdout + ended.stderr
        return ended.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--output", "json"))


@pytest.fixture
def command(installed: Path, tmp_path: Path) -> Iterator[Installed]:
    running = Installed(installed, tmp_path)
    yield running
    running.run("down")


def test_the_wheel_has_every_module_and_nothing_else(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.split()
    in_packages = [Path(path).parts for path in listed]
    modules = {
        "/".join(parts[number:])
        for parts in in_packages
        for number, part in enumerate(parts[:-1])
        if part in PACKAGES and parts[0] not in ("tests", "bench", "scripts")
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == modules


def imported_packages(wheel: Path) -> dict[str, set[str]]:
    """The packages that each package of the wheel imports, anywhere, besides Python's and the wheel's."""
    imported: dict[str, set[str]] = {package: set() for package in PACKAGES}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".py"):
                continue
            for node in ast.walk(ast.parse(archive.read(name))):
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    modules = [node.module or ""]
                else:
                    continue
                imported[name.split("/")[0]].update(module.split(".")[0] for module in modules)
    known = {*sys.stdlib_module_names, *PACKAGES}
    return {package: names - known for package, names in imported.items()}


def declared_distributions(*extras: str) -> set[str]:
    """The normalized names of the distributions that pyproject.toml requires for these extras."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    return {normalized(re.split(r"[\[<>=!~; ]", line)[0]) for line in requirements}


def normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_every_import_of_the_wheel_is_declared_by_the_extra_of_its_program(wheel: Path) -> None:
    """R36: the tests' environment has packages of other extras, which hide one that is missing."""
    extras = {
        "mainstem": ("command", "loader", "operator", "registry", "demo"),  # it composes the others
        "mainstem_broker": (),
        "mainstem_loader": ("loader",),
        "mainstem_operator": ("operator",),
        "mainstem_registry": ("registry",),
        "pyspark_mainstem": ("loader",),
    }
    # pyiceberg raises their exceptions, and requires them (SQLAlchemy by its extra sql-sqlite).
    through_pyiceberg = {"requests", "sqlalchemy"}
    distributions = packages_distributions()
    undeclared = {
        f"{package} imports {name}"
        for package, names in imported_packages(wheel).items()
        for name in names - (through_pyiceberg if package == "mainstem_loader" else set())
        if not declared_distributions(*extras[package]) & {normalized(one) for one in distributions[name]}
    }
    assert not undeclared
    assert "pyiceberg" in declared_distributions("loader")


def test_without_extras_the_command_says_what_to_install(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "bare"
    venv.create(environment, with_pip=False, symlinks=True)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site_packages)
    ended = subprocess.run(
        [environment / "bin" / "python", "-m", "mainstem"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.endswith(" is missing. Type: pip install 'mainstem[all]'\n")
    assert "Traceback" not in ended.stderr


def test_a_stack_is_started_used_and_stopped_by_the_installed_command(command: Installed) -> None:
    where = command.run("-c", "import mainstem; print(mainstem.__file__)", program="python").strip()
    assert "site-packages" in where
    assert not Path(where).is_relative_to(REPOSITORY)

    port = own_ports()
    command.run("up", "--detach", "--port", str(port), "--zookeeper-port", str(own_ports()))
    assert command.json("status")["ready"] is True
    checks = {check["name"]: check["state"] for check in command.json("doctor")}
    assert {checks[name] for name in ("Packages", "Java", "Jars", "ZooKeeper", "Brokers")} == {"ok"}
    assert "336,776" in command.run("demo", "--help")
    address = ["--bootstrap-servers", f"127.0.0.1:{port}"]
    command.run("topic", "create", "clicks", *address)
    lines = '{"user": "ada", "page": "/"}\n{"user": "bob", "page": "/docs"}\n'
    command.run("produce", "clicks", "--json-lines", *address, stdin=lines)
    assert command.run("consume", "clicks", "--until-end", *address) == lines
    report = command.json("load", "clicks", "--master", "local[1]", *address)
    assert report["loaded"] == 2
    rows = command.json("sql", "SELECT user FROM clicks ORDER BY user")
    assert rows == [{"user": "ada"}, {"user": "bob"}]
    command.run("down")
    command.run("status", exit_code=3)
