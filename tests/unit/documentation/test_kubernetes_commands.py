"""Commands of kubectl and helm on the pages name types, fields, values and files that exist (R23, R24)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from scripts.documentation import operator_messages
from tests.support.documentation import REPOSITORY, blocks, code_spans, pages

KUBERNETES_TYPES: Final = frozenset(
    {"deployment", "namespace", "node", "pod", "pods", "pvc", "secret", "secrets", "statefulset"}
)
"""Kubernetes' own types on the pages; a page that uses another one adds it."""
_VERBS_WITH_TYPE: Final = frozenset(
    {"annotate", "create", "delete", "describe", "explain", "get", "patch", "scale", "wait"}
)
_OPTIONS_WITH_VALUE: Final = frozenset(
    {"-f", "-l", "-n", "-o", "--namespace", "--patch", "--raw", "--set", "--type"}
)
_COMMAND: Final = re.compile(r"(?:^|\| |&& )((?:kubectl|helm) (?:'[^']*'|\"[^\"]*\"|[^|&'\"])*)")
_SET: Final = re.compile(r"^--set (\S+=\S+)$")
_EXAMPLE: Final = re.compile(r"\bexamples/[\w./-]+\.\w+")
_STATUS_FIELD: Final = re.compile(r"\{\.status\.(\w+)")
_COMMA_OUTSIDE_BRACES: Final = re.compile(r",(?![^{]*\})")


@dataclass(frozen=True, slots=True)
class Command:
    """A command line: its words, with each option that has a value apart from them."""

    program: str
    words: list[str] = field(default_factory=list)
    options: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, line: str) -> Command:
        program, *rest = shlex.split(line, comments=True)
        command = cls(program)
        words = iter(rest)
        for word in words:
            if word in _OPTIONS_WITH_VALUE:
                command.options.append((word, next(words)))
            elif word.startswith("-") and "=" in word:
                name, _, value = word.partition("=")
                command.options.append((name, value))
            elif not word.startswith("-") or word == "-":
                command.words.append(word)
        return command

    def values(self, option: str) -> list[str]:
        return [value for name, value in self.options if name == option]


@dataclass(frozen=True, slots=True)
class Definition:
    """A custom resource definition: the names that kubectl takes for its type, and its schema."""

    names: frozenset[str]
    schema: Mapping[str, Any]


@cache
def definitions() -> list[Definition]:
    found = []
    for path in sorted((REPOSITORY / "crds").glob("*.yaml")):
        spec = yaml.safe_load(path.read_text())["spec"]
        names, group = spec["names"], spec["group"]
        plain = {names["plural"], names["singular"], *names["shortNames"], *names["categories"]}
        found.append(
            Definition(
                frozenset({*plain, f"{names['plural']}.{group}", f"{names['singular']}.{group}"}),
                spec["versions"][0]["schema"]["openAPIV3Schema"],
            )
        )
    return found


def shown_lines(page: Path) -> Iterator[str]:
    """The lines of the blocks of a page, with continued ones joined, and its texts between backticks."""
    for block in blocks(page):
        if block.language in ("sh", "text"):
            yield from (line.strip() for line in re.sub(r"\\\n\s*", " ", block.text).splitlines())
    yield from code_spans(page)


def commands(page: Path, program: str) -> list[Command]:
    lines = [line for text in shown_lines(page) for line in _COMMAND.findall(text)]
    return [command for line in lines if (command := Command.of(line)).program == program]


def types_in(command: Command) -> set[str]:
    """The types that a command of kubectl names, as `bc,cg NAME` or `bc/NAME pod/NAME`."""
    verb, *words = command.words
    if verb not in _VERBS_WITH_TYPE or not words:
        return set()
    if "/" in words[0]:
        return {word.partition("/")[0] for word in words if "/" in word}
    return {word.partition(".")[0] if verb == "explain" else word for word in words[0].split(",")}


def has_value(values: Any, path: str) -> bool:
    """Whether values.yaml has `path`, or an empty mapping above it that takes any name."""
    for part in path.split("."):
        if values == {}:
            return True
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def page_id(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


PAGES_WITH_KUBECTL: Final = [page for page in pages() if commands(page, "kubectl")]
PAGES_WITH_HELM: Final = [
    page for page in pages() if "helm " in page.read_text() or "--set " in page.read_text()
]


@pytest.mark.parametrize("page", PAGES_WITH_KUBECTL, ids=page_id)
def test_types_conditions_and_fields_of_kubectl_exist(page: Path) -> None:
    """R24."""
    custom = definitions()
    known = KUBERNETES_TYPES.union(*(definition.names for definition in custom))
    for command in commands(page, "kubectl"):
        types = types_in(command)
        assert types <= known, f"kubectl {' '.join(command.words)}"
        for condition in command.values("--for"):
            assert condition.removeprefix("condition=") in operator_messages.CONDITIONS, condition
        named = [definition for definition in custom if definition.names & types]
        for output in command.values("-o"):
            for name in _STATUS_FIELD.findall(output):
                fields = [definition.schema["properties"]["status"]["properties"] for definition in named]
                assert any(name in properties for properties in fields), (
                    f"{sorted(types)} has no status.{name}"
                )


@pytest.mark.parametrize("page", PAGES_WITH_HELM, ids=page_id)
def test_charts_and_values_of_helm_exist(page: Path) -> None:
    """R23."""
    values = yaml.safe_load((REPOSITORY / "helm/mainstem/values.yaml").read_text())
    assignments = [match[1] for line in shown_lines(page) if (match := _SET.match(line))]
    for command in commands(page, "helm"):
        assignments += command.values("--set")
        if command.words[0] in ("install", "upgrade"):
            assert (REPOSITORY / command.words[2] / "Chart.yaml").exists(), command.words[2]
    for assignment in assignments:
        for one in _COMMA_OUTSIDE_BRACES.split(assignment):
            path, equals, _ = one.partition("=")
            assert equals, assignment
            assert has_value(values, path), f"values.yaml has no {path}"


@pytest.mark.parametrize("page", pages(), ids=page_id)
def test_every_example_on_a_page_exists(page: Path) -> None:
    """R23."""
    missing = {name for name in _EXAMPLE.findall(page.read_text()) if not (REPOSITORY / name).exists()}
    assert not missing


def test_command_lines_are_read_as_kubectl_and_helm_read_them() -> None:
    delete = Command.of("kubectl -n events delete topics.mainstem.dev,cg --all  # comment")
    assert types_in(delete) == {"topics.mainstem.dev", "cg"}
    assert types_in(Command.of("kubectl delete pvc/data-0 pod/broker-0")) == {"pvc", "pod"}
    assert types_in(Command.of("kubectl explain brokercluster.spec")) == {"brokercluster"}
    assert types_in(Command.of("kubectl -n events logs POD --tail=50")) == set()
    get = Command.of("kubectl get bc events -o jsonpath='{.status.plan}'")
    assert get.values("-o") == ["jsonpath={.status.plan}"]
    install = Command.of(
        "helm install m helm/mainstem --set image.tag=dev,watchNamespaces={a,b} --create-namespace"
    )
    assert install.words == ["install", "m", "helm/mainstem"]
    (assignment,) = install.values("--set")
    assert _COMMA_OUTSIDE_BRACES.split(assignment) == ["image.tag=dev", "watchNamespaces={a,b}"]
    assert has_value({"a": {"b": 1}, "free": {}}, "a.b")
    assert has_value({"a": {"b": 1}, "free": {}}, "free.any.name")
    assert not has_value({"a": {"b": 1}, "free": {}}, "a.c")
