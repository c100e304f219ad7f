"""Profiles: remembered clusters, and which cluster a command uses."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Final

import pytest

from mainstem.cli.options import connect, default_bootstrap_servers
from mainstem.cli.profiles import Profile, Profiles, change_profiles, profiles_path, read_profiles
from mainstem.cli.registry_access import registry_access
from mainstem.errors import BadInput
from mainstem.local.stack_folder import StackFolder


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def test_without_a_file_there_are_no_profiles() -> None:
    assert read_profiles() == Profiles()


def test_what_was_written_is_read_and_only_the_owner_may_read_it() -> None:
    profiles = Profiles().with_profile("prod", Profile("a:1,b:2", {"sasl.password": "x"})).using("prod")
    change_profiles(lambda _: profiles)
    assert read_profiles() == profiles
    assert stat.S_IMODE(profiles_path().stat().st_mode) == 0o600


def test_a_change_does_not_undo_one_of_another_command_at_the_same_time() -> None:
    other = threading.Thread(
        target=change_profiles, args=[lambda profiles: profiles.with_profile("b", Profile("b:1"))]
    )

    def change(profiles: Profiles) -> Profiles:
        other.start()
        other.join(0.2)  # which ends it only if it does not wait for this change
        return profiles.with_profile("a", Profile("a:1"))

    change_profiles(change)
    other.join()
    assert read_profiles().profiles.keys() == {"a", "b"}


def test_a_deleted_profile_is_no_longer_in_use() -> None:
    profiles = Profiles().with_profile("a", Profile("a:1")).with_profile("b", Profile("b:1")).using("a")
    assert profiles.without("a") == Profiles(None, {"b": Profile("b:1")})
    assert profiles.without("b").used == "a"


def test_an_unknown_profile_is_refused_with_the_names_of_the_others() -> None:
    with pytest.raises(BadInput, match=r"no profile b \(existing ones: a\)"):
        Profiles().with_profile("a", Profile("a:1")).using("b")


def test_a_damaged_file_is_named() -> None:
    profiles_path().parent.mkdir(parents=True)
    profiles_path().write_text('{"profiles": []}')
    with pytest.raises(BadInput, match="repair or delete it"):
        read_profiles()


STACK: Final = {
    "brokers": [{"port": 7001}, {"port": 7002}],
    "schema_registry": {"url": "http://127.0.0.1:7003"},
}


def test_the_default_cluster_is_the_profile_in_use_else_the_local_stack_else_port_9092(
    tmp_path: Path,
) -> None:
    """R36."""
    assert default_bootstrap_servers() == "127.0.0.1:9092"
    folder = StackFolder(tmp_path / "data" / "local")
    folder.open(brokers=2)
    folder.write_state(STACK)
    assert default_bootstrap_servers() == "127.0.0.1:7001,127.0.0.1:7002"
    assert registry_access(None, None).url == "http://127.0.0.1:7003"
    change_profiles(lambda _: Profiles().with_profile("prod", Profile("a:1")).using("prod"))
    assert default_bootstrap_servers() == "a:1"
    folder.close()


def test_a_stack_that_was_killed_is_not_the_default_cluster(tmp_path: Path) -> None:
    """R36. It leaves `stack.json` behind, and another cluster may run at the standard port."""
    folder = tmp_path / "data" / "local"
    folder.mkdir(parents=True)
    (folder / "stack.lock").write_text(f"{os.getpid()}\n")
    (folder / "stack.json").write_text(json.dumps(STACK))
    assert default_bootstrap_servers() == "127.0.0.1:9092"
    assert registry_access(None, None).url == "http://127.0.0.1:8081"


def test_properties_of_a_profile_apply_to_its_cluster_only_and_options_override_them() -> None:
    change_profiles(
        lambda _: Profiles().with_profile("prod", Profile("a:1", {"x": "1", "y": "2"})).using("prod")
    )
    assert connect("a:1", ["y=3"]).properties == {"x": "1", "y": "3"}
    assert connect("b:1", None).properties == {}
