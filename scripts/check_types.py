"""Checks the types of the whole tree: `python -m scripts.check_types`.

mypy keeps what it has found in the checkout and looks again only at files whose content has changed. A new
checkout gets a copy of what another one has kept, in the user's cache.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from scripts.user_cache import USER_CACHE, copy_folder

REPOSITORY: Final = Path(__file__).resolve().parents[1]
_FOUND: Final = REPOSITORY / ".mypy_cache"
_KEPT: Final = USER_CACHE / "types"


def main() -> int:
    """Run mypy; its exit code."""
    if not _FOUND.exists():
        with suppress(OSError):  # without it mypy only takes longer
            copy_folder(_KEPT, _FOUND)
    mypy = Path(sys.executable).with_name("mypy")
    exit_code = subprocess.run([mypy], cwd=REPOSITORY, check=False).returncode
    if exit_code == 0:
        with suppress(OSError):
            copy_folder(_FOUND, _KEPT)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
