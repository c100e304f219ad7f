"""The licence of every package that Mainstem installs allows redistribution under Apache-2.0."""

from __future__ import annotations

import re
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from scripts.lock import requirements_of

ALLOWED = re.compile(
    r"apache|\bbsd|\bmit\b|\bisc\b|python[- ]software|\bpsf\b|zlib|unlicense|public domain|cc0|\b0bsd\b"
    r"|mozilla public|\bmpl\b",
    re.IGNORECASE,
)
"""Permissive licences, and the Mozilla Public License, which asks only for changes of its own files."""
FORBIDDEN = re.compile(r"\b(a?gpl|lgpl)|affero|gnu (lesser )?general|proprietary|sspl|busl", re.IGNORECASE)

EXCEPTIONS = {
    "crc32c": "LGPL-2.1-or-later: a separate extension module, which anybody can replace",
}
"""Packages with another licence, and why they may be redistributed beside ours."""


def installed_closure() -> list[str]:
    """Every package that the command, the programs and the demo need, on this system."""
    pending = [(Requirement(text), "") for text in requirements_of(("", "all"))]
    names: set[str] = set()
    while pending:
        requirement, extra = pending.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in ("", *requirement.extras):
            if (key := f"{name}[{wanted}]") not in names:
                names.add(key)
                try:
                    pending += [(Requirement(text), wanted) for text in requires(name) or ()]
                except PackageNotFoundError:
                    pytest.fail(f"{name} is required and not installed")
    return sorted({key.partition("[")[0] for key in names})


def licence_of(package: PackageMetadata) -> str:
    """What the package says of its licence: an SPDX expression, classifiers, or the first line of a text."""
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in package.get_all("Classifier") or ()
        if text.startswith("License :: ")
    ]
    (expression, free_text) = ((package.get_all(key) or [""])[0] for key in ("License-Expression", "License"))
    return expression or ", ".join(classifiers) or free_text.strip().partition("\n")[0]


@pytest.mark.parametrize("name", installed_closure())
def test_a_package_may_be_redistributed(name: str) -> None:
    licence = licence_of(metadata(name))
    if name in EXCEPTIONS:
        return
    choices = re.split(r"\bor\b", licence, flags=re.IGNORECASE)
    assert any(ALLOWED.search(choice) and not FORBIDDEN.search(choice) for choice in choices), (
        f"{name} has the licence {licence!r}: use another package, or find out whether it may be"
        " redistributed under Apache-2.0 and add it to EXCEPTIONS with the reason"
    )


def test_every_exception_is_still_needed() -> None:
    assert EXCEPTIONS.keys() <= set(installed_closure())
