"""Whether a store creates objects only where there are none, as commits to a bucket need.

A commit puts an object with `If-None-Match: *`, which the store must refuse if there is one (Delta protocol,
"Delta Log Entries"; HTTP, RFC 9110, section 13.1.2). Some S3-compatible stores ignore the condition: of two
loads that commit at once one then overwrites the other, and nobody notices. So before the first commit to a
table, several writers commit to a table of no rows at the same time, by the same library and settings. In a
store that keeps the condition each commit has a version of its own, always. In one that ignores it, some
share a version.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from mainstem_loader.errors import WarehouseError
from mainstem_loader.table.delta import commit_files, create_table, open_table
from mainstem_loader.table.folder import Folder

WRITERS: Final = 4
ROUNDS: Final = 4
_COLUMN: Final = "probe"


def check_conditional_puts(warehouse: Folder) -> None:
    """Try it in a folder of its own, which is deleted afterwards.

    Raises:
        WarehouseError: the store ignores the condition.
        DeltaError, OSError: it cannot be used.
    """
    folder = warehouse / f"_probe-{secrets.token_hex(8)}"
    try:
        create_table(folder, pa.schema([(_COLUMN, pa.string()), ("value", pa.string())]), _COLUMN)
        committed = sum(_commits_at_once(folder) for _ in range(ROUNDS))
        table = open_table(folder)
        version = -1 if table is None else table.version()
    finally:
        with suppress(OSError):
            folder.delete_all()
    if version < committed:
        raise WarehouseError(
            f"The store of {warehouse} overwrites objects that are to be created only where there are none"
            " (conditional writes, If-None-Match), so loads at the same time would lose rows; use a store, or"
            " a version of it, that supports conditional writes."
        )


def _commits_at_once(folder: Folder) -> int:
    """The number of writers whose commit was acknowledged."""
    ready = threading.Barrier(WRITERS)
    committed: list[None] = []

    def commit() -> None:
        table = open_table(folder)
        ready.wait()
        # A writer that lost too often, or has no answer, does not count.
        with suppress(DeltaError, OSError):
            if table is not None:
                commit_files(table, [], _COLUMN, [], {})
                committed.append(None)

    threads = [threading.Thread(target=commit) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(committed)
