"""A local stack in the background: started by `mainstem up --detach`, stopped by `mainstem down`.

The background process is an ordinary `mainstem up` in a session of its own, with its output in `up.log`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from mainstem.errors import StackError
from mainstem.local.stack_folder import StackFolder

STOP_TIMEOUT_SECONDS: Final = 90.0  # longer than a stack waits for brokers and ZooKeeper one after the other
_POLL_SECONDS: Final = 0.05
_ERROR_PREFIX: Final = "Error: "


def start_in_background(folder: StackFolder, arguments: Sequence[str]) -> dict[str, Any]:
    """Run `mainstem up ARGUMENTS` in the background and wait until it is ready.

    Returns:
        The content of `stack.json`.

    Raises:
        StackError: it did not start; the message is its own error.
    """
    owner_pid = folder.owner_pid()
    if owner_pid is not None:
        raise StackError(
            f"A stack is already running in {folder.path} (process {owner_pid}): stop it with "
            "`mainstem down`, or choose another data folder."
        )
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        with folder.up_log_path.open("wb") as log_file:
            process = subprocess.Popen(
                # -P: a file in the current folder must not replace one of our modules.
                [sys.executable, "-P", "-m", "mainstem", "up", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal that closes sends it no SIGHUP
            )
    except OSError as error:
        raise StackError(
            f"{folder.path} cannot be used ({error.strerror}): choose another data folder."
        ) from error
    try:
        while True:
            exit_code = process.poll()
            if exit_code is not None:
                raise StackError(_error_in_log(folder))
            state = folder.read_state()
            if state is not None and state["pid"] == process.pid:
                return state
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def stop_in_background(folder: StackFolder) -> bool:
    """Stop the stack that runs in `folder` and wait until it has stopped.

    Returns:
        Whether there was one.

    Raises:
        StackError: it has not stopped in time.
    """
    owner_pid = folder.owner_pid()
    if owner_pid is None:
        return False
    try:
        os.kill(owner_pid, signal.SIGTERM)
    except ProcessLookupError:
        return True  # it ended after the check above
    except PermissionError as error:
        raise StackError(
            f"Process {owner_pid} belongs to another user: stop the stack as that user."
        ) from error
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    while folder.owner_pid() is not None:
        if time.monotonic() > deadline:
            raise StackError(
                f"Process {owner_pid} did not stop within {STOP_TIMEOUT_SECONDS:.0f} s. To kill it and its "
                f"brokers, which recover at the next start, type: kill -9 {owner_pid}"
            )
        time.sleep(_POLL_SECONDS)
    return True


def _error_in_log(folder: StackFolder) -> str:
    lines = folder.up_log_path.read_text(errors="replace").splitlines()
    errors = [line.removeprefix(_ERROR_PREFIX) for line in lines if line.startswith(_ERROR_PREFIX)]
    return errors[-1] if errors else f"The stack did not start. Log: {folder.up_log_path}"
