"""The counters of a Delta table, all read at once: versions of applications (Delta protocol, "Transaction
Identifiers").

The library looks for one application at a time, and each time reads the log from its end to the checkpoint.
A load asks for the offset of each partition several times.

Must not live here: what a counter means, or a change of the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet

from mainstem_loader.table.folder import Folder

_LOG: Final = "_delta_log"
_READS_AT_ONCE: Final = 16


class DeltaCounters:
    """The counters of one table, by version. Of a newer version, only the commits in between are read.

    Args:
        folder: of the table.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._snapshot = "", -1
        self._values: Mapping[str, int] | None = None

    def value(self, table: DeltaTable, name: str) -> int | None:
        """The value of a counter in a snapshot; None if it was never set.

        Raises:
            DeltaError: the log cannot be read.
        """
        snapshot = str(table.metadata().id), table.version()
        if snapshot != self._snapshot:
            try:
                self._values = self._read(*snapshot)
            except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
                # Others have shortened the log, or made a checkpoint of another kind. The library reads them
                # all, and has the errors.
                self._values = None
            self._snapshot = snapshot
        return table.transaction_version(name) if self._values is None else self._values.get(name)

    def _read(self, table_id: str, version: int) -> dict[str, int]:
        before_id, before = self._snapshot
        if self._values is not None and before_id == table_id and before < version:
            values, start = dict(self._values), before + 1
        else:
            values, start = self._of_checkpoint(version)
        with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
            for found in pool.map(self._of_commit, range(start, version + 1)):
                values.update(found)
        return values

    def _of_checkpoint(self, version: int) -> tuple[dict[str, int], int]:
        """The counters of the last checkpoint, and the first version that is not in it.

        Raises:
            ValueError: it is of a later version, or of a kind that is not read here.
        """
        try:
            with self._folder.open_to_read(f"{_LOG}/_last_checkpoint") as file:
                checkpoint = json.loads(file.read())
        except FileNotFoundError:
            return {}, 0
        at, parts = int(checkpoint["version"]), checkpoint.get("parts")
        if at > version or "v2Checkpoint" in checkpoint:
            raise ValueError("the log has another checkpoint")
        suffixes = [f".{part + 1:010}.{parts:010}" for part in range(parts)] if parts else [""]
        values: dict[str, int] = {}
        for suffix in suffixes:
            with self._folder.open_to_read(f"{_LOG}/{at:020}.checkpoint{suffix}.parquet") as file:
                column = parquet.read_table(file, columns=["txn"]).column("txn")
            found: list[Any] = column.drop_null().to_pylist()
            values |= {txn["appId"]: int(txn["version"]) for txn in found}
        return values, at + 1

    def _of_commit(self, version: int) -> dict[str, int]:
        with self._folder.open_to_read(f"{_LOG}/{version:020}.json") as file:
            lines = file.read().split(b"\n")
        # Most of a commit describes files.
        actions = (json.loads(line) for line in lines if b'"txn"' in line)
        found = (action["txn"] for action in actions if "txn" in action)
        return {txn["appId"]: int(txn["version"]) for txn in found}
