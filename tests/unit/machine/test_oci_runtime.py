"""What stands before runc on machines that withhold a capability."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.machine import oci_runtime

EVERYTHING = (1 << len(oci_runtime.CAPABILITIES)) - 1
WITHOUT_RESOURCE = EVERYTHING & ~(1 << oci_runtime.CAP_SYS_RESOURCE)


def privileged() -> dict[str, Any]:
    """A process as Docker describes a privileged one."""
    names = [f"CAP_{name}" for name in oci_runtime.CAPABILITIES]
    return {
        "args": ["sleep"],
        "capabilities": {"bounding": list(names), "effective": list(names)},
        "oomScoreAdj": -500,
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 2**40, "soft": 2**40}],
    }


def test_a_full_machine_changes_nothing() -> None:
    process = privileged()
    oci_runtime.fit(process, EVERYTHING)
    assert process == privileged()


def test_a_capability_that_the_machine_withholds_is_not_asked_for() -> None:
    process = privileged()
    oci_runtime.fit(process, WITHOUT_RESOURCE)
    for names in process["capabilities"].values():
        assert "CAP_SYS_RESOURCE" not in names
        assert "CAP_SYS_ADMIN" in names


def test_priorities_and_limits_that_need_the_capability_are_lowered() -> None:
    process = privileged()
    oci_runtime.fit(process, WITHOUT_RESOURCE)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert process["oomScoreAdj"] == 0
    assert process["rlimits"] == [{"type": "RLIMIT_NOFILE", "hard": hard, "soft": hard}]


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["--root", "/r", "create", "--bundle", "/b", "id"], Path("/b/config.json")),
        (["run", "-b", "/b", "id"], Path("/b/config.json")),
        (["create", "id"], Path("config.json")),
        (["exec", "--process", "/p.json", "id"], Path("/p.json")),
        (["kill", "id", "9"], None),
        (["state", "id"], None),
    ],
    ids=["create", "run", "create here", "exec", "kill", "state"],
)
def test_the_description_is_found_where_runc_would_read_it(arguments: list[str], file: Path | None) -> None:
    assert oci_runtime.description(arguments) == file


def test_runc_follows_with_the_same_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a bundle, only the process is touched."""
    bundle = tmp_path / "config.json"
    bundle.write_text(json.dumps({"process": privileged(), "root": {"path": "rootfs"}}))
    became: list[list[str]] = []
    monkeypatch.setattr("os.execvp", lambda program, words: became.append([program, *words]))
    monkeypatch.setattr(oci_runtime, "bounding_set", lambda: WITHOUT_RESOURCE)
    oci_runtime.main(["create", "--bundle", str(tmp_path), "id"])
    assert became == [["runc", "runc", "create", "--bundle", str(tmp_path), "id"]]
    written = json.loads(bundle.read_text())
    assert written["root"] == {"path": "rootfs"}
    assert "CAP_SYS_RESOURCE" not in written["process"]["capabilities"]["bounding"]
