"""README and tutorial do what they say: their commands are run as printed (R36). The site is built."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.documentation import DOCS, REPOSITORY, Block, blocks
from tests.support.ports import own_ports
from tests.support.waiting import wait_until

from mainstem.local.child_process import spawn

pytestmark = pytest.mark.processes

BLOCK_SECONDS: Final = 180.0
START_SECONDS: Final = 60.0
NEEDS_A_CLUSTER: Final = ("moving-replicas.md", "resetting-a-group.md", "loading-a-table.md")
_SERVERS: Final = re.compile(r"127\.0\.0\.1:9092(,127\.0\.0\.1:909\d)*")
_UP: Final = re.compile(r"mainstem up\b")
_DOWN: Final = "mainstem down\n"


class Reader:
    """Follows a page: a shell whose environment lasts from block to block, and a terminal beside it.

    What differs from a real reader: the ports are free ones, since 9092 may be taken, and process ids are
    those of this run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._zookeeper_port = own_ports(3), own_ports()
        servers = ",".join(f"127.0.0.1:{self._port + place}" for place in range(3))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAINSTEM_")}
        # `python paper.py` and the like find what `make demo` would have installed.
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / "examples").symlink_to(REPOSITORY / "examples")
        self._environment = {**inherited, "MAINSTEM_BOOTSTRAP_SERVERS": servers, "COLUMNS": "100"}
        self._servers = servers
        self._beside: list[tuple[Block, subprocess.Popen[bytes]]] = []

    def follow(self, block: Block) -> None:
        """Do what the block says."""
        if block.marker.startswith("file "):
            (self._folder / block.marker.removeprefix("file ")).write_text(self._as_run(block.text))
        elif block.language != "sh" or block.marker.startswith("skip, "):
            return
        elif block.marker == "beside the next":
            self._beside.append((block, self._spawn(block.text)))
            self._await_topic_of_verify()
        elif block.marker:
            pytest.fail(f"{block}: unknown marker {block.marker!r}")
        else:
            self._run(block)

    def close(self) -> None:
        """End what a page that was followed to its end has ended itself."""
        for _, process in self._beside:
            process.terminate()
            process.wait(60)
        if self._state() is not None:
            subprocess.run(
                ["bash", "-c", _DOWN], cwd=self._folder, env=self._environment, timeout=60, check=True
            )

    def _run(self, block: Block) -> None:
        saved = self._folder / ".environment"
        script = f"set -euo pipefail\n{self._as_run(block.text)}\nenv --null > {saved}\n"
        ended = subprocess.run(
            ["bash", "-c", script],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BLOCK_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"{block}:\n{block.text}\n{ended.stdout}{ended.stderr}{self._output()}"
        assert "Traceback" not in ended.stdout + ended.stderr, f"{block}: {ended.stderr}"
        lines = saved.read_text().rstrip("\0").split("\0")
        self._environment = dict(line.split("=", 1) for line in lines)
        for earlier, process in self._beside:
            assert process.wait(BLOCK_SECONDS) == 0, f"{earlier}: {self._output()}"
        self._beside.clear()

    def _spawn(self, text: str) -> subprocess.Popen[bytes]:
        output = (self._folder / "terminals.out").open("ab")
        with output:
            return spawn(
                ["bash", "-c", f"exec {self._as_run(text).strip()}"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _await_topic_of_verify(self) -> None:
        """A reader looks up when `verify` has begun."""

        def has_begun() -> bool:
            listed = subprocess.run(
                ["bash", "-c", "mainstem topic list"],
                cwd=self._folder,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=BLOCK_SECONDS,
                check=True,
            )
            return "verify" in listed.stdout

        wait_until(has_begun, "verify has created its topic", seconds=START_SECONDS)

    def _as_run(self, text: str) -> str:
        text = _SERVERS.sub(self._servers, text)
        text = _UP.sub(f"mainstem up --port {self._port} --zookeeper-port {self._zookeeper_port}", text)
        text = text.replace("127.0.0.1:2181", f"127.0.0.1:{self._zookeeper_port}")
        state = self._state()
        if state is not None:
            text = text.replace("kill -9 PID", f"kill -9 {state['brokers'][1]['pid']}")
        return text

    def _state(self) -> dict[str, Any] | None:
        path = self._folder / "data" / "local" / "stack.json"
        if not path.exists():
            return None
        state: dict[str, Any] = json.loads(path.read_text())
        return state

    def _output(self) -> str:
        path = self._folder / "terminals.out"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with ExitStack() as stack:
        following = Reader(tmp_path)
        stack.callback(following.close)
        yield following


def test_the_readme_does_what_it_says(reader: Reader) -> None:
    for block in blocks(REPOSITORY / "README.md"):
        reader.follow(block)


@pytest.mark.timeout(900)  # the same, with a minute of `verify` and `bench`, and three loads
def test_the_tutorial_and_the_guides_that_build_on_it_do_what_they_say(reader: Reader) -> None:
    *steps, last = blocks(DOCS / "tutorial.md")
    assert last.text == _DOWN
    guides = [block for name in NEEDS_A_CLUSTER for block in blocks(DOCS / "how-to" / name)]
    for block in [*steps, *guides, last]:
        reader.follow(block)


def test_every_block_of_commands_is_run_or_says_why_not() -> None:
    run = {"README.md", "docs/tutorial.md", *(f"docs/how-to/{name}" for name in NEEDS_A_CLUSTER)}
    for page in [REPOSITORY / "README.md", *DOCS.rglob("*.md")]:
        for block in blocks(page):
            if block.language == "sh":
                assert block.page in run, f"{block}: mark it `text`, or add its page to the tests"


def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "scripts.documentation", str(site)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert (site / "index.html").exists()
    assert (site / "reference" / "commands.html").exists()
    # Nothing is fetched from other hosts when a page is read.
    pages = list(site.rglob("*.html"))
    for page in pages:
        fetched = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text())
        assert not fetched, (page, fetched)
