"""Client properties: entries of `-X`, files, the environment; no process list shows a secret (R38)."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainstem.cli.client_properties import FILE_VARIABLE, properties_of_options
from mainstem.cli.main import app
from mainstem.cli.options import BOOTSTRAP_VARIABLE, connect
from mainstem.cli.profiles import Profile, Profiles, change_profiles
from mainstem.errors import BadInput, CommandError
from mainstem.kafka.client import Cluster, Topic
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
    monkeypatch.chdir(tmp_path)  # which has no local stack
    for variable in (FILE_VARIABLE, BOOTSTRAP_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


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


@pytest.mark.parametrize("name", ["bootstrap.servers", "metadata.broker.list"])
@pytest.mark.parametrize(
    ("arguments", "environment", "servers", "properties"),
    [
        (("-X", "@file", "topic", "list"), {}, "file:1", {"client.id": "file"}),
        (("topic", "list", "-X", "@file"), {}, "file:1", {"client.id": "file"}),
        (("topic", "list"), {FILE_VARIABLE: "file"}, "file:1", {"client.id": "file"}),
        (("topic", "list", "-X", "@other"), {FILE_VARIABLE: "file"}, "other:1", {"client.id": "file"}),
        (("topic", "list", "-b", "option:1", "-X", "@file"), {}, "option:1", {"client.id": "file"}),
        (("-b", "option:1", "-X", "@file", "topic", "list"), {}, "option:1", {"client.id": "file"}),
        (
            ("topic", "list", "-X", "@file"),
            {BOOTSTRAP_VARIABLE: "variable:1"},
            "variable:1",
            {"client.id": "file"},
        ),
        (
            ("topic", "list", "-b", "profile:1", "-X", "@file"),
            {},
            "profile:1",
            {"client.id": "file", "acks": "all"},
        ),
        (("topic", "list"), {}, "profile:1", {"acks": "all"}),
    ],
)
def test_a_command_has_one_cluster_which_an_option_names_before_a_file_and_a_file_before_the_profile(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    servers: str,
    properties: dict[str, str],
) -> None:
    """R36. Stock files of properties begin with `bootstrap.servers`."""
    (tmp_path / "file").write_text(f"{name}=file:1\nclient.id=file\n")
    (tmp_path / "other").write_text("bootstrap.servers=other:1\n")
    profile = Profile("profile:1", {"acks": "all", name: "elsewhere:1"})
    change_profiles(lambda _: Profiles().with_profile("used", profile).using("used"))
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    used: list[Cluster] = []

    def topics(cluster: Cluster) -> dict[str, Topic]:
        used.append(cluster)
        return {}

    monkeypatch.setattr(Cluster, "topics", topics)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert [(cluster.bootstrap_servers, cluster.properties) for cluster in used] == [(servers, properties)]


def test_an_empty_text_names_no_cluster() -> None:
    """R36. As `-b "$SERVERS"` of a variable without a value."""
    for arguments in (("-b", "", "topic", "list"), ("topic", "list", "-b", "")):
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, BadInput), result.output


def test_of_two_names_of_a_setting_the_last_value_counts(tmp_path: Path) -> None:
    (tmp_path / "login").write_text("sasl.mechanism=PLAIN\n")
    entries = [f"@{tmp_path / 'login'}", "sasl.mechanisms=SCRAM-SHA-512"]
    assert properties_of_options(entries) == {"sasl.mechanism": "SCRAM-SHA-512"}


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
