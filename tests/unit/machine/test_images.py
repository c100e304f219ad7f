"""Which images are built anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from tests.e2e.machine.images import Built

NAME = "mainstem/broker:dev"


class PlayedEngine:
    """Has one image at most; `image_id` is its id."""

    def __init__(self) -> None:
        self.image_id: str | None = None

    def has_image(self, _: str) -> bool:
        return self.image_id is not None

    def docker(self, *_: Any) -> str:
        assert self.image_id is not None
        return f"{self.image_id}\n"


def test_an_image_is_there_if_it_was_made_from_the_same_and_by_nobody_else(tmp_path: Path) -> None:
    engine = PlayedEngine()
    built = Built(cast(Any, engine), tmp_path / "built-images")
    assert not built.has(NAME, "sources 1")
    engine.image_id = "sha256:1"
    assert not built.has(NAME, "sources 1"), "another program has made it"
    built.note(NAME, "sources 1")
    assert built.has(NAME, "sources 1")
    assert not built.has(NAME, "sources 2")
    assert not built.has("mainstem/operator:dev", "sources 1")
    engine.image_id = "sha256:2"
    assert not built.has(NAME, "sources 1"), "another checkout has made it anew"
    engine.image_id = None
    assert not built.has(NAME, "sources 1")
