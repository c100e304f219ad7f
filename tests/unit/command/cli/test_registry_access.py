"""Which schema registry a command uses, and which login goes where (R31, R38)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.cli.client_properties import FILE_VARIABLE, properties_of_options
from mainstem.cli.options import connect
from mainstem.cli.profiles import Profile, Profiles, change_profiles
from mainstem.cli.registry_access import RegistryAccess, registry_access
from mainstem.errors import BadInput

PROFILE = {
    "schema.registry.url": "https://prod:8081",
    "basic.auth.user.info": "alice:secret",
    "schema.registry.ssl.ca.location": "/ca.pem",
}


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)


def use_profile(properties: dict[str, str]) -> None:
    change_profiles(lambda _: Profiles().with_profile("prod", Profile("prod:9092", properties)).using("prod"))


def file_of(path: Path, **properties: str) -> str:
    path.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in properties.items()))
    return f"@{path}"


def test_without_anything_it_is_the_local_stacks() -> None:
    assert registry_access(None, None) == RegistryAccess("http://127.0.0.1:8081", {})


def test_a_profile_names_a_registry_and_its_login() -> None:
    use_profile({"security.protocol": "ssl", **PROFILE})
    access = registry_access(None, None)
    assert (access.url, access.properties) == ("https://prod:8081", PROFILE)
    assert registry_access("https://prod:8081/", None) == access
    assert "secret" not in repr(access)


def test_the_login_of_a_profile_goes_to_its_own_registry_only() -> None:
    """`--registry` with another address must not get the password (R38)."""
    use_profile(PROFILE)
    assert registry_access("https://other:8081", None) == RegistryAccess("https://other:8081", {})
    use_profile({"basic.auth.user.info": "alice:secret"})  # it names none
    assert registry_access("https://other:8081", None) == RegistryAccess("https://other:8081", {})
    assert registry_access(None, None) == RegistryAccess("http://127.0.0.1:8081", {})


def test_a_file_overrides_the_profile_and_its_login_may_be_for_any_registry(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_profile(PROFILE)
    file = file_of(tmp_path / "a", schema_registry_url="https://dev:8081", basic_auth_user_info="bob:x")
    dev = {"schema.registry.url": "https://dev:8081", "basic.auth.user.info": "bob:x"}
    assert registry_access(None, [file]) == RegistryAccess("https://dev:8081", dev)
    assert registry_access("https://prod:8081", [file]).properties == PROFILE
    monkeypatch.setenv(FILE_VARIABLE, file[1:])
    assert registry_access(None, None) == RegistryAccess("https://dev:8081", dev)
    login = file_of(tmp_path / "b", basic_auth_user_info="carol:x")
    assert registry_access("https://other:8081", [login]).properties == {"basic.auth.user.info": "carol:x"}


def test_librdkafka_does_not_get_properties_of_registries(tmp_path: Path) -> None:
    file = file_of(tmp_path / "a", basic_auth_user_info="bob:x", security_protocol="ssl")
    assert connect("a:9092", [file, "schema.registry.url=https://dev"]).properties == {
        "security.protocol": "ssl"
    }


def test_the_login_is_not_taken_from_a_command_line() -> None:
    with pytest.raises(BadInput, match=r"basic\.auth\.user\.info is a secret") as refused:
        properties_of_options(["basic.auth.user.info=alice:hunter2"])
    assert "hunter2" not in str(refused.value)
