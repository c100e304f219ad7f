"""Tests that share a cluster reach it and no more, and give names of their own to what they make there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.clusters import Cluster, ReachableCluster, SharedCluster
from tests.support.documentation import FILES, REPOSITORY

TESTS: Final = [path for path in FILES if path.startswith("tests/interop/") and path.endswith(".py")]
FIXTURES: Final = ("tests/conftest.py", "tests/interop/conftest.py")
SHARED: Final = frozenset({"local_stack", "group_stack"})
NAMES: Final = {"group.id", "group_id", "transactional.id", "transactional_id"}
CHANGES: Final = {
    ("topic", "create"),
    ("topic", "alter"),
    ("topic", "delete"),
    ("group", "reset"),
    ("group", "delete"),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_a_shared_cluster_has_no_method_that_changes_it() -> None:
    changing = {name for name in vars(Cluster) if not name.startswith("_")} - vars(ReachableCluster).keys()
    assert {"stop", "stop_broker", "kill_broker", "start_broker"} <= changing
    shared: Any = SharedCluster
    assert not [name for name in changing if hasattr(shared, name)]


def functions_of(source: str) -> list[Function]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]


def fixtures_of(functions: list[Function], known: frozenset[str]) -> frozenset[str]:
    """`known`, and the fixtures that take one of them, over any number of steps."""
    found = set(known)
    while added := {
        function.name
        for function in functions
        if is_fixture(function) and parameters(function) & found and function.name not in found
    }:
        found |= added
    return frozenset(found)


def is_fixture(function: Function) -> bool:
    return any("fixture" in ast.unparse(decorator) for decorator in function.decorator_list)


def parameters(function: Function) -> set[str]:
    return {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}


def literals_of(source: str, known: frozenset[str] = SHARED) -> Iterator[int]:
    """The lines that give a fixed name to a topic, a group or a transactional id of a shared cluster."""
    functions = functions_of(source)
    # A module may replace a fixture, as by one on a cluster of its own.
    replaced = {function.name for function in functions if is_fixture(function)}
    sharing = fixtures_of(functions, known - replaced)
    for function in functions:
        is_run_by_pytest = is_fixture(function) or function.name.startswith("test_")
        if is_run_by_pytest and parameters(function) & sharing:
            for statement in function.body:
                for node in ast.walk(statement):
                    if is_literal_name(node):
                        yield getattr(node, "lineno", 0)


def is_literal_name(node: ast.AST) -> bool:
    match node:
        case ast.Dict(keys=keys, values=values):
            return any(
                isinstance(key, ast.Constant) and key.value in NAMES and is_text(value)
                for key, value in zip(keys, values, strict=True)
            )
        case ast.Call(func=function, args=arguments, keywords=keywords):
            if any(keyword.arg in NAMES and is_text(keyword.value) for keyword in keywords):
                return True
            if ast.unparse(function) in ("new_topic", "group_topic"):
                return any(keyword.arg == "name" and is_text(keyword.value) for keyword in keywords)
            words = list(flattened(arguments))
            if ast.unparse(function).rpartition(".")[2] == "NewTopic":
                return is_text(words[0]) if words else False
            texts = [word.value if isinstance(word, ast.Constant) else None for word in words]
            if tuple(texts[:2]) in CHANGES:
                return any(is_text(word) for word in words[2:3])
            return texts[:1] == ["produce"] and any(is_text(word) for word in words[1:2])
    return False


def flattened(arguments: list[ast.expr]) -> Iterator[ast.expr]:
    """The arguments of a call; those in `*("a", "b")` one by one."""
    for argument in arguments:
        if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple | ast.List):
            yield from argument.value.elts
        else:
            yield argument


def is_text(node: ast.expr) -> bool:
    """Whether it is a fixed text that names something; options of the command begin with `-`."""
    match node:
        case ast.Constant(value=str(text)):
            return text != "" and not text.startswith("-")
        case ast.JoinedStr(values=parts):
            return all(isinstance(part, ast.Constant) for part in parts)
    return False


def test_literal_names_are_found() -> None:
    source = """
@pytest.fixture
def admin(local_stack): return 1
def test_one(admin):
    admin.create_topics([NewTopic("a", 1, 1)])
    admin.create_topics([NewTopic(topic, 1, 1)])
def test_two(group_stack, group):
    Consumer({"group.id": "g"})
    Consumer({"group.id": group})
    KafkaProducer(transactional_id="t")
    mainstem("produce", "a", cluster=group_stack)
    mainstem(*("topic", "create", "a", "--partitions", "2"))
    mainstem("topic", "delete", group, "--yes")
    mainstem("group", "reset", "--all")
    group_topic(name="a")
    group_topic(name=group, prefix="a")
def test_three(own_stack):
    NewTopic("a", 1, 1)
@pytest.fixture
def group(own_stack): return 1
def test_four(group):
    NewTopic("a", 1, 1)
"""
    assert sorted(literals_of(source, SHARED | {"group"})) == [5, 8, 10, 11, 12, 15]


def test_what_is_made_on_a_shared_cluster_has_a_name_of_its_own() -> None:
    sources = {path: Path(REPOSITORY / path).read_text() for path in (*FIXTURES, *TESTS)}
    known = SHARED
    for path in FIXTURES:
        known = fixtures_of(functions_of(sources[path]), known)
    assert {"new_topic", "topic", "leader", "group_topic"} <= known
    found = [f"{path}:{line}" for path in TESTS for line in literals_of(sources[path], known)]
    assert not found, (
        f"{', '.join(found)}: take the name from new_topic, group or unique_name of tests.support.topics, or"
        " a cluster of the test's own (own_stack, own_cluster)."
    )


def test_a_shared_cluster_cannot_be_replaced() -> None:
    cluster: Any = SharedCluster(None)  # type: ignore[arg-type]  # it is not used
    with pytest.raises(AttributeError):
        cluster._cluster = None
