"""`python -m scripts.documentation [OUTPUT]` builds the site, in `build/site`. Warnings are errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.documentation.pages import DOCS, REPOSITORY, collect
from scripts.documentation.reference import reference_pages


def build(output: Path) -> int:
    """Sphinx's exit code; the site is in `output`, whose earlier content is replaced."""
    with tempfile.TemporaryDirectory(prefix="mainstem-docs-") as name:
        source = Path(name)
        for page, text in collect(reference_pages()).items():
            (source / page).parent.mkdir(parents=True, exist_ok=True)
            (source / page).write_text(text)
        for name_of_file in ("conf.py", "style.css"):
            shutil.copy(DOCS / name_of_file, source)
        shutil.copytree(DOCS / "images", source / "images")
        shutil.rmtree(output, ignore_errors=True)
        options = ("--builder", "html", "--fail-on-warning", "--quiet", "--doctree-dir", f"{name}/.doctrees")
        done = subprocess.run([sys.executable, "-m", "sphinx", *options, name, str(output)], check=False)
    return done.returncode


if __name__ == "__main__":
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "build" / "site"
    code = build(site)
    if code == 0:
        print(f"The site is at {site / 'index.html'}")  # noqa: T201  # what `make docs` made
    sys.exit(code)
