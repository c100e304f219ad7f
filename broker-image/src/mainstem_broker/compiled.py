"""Modules on the path of every batch, loaded as extension modules where they were compiled.

`python -m scripts.compile` makes C of them by mypyc, from the very sources that are read here, and puts the
extension modules into `_compiled/` beside a stamp. They are used by the broker's process only, and only if
the stamp names these sources and this Python: after a change of any source the broker is plain Python again,
never an old one. What they cost and give: docs/internals/performance.md.

Not among them: `log/files.py`, whose objects end by `__del__`, and what runs once. Two things are otherwise
in compiled code. It lets go of a local after its last use, not at the function's end: a file that it takes a
descriptor of may close under it. And a coroutine that waits inside an `except` or `finally` leaves its error
as the one under way of whatever runs meanwhile; so none does, and a test sees to it.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parent
COMPILED: Final = PACKAGE / "_compiled"
STAMP: Final = COMPILED / "stamp"
MODULES: Final = (
    "api/context.py",
    "api/fetch.py",
    "api/follower_fetch.py",
    "api/produce.py",
    "log/compaction/record_walk.py",
    "log/leader_epochs.py",
    "log/index.py",
    "log/partition_log.py",
    "log/producer_refusals.py",
    "log/producer_snapshot_format.py",
    "log/producer_state.py",
    "log/producers.py",
    "log/scanning.py",
    "log/segment.py",
    "log/segment_list.py",
    "runtime/pending.py",
    "protocol/batch_validation.py",
    "protocol/batches.py",
    "protocol/codec.py",
    "protocol/fetch_codec.py",
    "protocol/length_checks.py",
    "protocol/primitives.py",
    "protocol/produce_codec.py",
    "protocol/schema_codec.py",
    "protocol/wire.py",
    "replica/acknowledgements.py",
    "replica/client_batches.py",
    "replica/divergence.py",
    "replica/fetcher.py",
    "replica/follower_grants.py",
    "replica/follower_progress.py",
    "replica/follower_sessions.py",
    "replica/lease.py",
    "replica/partition.py",
    "server/connection.py",
    "server/peers.py",
    "server/request_times.py",
    "server/router.py",
    "runtime/timeout.py",
)
"""Relative to the package."""


def use_compiled() -> bool:
    """Load `MODULES` compiled from now on, if they are; to be called before any of them is imported."""
    if not are_made():
        return False
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(_name(MODULES[-1]))
    except ImportError:  # made for another C library than this machine's
        sys.meta_path.remove(finder)
        return False
    return True


def are_made() -> bool:
    """Whether there are compiled modules of just these sources, for this Python."""
    return STAMP.exists() and STAMP.read_text() == stamp_of_sources()


def stamp_of_sources() -> str:
    """Of this Python and of all the package's sources, since compiled code holds other modules' constants."""
    digest = hashlib.sha256()
    for source in sorted(filter(Path.is_file, PACKAGE.rglob("*.py"))):
        digest.update(f"{source.relative_to(PACKAGE)}\0".encode())
        digest.update(source.read_bytes())
    return f"{sysconfig.get_config_var('SOABI')} {digest.hexdigest()}\n"


def _name(source: str) -> str:
    return f"{PACKAGE.name}.{source.removesuffix('.py').replace('/', '.')}"


class _Finder(MetaPathFinder):
    """Finds modules by their whole names under `COMPILED`; also the library that they share."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = COMPILED / f"{fullname.replace('.', '/')}{sysconfig.get_config_var('EXT_SUFFIX')}"
        if not file.exists():
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, str(file)))
