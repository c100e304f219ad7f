"""Where scripts keep what takes long to make, for all checkouts of a user."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

USER_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mainstem"


def copy_folder(source: Path, target: Path) -> None:
    """Put a copy of `source` in the place of `target`, whole or not at all.

    Raises:
        OSError: it cannot be read or written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copy-") as name:
        copy = shutil.copytree(source, Path(name, "copy"))
        if target.exists():
            target.rename(Path(name, "previous"))
        copy.rename(target)
