"""The folder of a local stack: its layout, its lock and its state file.

layout.json                     {"layout": 1, "mainstem": VERSION}: which versions can open the folder
stack.lock                      locked while a stack runs (flock); its text is the owner's process id
stack.json                      exists while all brokers are ready: see `Stack.start`; removed by a clean
                                stop, and void while no process holds the lock
up.log                          the output of `mainstem up --detach`
zookeeper/zoo.cfg, data/        keep ZooKeeper's port and tree between runs
schema-registry.log             the log of the schema registry, one JSON object per line
broker-N/server.properties      written at each start
broker-N/data/                  the partitions of broker N
broker-N/server.log             the log of broker N, one JSON object per line
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import IO, Any, Final

from mainstem import installed_version
from mainstem.errors import StackError
from mainstem.whole_numbers import is_whole_number

LAYOUT: Final = 1  # raised when a folder written by an older version can no longer be opened as it is
DEFAULT_DATA_DIRECTORY: Final = Path("data/local")  # relative to the folder where a command runs
DISK_BYTES_MIN: Final = 256 * 1024 * 1024
_LOCK_TIMEOUT_SECONDS: Final = 0.5  # `owner_pid` of another process holds the lock for a moment
_BROKER_FOLDER: Final = re.compile(r"broker-([1-9][0-9]*)")


class StackFolder:
    """The folder at `path`, which is created by `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock_file: IO[str] | None = None

    @property
    def is_open(self) -> bool:
        return self._lock_file is not None

    @property
    def zookeeper_directory(self) -> Path:
        return self.path / "zookeeper"

    @property
    def state_path(self) -> Path:
        return self.path / "stack.json"

    @property
    def up_log_path(self) -> Path:
        return self.path / "up.log"

    def broker_directory(self, broker_id: int) -> Path:
        return self.path / f"broker-{broker_id}"

    def broker_count(self) -> int:
        """The number of brokers whose data the folder holds; 0 if it is new."""
        try:
            names = [entry.name for entry in self.path.iterdir()]
        except OSError:
            return 0
        matches = [match for name in names if (match := _BROKER_FOLDER.fullmatch(name))]
        return max((int(match[1]) for match in matches), default=0)

    def owner_pid(self) -> int | None:
        """The process id of the stack that runs in the folder; None if none does."""
        try:
            lock_file = self._lock_path.open("r")
        except OSError:
            return None
        with lock_file:
            try:
                # The lock, unlike the process id in the file, disappears with the process that holds it.
                fcntl.flock(lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = lock_file.read().strip()
                return int(text) if is_whole_number(text) else None
        return None

    def read_state(self) -> dict[str, Any] | None:
        """The content of `stack.json`; None if there is none."""
        try:
            state: dict[str, Any] = json.loads(self.state_path.read_text())
        except (OSError, ValueError):
            return None
        return state

    def running_state(self) -> dict[str, Any] | None:
        """The content of `stack.json` if a stack runs in the folder; None otherwise.

        A stack that was killed leaves its file behind, and other clusters may have its addresses by now.
        """
        return None if self.owner_pid() is None else self.read_state()

    def open(self, brokers: int) -> None:
        """Create the folder if needed and lock it for a stack of `brokers` brokers.

        Raises:
            StackError: another stack runs in it, or it cannot be used; the message says what to do.
        """
        if "," in str(self.path):  # `log.dirs` is a comma separated list
            raise StackError(f"The data folder {self.path} has a comma in its path: choose another.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock()
            free_bytes = shutil.disk_usage(self.path).free
            self._check_layout()
            self.state_path.unlink(missing_ok=True)  # of a stack that was killed
        except (FileExistsError, NotADirectoryError) as error:
            raise StackError(f"{self.path} is not a folder: choose another data folder.") from error
        except OSError as error:
            raise StackError(
                f"The data folder {self.path} cannot be used ({error.strerror}): make it writable, or choose "
                "another."
            ) from error
        if free_bytes < DISK_BYTES_MIN:
            raise StackError(
                f"Only {free_bytes // 2**20} MiB are free in {self.path}, and at least "
                f"{DISK_BYTES_MIN // 2**20} MiB are needed: free space, or choose another data folder."
            )
        existing = self.broker_count()
        if brokers < existing:
            raise StackError(
                f"{self.path} holds the data of {existing} brokers, and with fewer some partitions would "
                f"have no leader: start {existing} brokers, or choose another data folder."
            )

    def write_state(self, state: object) -> None:
        """Write `stack.json` atomically."""
        _write_atomically(self.state_path, state)

    def close(self) -> None:
        """Remove `stack.json` and release the lock."""
        if self._lock_file is not None:
            self.state_path.unlink(missing_ok=True)
            self._lock_file.close()  # releases the lock
            self._lock_file = None

    @property
    def _lock_path(self) -> Path:
        return self.path / "stack.lock"

    def _lock(self) -> None:
        lock_file = self._lock_path.open("a+")
        deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
        while True:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                lock_file.seek(0)
                owner = lock_file.read().strip()
                lock_file.close()
                raise StackError(
                    f"A stack is already running in {self.path} (process {owner or 'unknown'}): stop it with "
                    "`mainstem down`, or choose another data folder."
                ) from None
        lock_file.seek(0)
        lock_file.truncate()
        lock_file.write(f"{os.getpid()}\n")
        lock_file.flush()
        self._lock_file = lock_file

    def _check_layout(self) -> None:
        path = self.path / "layout.json"
        try:
            written: dict[str, Any] = json.loads(path.read_text())
            layout, version = int(written["layout"]), str(written["mainstem"])
        except FileNotFoundError:
            _write_atomically(path, {"layout": LAYOUT, "mainstem": installed_version()})
            return
        except (ValueError, KeyError, TypeError) as error:
            raise StackError(
                f"{path} cannot be read, so the version that wrote this folder is unknown: choose another "
                "data folder, or delete this one if you do not need its data."
            ) from error
        if layout != LAYOUT:
            raise StackError(
                f"{self.path} was written by mainstem {version} in layout {layout}, and this version "
                f"{installed_version()} supports layout {LAYOUT}: use that version or another data folder."
            )


def _write_atomically(path: Path, value: object) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    temporary.replace(path)
