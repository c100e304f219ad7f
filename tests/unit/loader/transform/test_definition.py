"""Transforms as people write them down (R34)."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from mainstem_loader.errors import SettingsError
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.transform.definition import (
    DEADLINE_SECONDS_MAX,
    TableInput,
    TopicInput,
    Transform,
    declared_transform,
    function_of,
    input_of,
)


def test_a_command_line_names_a_file_a_statement_or_a_function(tmp_path: Path) -> None:
    file = tmp_path / "clean.sql"
    file.write_text("SELECT * FROM records")
    assert declared_transform(str(file), None, [], []) == Transform(sql="SELECT * FROM records")
    assert declared_transform(None, "SELECT 1", [], [], 60) == Transform(sql="SELECT 1", deadline_s=60)
    assert declared_transform("jobs.clean:flatten", None, [], []) == Transform(function="jobs.clean:flatten")
    assert declared_transform(None, None, [], []) is None


def test_inputs_are_tables_and_topics_of_any_format() -> None:
    transform = declared_transform(
        None,
        "SELECT 1",
        ["users=topic:users.v1", "prices=topic:prices:avro", "shops=table:shops"],
        ["users.age=long", "users.name.first=string"],
    )
    assert transform is not None
    assert transform.inputs == {
        "users": TopicInput("users.v1", columns={"age": pa.int64(), "name.first": pa.string()}),
        "prices": TopicInput("prices", PayloadFormat.AVRO),
        "shops": TableInput("shops"),
    }


@pytest.mark.parametrize(
    "text", ["users", "users=users", "users=topic:", "users=table:a:b", "users=topic:a:csv", "users=file:a"]
)
def test_what_is_no_input_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is no input"):
        input_of(text)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("gone.sql", None, [], []), "cannot be read"),
        (("a:b", "SELECT 1", [], []), "given twice"),
        ((None, None, ["a=table:a"], []), "name the transform"),
        ((None, "SELECT 1", ["a=table:a", "a=table:b"], []), "same name"),
        ((None, "SELECT 1", ["a=table:a"], ["a.b=long"]), "no input that is a topic"),
        ((None, "SELECT 1", ["a=topic:a"], ["a.b=bigint"]), "no column type"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    arguments: tuple[str | None, str | None, list[str], list[str]], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        declared_transform(*arguments)


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (Transform(), "name one"),
        (Transform(sql="SELECT 1", function="a:b"), "name one"),
        (Transform(sql=" ;\n"), "empty"),
        (Transform(sql="SELECT 1", deadline_s=0), "deadline"),
        (Transform(sql="SELECT 1", deadline_s=DEADLINE_SECONDS_MAX + 1), "deadline"),
        (Transform(sql="SELECT 1", inputs={"Records": TableInput("a")}), "No input can be called"),
        (Transform(sql="SELECT 1", inputs={"a-b": TableInput("a")}), "No input can be called"),
        (Transform(sql="SELECT 1", inputs={"a": TableInput("a"), "A": TableInput("b")}), "case alone"),
        (Transform(function="no_such_module:clean"), "cannot be imported"),
        (Transform(function="json:no_such_function"), "has no function"),
        (Transform(function="json:__doc__"), "has no function"),
    ],
)
def test_what_cannot_be_a_transform_is_refused_before_anything_is_read(
    transform: Transform, reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        transform.check()


def test_functions_are_found_in_the_current_folder_here_and_by_sparks_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs_of_this_test.py").write_text("def clean(records):\n    return records\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert function_of("jobs_of_this_test:clean")("records") == "records"
    import os

    assert os.environ["PYTHONPATH"] == f"{tmp_path}{os.pathsep}elsewhere"


def test_a_module_that_fails_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_of_this_test.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    with pytest.raises(SettingsError, match="RuntimeError: no licence"):
        function_of("broken_of_this_test:clean")


def test_a_module_that_exits_while_it_is_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exits_at_once.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match=r"cannot be imported \(SystemExit: 0\)"):
        Transform(function="exits_at_once:clean").check()
