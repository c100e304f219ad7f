"""The documentation says what is true: commands, files, alerts, conditions and links exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from scripts.documentation import operator_messages
from scripts.documentation.pages import collect
from scripts.documentation.reference import reference_pages
from tests.support.documentation import DOCS, FILES, REPOSITORY, code_spans, mainstem_commands, pages

from mainstem.cli.load import LoadGroup
from mainstem.cli.main import app

RUNBOOK = DOCS / "runbook"
ARCHITECTURE = [REPOSITORY / "ARCHITECTURE.md"]
RUNBOOK_SECTIONS = ["## Meaning", "## Diagnosis", "## Action"]


def page_id(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def test_every_alert_has_a_page_in_the_runbook_and_every_page_an_alert() -> None:
    groups = yaml.safe_load((REPOSITORY / "helm/mainstem/alerts.yaml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    assert {page.stem for page in RUNBOOK.glob("*.md")} - {"index"} == alerts
    index = (RUNBOOK / "index.md").read_text()
    for alert in alerts:
        text = (RUNBOOK / f"{alert}.md").read_text()
        assert re.findall(r"^## .*$", text, re.MULTILINE) == RUNBOOK_SECTIONS, alert
        assert f"({alert}.md)" in index


@pytest.mark.parametrize("page", pages(), ids=page_id)
def test_every_mainstem_command_on_a_page_exists_with_its_options(page: Path) -> None:
    root: Any = typer.main.get_command(app)
    for words in mainstem_commands(page):
        command, known_options = root, _option_names(root)
        for word in words:
            if word.startswith("-") and not re.fullmatch(r"-\d+", word):
                option = word.partition("=")[0]
                assert option in known_options, f"{option} is no option: mainstem {' '.join(words)}"
            elif subcommands := getattr(command, "commands", None):
                if word.isupper() or word == "..." or _is_value(words, word):
                    continue
                if isinstance(command, LoadGroup) and word not in subcommands:
                    word = "run"  # noqa: PLW2901  # `mainstem load TOPIC` is short for it
                assert word in subcommands, f"{word} is no command: mainstem {' '.join(words)}"
                command = subcommands[word]
                known_options |= _option_names(command)


def _option_names(command: Any) -> set[str]:
    names = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return {"--help", "-h", *names}


def _is_value(words: list[str], word: str) -> bool:
    """Whether `word` is the value of the option before it: `mainstem --bootstrap-servers ADDRESS ...`."""
    before = words[words.index(word) - 1] if words.index(word) else ""
    return before.startswith("-")


@pytest.mark.parametrize("page", [*ARCHITECTURE, *sorted((DOCS / "internals").glob("*.md"))], ids=page_id)
def test_every_file_that_the_architecture_names_exists(page: Path) -> None:
    files = {f"/{path}" for path in FILES}
    folders = {f"{Path(path).parent.as_posix()}/" for path in files} | {
        f"{parent.as_posix()}/" for path in files for parent in Path(path).parents
    }
    names = {span for span in code_spans(page) if re.fullmatch(r"[\w./-]+(\.py|/)", span)}
    names = {name for name in names if not name.startswith("/")}  # nodes of ZooKeeper, paths over HTTP
    missing = {name for name in names if not any(path.endswith(f"/{name}") for path in files | folders)}
    assert not missing


def test_every_condition_and_event_of_the_operator_has_a_meaning_and_none_is_left_over() -> None:
    messages = operator_messages.read(REPOSITORY / "operator")
    assert set(messages.conditions) == set(operator_messages.CONDITIONS)
    assert set(messages.events) == set(operator_messages.EVENTS)


def test_links_lead_to_pages_or_files() -> None:
    collected = collect(reference_pages())
    assert {"index.md", "tutorial.md", "reference/commands.md", "overview.md"} <= collected.keys()


def test_reference_pages_hold_what_the_code_has() -> None:
    generated = reference_pages()
    for page, words in {
        "commands": ["## mainstem group reset-offsets", "--execute"],
        "broker-settings": ["`replica.lag.time.max.ms`"],
        "topic-settings": ["`retention.ms`"],
        "group-settings": ["`consumer.session.timeout.ms`"],
        "metrics": ["`mainstem_broker_ready`", "`mainstem_operator_progress_stuck`"],
        "custom-resources": ["`rolling.moveBytesPerSecond`", "`deletionPolicy`"],
        "conditions": ["`Stable`"],
        "events": ["`RestartingPod`"],
    }.items():
        for word in words:
            assert word in generated[f"reference/{page}.md"]
