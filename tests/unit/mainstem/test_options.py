"""Settings as NAME=VALUE."""

from __future__ import annotations

import pytest

from mainstem.errors import BadInput
from mainstem.options import settings_of


def test_settings_are_cut_at_the_first_equals_sign_and_later_ones_win() -> None:
    assert settings_of(["a=1", " b = x=y ", "a=2", "c="]) == {"a": "2", "b": "x=y", "c": ""}


def test_no_settings_are_none() -> None:
    assert settings_of(None) == {}


@pytest.mark.parametrize("pair", ["", "a", "=1", " =1"])
def test_a_setting_without_a_name_or_an_equals_sign_is_refused(pair: str) -> None:
    with pytest.raises(BadInput, match="--header takes NAME=VALUE"):
        settings_of([pair], "--header")
