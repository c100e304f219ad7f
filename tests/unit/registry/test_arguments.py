"""What the program refuses at its start (R38)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.certificates import Authority

from mainstem_registry.__main__ import main

LOGIN = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"


@pytest.mark.parametrize("text", ["10_000", " 5", "-1", "1e3", "٣"])
def test_a_timeout_that_is_no_plain_number_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = ["registry", "--bootstrap-servers", "127.0.0.1:1", "--listen", "127.0.0.1:0"]
    monkeypatch.setattr(sys, "argv", [*program, f"--session-timeout-ms={text}"])
    with pytest.raises(SystemExit):
        main()
    assert "is not a whole number, such as 10000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("listen", "arguments", "reason"),
    [
        ("0.0.0.0:0", ["--login-config", "LOGIN", "--advertised-url", "http://a"], "add a certificate"),
        ("127.0.0.1:0", ["--login-config", "OPEN"], "security.protocol=PLAINTEXT, which has no login"),
        ("127.0.0.1:0", ["--tls-key", "KEY"], "--tls-key needs --tls-certificate"),
        ("127.0.0.1:0", ["--tls-ca", "KEY"], "--tls-ca needs --tls-certificate"),
        ("127.0.0.1:0", ["--tls-certificate", "KEY", "--advertised-url", "http://a"], "begin with https://"),
        ("127.0.0.1:0", ["--tls-certificate", "LOGIN"], "cannot be used as a certificate"),
    ],
)
def test_an_api_that_would_not_be_safe_does_not_start(
    listen: str,
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, content in (("LOGIN", LOGIN), ("OPEN", ""), ("KEY", Authority().issue())):
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    advertised = [] if "--advertised-url" in arguments else ["--advertised-url", "https://a"]
    program = ["registry", "--bootstrap-servers", "127.0.0.1:1", "--listen", listen]
    monkeypatch.setattr(sys, "argv", [*program, *arguments, *advertised])
    assert main() == 1
    assert reason in capsys.readouterr().err
