"""Where passwords of users come from."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from mainstem.cli import user
from mainstem.errors import BadInput

LINES = [
    (b"secret", b"secret"),
    (b"secret\n", b"secret"),
    (b"secret\r\n", b"secret"),
    (b"secret\r\r\n", b"secret\r"),
    (b"secret\r", b"secret\r"),
    (b"sec\rret\nsecond line\n", b"sec\rret"),
    (" sec\x85ret\u2028 \n".encode(), " sec\x85ret\u2028 ".encode()),
]


@pytest.mark.parametrize(("data", "password"), LINES)
def test_a_password_of_a_file_loses_one_line_end_and_nothing_else(
    data: bytes, password: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_bytes(data)
    assert user._password("alice", file) == password


@pytest.mark.parametrize(("data", "password"), LINES)
def test_a_password_of_standard_input_loses_one_line_end_and_nothing_else(
    data: bytes, password: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert user._password("alice", Path("-")) == password


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n", b"\nsecret"])
def test_an_empty_password_is_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(data)
    with pytest.raises(BadInput, match="The password is empty"):
        user._password("alice", file)


def test_bytes_of_standard_input_that_are_no_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n")))
    with pytest.raises(BadInput, match="it is not text"):
        user._password("alice", Path("-"))
