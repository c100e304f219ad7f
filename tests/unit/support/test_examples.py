from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[int | str]:
    """The examples of a test that are the same everywhere."""
    values: list[int | str] = []

    @settings(derandomize=True, max_examples=1_000, database=None)
    @given(st.integers() | st.text())
    def draw(value: int | str) -> None:
        values.append(value)

    draw()
    return values


def test_the_same_examples_are_tried_whatever_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drawn()
    (tmp_path / "with_constants.py").write_text("number, text = 7_283_645_192_837, 'an unlikely text'\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("with_constants")
    try:
        assert drawn() == before
    finally:
        del sys.modules["with_constants"]
