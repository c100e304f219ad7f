"""Checks the types of the whole tree: `python -m scripts.check_types`.

mypy keeps what it has found in the checkout and looks again only at files whose content has changed. A new
checkout gets a copy of what another one has kept, in the user's cache.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from scripts.user_cache import USER_CACHE

REPOSITORY: Final = Path(__file__).resolve().parents[1]
_FOUND: Final = REPOSITORY / ".mypy_cache"
_KEPT: Final = USER_CACHE / "types"


def main() -> int:
    """Run mypy; its exit code."""
    if not _FOUND.exists():
        _copy(_KEPT, _FOUND)
    mypy = Path(sys.executable).with_name("mypy")
    exit_code = subprocess.run([mypy], cwd=REPOSITORY, check=False).returncode
    if exit_code == 0:
        _copy(_FOUND, _KEPT)
    return exit_code


def _copy(source: Path, target: Path) -> None:
    """Replace `target` by a copy, whole or not at all: without it mypy only takes longer."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".types-") as name:
            copy = shutil.copytree(source, Path(name, "copy"))
            if target.exists():
                target.rename(Path(name, "previous"))
            copy.rename(target)
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
