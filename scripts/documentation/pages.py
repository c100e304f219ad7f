"""Collects the pages of the site: those of `docs/`, those at the repository's root, and the generated ones.

A page is named by its path in the site. Links are written as they work in the repository; here they become
links of the site, and a link to a file that is no page (an example, a source file) becomes the file's name.
An `index.md` needs no list of its section's pages beside the links in its text: the order of its links is the
order of the navigation, and their texts are its entries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
DOCS: Final = REPOSITORY / "docs"

ROOT_PAGES: Final[Mapping[str, str]] = {
    "README.md": "overview.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "bench/README.md": "benchmarks.md",
}
"""Pages outside of `docs/`, by their path in the repository: where they are in the site."""

_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)


class BrokenLink(Exception):
    """A link leads to no file of the repository and to no generated page."""


def collect(generated: Mapping[str, str]) -> dict[str, str]:
    """All pages of the site, by path, with their text.

    Args:
        generated: pages made from the code, by their path in the site.

    Raises:
        BrokenLink: a relative link leads nowhere.
    """
    written = [path.relative_to(REPOSITORY).as_posix() for path in sorted(DOCS.rglob("*.md"))]
    sources = {path: path.removeprefix("docs/") for path in written} | dict(ROOT_PAGES)
    targets = sources | {f"docs/{page}": page for page in generated}
    pages = dict(generated)
    for source, page in sources.items():
        text = (REPOSITORY / source).read_text()
        pages[page] = _with_site_links(text, source, targets)
    for page in [page for page in pages if PurePosixPath(page).name == "index.md"]:
        pages[page] += _navigation(page, pages[page])
    return pages


def _with_site_links(text: str, source: str, targets: Mapping[str, str]) -> str:
    """`text`, whose links are relative to `source` in the repository, as a page of the site."""

    def replaced(match: re.Match[str]) -> str:
        image, label, link = match.groups()
        address, hash_sign, anchor = link.partition("#")
        if "://" in link or not address:
            return match.group()
        target = os.path.normpath(PurePosixPath(source).parent / address)
        folder = PurePosixPath(targets[source]).parent
        if target in targets:
            return f"{image}[{label}]({os.path.relpath(targets[target], folder)}{hash_sign}{anchor})"
        if not (REPOSITORY / target).exists():
            raise BrokenLink(f"{source} links to {link}, which is no file and no page")
        if image:
            # Images are in docs/, whose folders the site keeps.
            return f"![{label}]({os.path.relpath(os.path.relpath(target, 'docs'), folder)})"
        return label if label.startswith("`") else f"{label} (`{target}`)"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in parts)


def _navigation(page: str, text: str) -> str:
    """The table of contents of an index: the pages of its own section that it links to, in that order."""
    folder = PurePosixPath(page).parent
    children: dict[str, None] = {}
    for _, label, link in _LINK.findall(_FENCE.sub("", text)):
        address = link.partition("#")[0]
        if not address.endswith(".md") or "://" in link:
            continue
        child = PurePosixPath(os.path.normpath(folder / address))
        section = child.parent.parent if child.name == "index.md" else child.parent
        if section == folder and str(child) != page:
            children.setdefault(f"{label} <{os.path.relpath(child, folder).removesuffix('.md')}>")
    return "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(children) + "\n```\n"
