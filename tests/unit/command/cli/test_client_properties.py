"""Client properties: entries of `-X`, files, the environment; no process list shows a secret (R38)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.cli.client_properties import FILE_VARIABLE, properties_of_options
from mainstem.cli.options import connect
from mainstem.errors import BadInput


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "alice.properties"
    path.write_text("# login\n\nsasl.username = alice\nsasl.password=a=b #c\n")
    return path


@pytest.fixture(autouse=True)
def no_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(FILE_VARIABLE, raising=False)


def test_entries_are_cut_at_the_first_equals_sign_and_later_ones_win() -> None:
    assert properties_of_options(["a=1", " b = x=y ", "a=2", "c="]) == {"a": "2", "b": "x=y", "c": ""}
    assert properties_of_options(None) == {}


def test_a_file_has_lines_of_properties_and_comments(file: Path) -> None:
    properties = properties_of_options(["sasl.username=bob", f"@{file}", "acks=all"])
    assert properties == {"sasl.username": "alice", "sasl.password": "a=b #c", "acks": "all"}


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret"])
def test_a_secret_is_taken_from_a_file_only_and_not_repeated(name: str) -> None:
    with pytest.raises(BadInput, match=rf"{name} is a secret.*-X @FILE") as refused:
        properties_of_options([f"{name}=hunter2"])
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("entry", ["", "a", "=1", " =1"])
def test_an_entry_of_another_form_is_refused(entry: str) -> None:
    with pytest.raises(BadInput, match="--client-property takes NAME=VALUE or @FILE"):
        properties_of_options([entry])


def test_a_file_that_cannot_be_read_is_named_and_its_lines_are_not_shown(tmp_path: Path) -> None:
    missing, broken, binary = (tmp_path / name for name in ("missing", "broken", "binary"))
    broken.write_text("a=1\nhunter2\n")
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="missing cannot be read: No such file or directory"):
        properties_of_options([f"@{missing}"])
    with pytest.raises(BadInput, match="binary cannot be read: it is not text"):
        properties_of_options([f"@{binary}"])
    with pytest.raises(BadInput, match=r"broken, line 2: .* NAME=VALUE") as refused:
        properties_of_options([f"@{broken}"])
    assert "hunter2" not in str(refused.value)


def test_options_override_the_file_of_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    properties = connect("127.0.0.1:9092", ["sasl.username=bob"]).properties
    assert (properties["sasl.username"], properties["sasl.password"]) == ("bob", "a=b #c")
