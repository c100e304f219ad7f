"""Ports of tests are held: one that is drawn and released may be taken before its server listens."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.documentation import FILES, REPOSITORY

MAY_DRAW: Final = {
    "tests/interop/test_local_ports.py",  # the tests of the function
    "tests/unit/support/test_confinement.py",  # that it is refused
    "tests/unit/support/test_ports.py",
}


def test_no_test_draws_a_port_and_releases_it() -> None:
    drawing = [
        path
        for path in FILES
        if path.startswith("tests/") and path.endswith(".py") and path not in MAY_DRAW
        if "import free_ports" in Path(REPOSITORY / path).read_text()
    ]
    assert not drawing, "Take ports from tests.support.ports, which holds them."
