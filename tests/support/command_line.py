"""The command `mainstem` run as a process, and what it answers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.support.clusters import ReachableCluster

from mainstem.cli.main import main

# A test run in the background of a shell has SIGINT ignored, and so would all that it starts.
_AS_ON_A_TERMINAL = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
MAINSTEM = [sys.executable, "-c", _AS_ON_A_TERMINAL + "from mainstem.__main__ import main; main()"]


def environment(cluster: ReachableCluster | None = None, **more: str) -> dict[str, str]:
    """The environment of a command that is to talk to `cluster`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAINSTEM_")}
    if cluster is not None:
        inherited["MAINSTEM_BOOTSTRAP_SERVERS"] = cluster.bootstrap_servers
    inherited["XDG_CONFIG_HOME"] = (
        "/nonexistent"  # the profiles of the person who runs the tests do not count
    )
    return {**inherited, **more}


def mainstem(
    *arguments: str | int | Path,
    cluster: ReachableCluster | None = None,
    stdin: bytes = b"",
    exit_code: int = 0,
) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end, and check that it exits with `exit_code`."""
    ended = subprocess.run(
        [*MAINSTEM, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env=environment(cluster),
        timeout=120,
        check=False,
    )
    assert ended.returncode == exit_code, ended.stdout.decode() + ended.stderr.decode()
    assert b"Traceback" not in ended.stderr
    return ended


def mainstem_here(
    *arguments: str | int | Path, cluster: ReachableCluster, stdin: bytes = b"", exit_code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """The same within this process, which saves the start of one; for commands that only ask and answer."""
    given = ["mainstem", *map(str, arguments), "--bootstrap-servers", cluster.bootstrap_servers]
    shown, reported = io.BytesIO(), io.BytesIO()
    out, err = io.TextIOWrapper(shown), io.TextIOWrapper(reported)
    with (
        patch.object(sys, "argv", given),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    code = ended.value.code or 0
    out.flush()
    err.flush()
    assert code == exit_code, (shown.getvalue() + reported.getvalue()).decode()
    return subprocess.CompletedProcess(given, exit_code, shown.getvalue(), reported.getvalue())


def mainstem_json(*arguments: str | int | Path, cluster: ReachableCluster, stdin: bytes = b"") -> Any:
    """Run the command with `--output json` and read its answer."""
    return json.loads(mainstem(*arguments, "--output", "json", cluster=cluster, stdin=stdin).stdout)


def mainstem_json_here(*arguments: str | int | Path, cluster: ReachableCluster) -> Any:
    """The same within this process."""
    return json.loads(mainstem_here(*arguments, "--output", "json", cluster=cluster).stdout)


def error_of(ended: subprocess.CompletedProcess[bytes]) -> str:
    """The sentence that a failed command ends with; nothing is on stdout then."""
    assert ended.stdout == b""
    lines = ended.stderr.decode().splitlines()
    assert lines[-1].startswith("Error: ")
    return lines[-1].removeprefix("Error: ")


def mainstem_fails(
    *arguments: str | int | Path,
    cluster: ReachableCluster | None = None,
    stdin: bytes = b"",
    exit_code: int = 1,
) -> str:
    """Run a command that fails; its sentence."""
    return error_of(mainstem(*arguments, cluster=cluster, stdin=stdin, exit_code=exit_code))


def mainstem_fails_here(*arguments: str | int | Path, cluster: ReachableCluster, exit_code: int = 1) -> str:
    """The same within this process."""
    return error_of(mainstem_here(*arguments, cluster=cluster, exit_code=exit_code))


def completions(line: str, cluster: ReachableCluster) -> list[str]:
    """What the command offers a shell for the last word of a line."""
    requested = {
        "_MAINSTEM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))
    }  # fmt: skip
    program = "from mainstem.cli.main import app; app(prog_name='mainstem')"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(cluster, **requested),
        timeout=60,
        check=False,
    )
    return ended.stdout.split()


def modules_imported_by(*arguments: str) -> set[str]:
    """The names of all modules that a command has imported when it ends."""
    program = (
        "import sys\n"
        "from mainstem.__main__ import main\n"
        f"sys.argv = ['mainstem', *{list(arguments)!r}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(ended.stderr.split())
