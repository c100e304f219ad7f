"""Where scripts keep what takes long to make, for all checkouts of a user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

USER_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mainstem"
