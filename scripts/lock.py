"""Writes locks/*.txt: the packages of each image, of the command and of the tests, with hashes of files.

Run `python -m scripts.lock` after a change of pyproject.toml or constraints.txt; it needs uv (`pip install
uv`). constraints.txt chooses the versions. pip refuses a file whose hash is not in the lock (its
hash-checking mode), so neither an index nor a mirror can replace a package.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
LOCKS: Final = REPOSITORY / "locks"
PYTHON_VERSION_MIN: Final = "3.11"

EXTRAS_OF_LOCKS: Final[dict[str, tuple[str, ...]]] = {
    "all": ("", "all"),
    "broker": ("", "command"),
    "operator": ("operator",),
    "registry": ("registry",),
    "spark": ("", "loader"),
    "test": ("", "test"),
}
"""Extras of pyproject.toml by the lock that they are in; "" for the package's own dependencies."""

REQUIREMENTS_OF_LOCKS: Final[dict[str, tuple[str, ...]]] = {
    "client": ("confluent-kafka",),  # the image of a client in the end-to-end tests
    "pip": ("pip",),  # with which images install wheels
}


def main() -> int:
    """Write every lock, and return the exit code."""
    if shutil.which("uv") is None:
        sys.stderr.write("lock: uv is missing: install it (pip install uv), then run this again.\n")
        return 1
    LOCKS.mkdir(exist_ok=True)
    locks = {name: requirements_of(extras) for name, extras in EXTRAS_OF_LOCKS.items()}
    for name, requirements in {**locks, **REQUIREMENTS_OF_LOCKS}.items():
        command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", PYTHON_VERSION_MIN]
        command += ["--generate-hashes", "--no-annotate", "--no-header", "--no-emit-index-url"]
        command += ["--constraint", "constraints.txt", "--output-file", f"locks/{name}.txt", "-"]
        subprocess.run(command, cwd=REPOSITORY, input="\n".join(requirements), text=True, check=True)
        sys.stdout.write(f"locks/{name}.txt\n")
    return 0


def requirements_of(extras: Sequence[str]) -> list[str]:
    """The requirements of some extras, as pyproject.toml states them; "" are those of the package itself.

    An extra that names others (`mainstem[command,loader]`) stands for theirs.
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    requirements: set[str] = set()
    for extra in extras:
        listed = project["dependencies"] if not extra else project["optional-dependencies"][extra]
        for requirement in listed:
            others = re.fullmatch(rf"{project['name']}\[(.+)\]", requirement)
            requirements.update(requirements_of(others[1].split(",")) if others else [requirement])
    return sorted(requirements)


if __name__ == "__main__":
    sys.exit(main())
