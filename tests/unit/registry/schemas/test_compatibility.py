"""Levels: which earlier versions count, and who has to read whose data (R31)."""

from __future__ import annotations

import pytest

from mainstem_registry.schemas.compatibility import Compatibility, compatibility_problems
from mainstem_registry.schemas.schema import PARSERS

TEXTS = {
    "AVRO": (
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"int"}]}',
    ),
    "JSON": (
        '{"type":"object","properties":{"a":{"type":"integer"}}}',
        '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}',
    ),
    "PROTOBUF": (
        'syntax = "proto3"; message R { int32 a = 1; } message S {}',
        'syntax = "proto3"; message R { int32 a = 1; }',
    ),
}
"""Of each type two schemas of which the first reads data of the second, but not the reverse."""


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize(
    ("level", "may_read_less", "may_read_more"),
    [
        (Compatibility.NONE, True, True),
        (Compatibility.BACKWARD, False, True),
        (Compatibility.FORWARD, True, False),
        (Compatibility.FULL, False, False),
    ],
)
def test_a_level_says_who_reads_whose_data(
    kind: str, level: Compatibility, may_read_less: bool, may_read_more: bool
) -> None:
    reads_both, reads_itself = (PARSERS[kind](text, ()) for text in TEXTS[kind])
    assert bool(compatibility_problems(level, reads_itself, [(1, reads_both)])) is not may_read_less
    assert bool(compatibility_problems(level, reads_both, [(1, reads_itself)])) is not may_read_more
    assert not compatibility_problems(level, reads_itself, [(1, reads_itself)])


@pytest.mark.parametrize(
    ("level", "names"),
    [
        (Compatibility.BACKWARD, []),
        (Compatibility.BACKWARD_TRANSITIVE, ["version 1"]),
        (Compatibility.FORWARD, []),
        (Compatibility.FORWARD_TRANSITIVE, ["version 1"]),
        (Compatibility.FULL, []),
        (Compatibility.FULL_TRANSITIVE, ["version 1"]),
    ],
)
def test_transitive_levels_compare_with_all_versions_and_others_with_the_newest(
    level: Compatibility, names: list[str]
) -> None:
    old, new = (PARSERS["AVRO"](text, ()) for text in ('"int"', '"string"'))
    problems = compatibility_problems(level, new, [(1, old), (2, new)])
    assert [
        name for name in ("version 1", "version 2") if any(name in problem for problem in problems)
    ] == names
