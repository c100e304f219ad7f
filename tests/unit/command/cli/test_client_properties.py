"""Client properties: entries of `-X`, files, the environment; no process list shows a secret (R38)."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainstem.cli.client_properties import FILE_VARIABLE, properties_of_options
from mainstem.cli.main import app
from mainstem.cli.options import connect
from mainstem.errors import BadInput, CommandError
from mainstem.kafka.client import Cluster
from mainstem_loader.errors import LoaderError
from mainstem_loader.kafka.leaders import BrokerSettings


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
    with pytest.raises(BadInput, match="broken cannot be read: Line 2 is not of the form") as refused:
        properties_of_options([f"@{broken}"])
    assert "hunter2" not in str(refused.value)


def test_a_password_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "login.properties"
    path.write_text("sasl.password=se\x85c\u2028re\vt\x1c\n", encoding="utf-8")
    assert properties_of_options([f"@{path}"]) == {"sasl.password": "se\x85c\u2028re\vt\x1c"}


def test_options_override_the_file_of_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    properties = connect("127.0.0.1:9092", ["sasl.username=bob"]).properties
    assert (properties["sasl.username"], properties["sasl.password"]) == ("bob", "a=b #c")


def test_an_audit_reads_the_topic_with_the_login_of_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "secret",
    }
    path = tmp_path / "login.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in login.items()))
    seen: list[BrokerSettings] = []

    def observe(brokers: BrokerSettings, *_: object, **__: object) -> None:
        seen.append(brokers)
        raise LoaderError("No broker answers.")

    monkeypatch.setattr("mainstem.audit.observations.observe", observe)
    monkeypatch.setattr(Cluster, "topic", lambda *_: None)
    monkeypatch.setattr(Cluster, "topic_settings", lambda *_: None)
    arguments = ["audit", "t", "--bootstrap-servers", "b:1", "-X", f"@{path}", "-w", str(tmp_path / "w")]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, CommandError), result.output
    assert [(brokers.bootstrap_servers, dict(brokers.client_properties)) for brokers in seen] == [
        ("b:1", login)
    ]
