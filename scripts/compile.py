"""Compiles the broker's modules on the path of every batch: `python -m scripts.compile`.

By mypyc, which is a part of mypy, to C and by this machine's C compiler to extension modules, which
`mainstem_broker/compiled.py` loads. Takes a minute; nothing when they are there already, in this checkout or
in the user's cache, where other checkouts put them. Without a compiler the broker runs as plain Python, and
this says so and what to install.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from mainstem_broker.compiled import COMPILED, MODULES, PACKAGE, STAMP, are_made, stamp_of_sources
from scripts.user_cache import USER_CACHE, copy_folder

REPOSITORY: Final = Path(__file__).resolve().parents[1]
_LOCK: Final = REPOSITORY / "build" / "compile.lock"
_CACHE: Final = USER_CACHE / "compiled"
_CACHED_MAX: Final = 8
"""Each takes 4 MB."""
_SETUP: Final = """
from setuptools import setup
from mypyc.build import mypycify
modules = mypycify({arguments!r}, opt_level="2", debug_level="0", target_dir="c")
setup(name="compiled", ext_modules=modules)
"""


def main() -> int:
    """Compile what is not compiled yet; the answer is the exit code."""
    _LOCK.parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return 0 if are_made() else _compile()


def _compile() -> int:
    missing = _missing()
    if missing:
        _say(f"there is no {missing}, so brokers run as plain Python and take a fifth more CPU")
        _say("install what compiles (Debian: apt-get install gcc python3-dev) and run this again")
        return 0
    stamp = stamp_of_sources()
    cached = _CACHE / _cache_name(stamp)
    if cached.is_dir():
        cached.touch()
        _put(cached, stamp)
        return 0
    _say("compiling the broker's modules on the path of every batch (a minute)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        error = _build(folder)
        if error is None and stamp_of_sources() != stamp:
            error = "The sources have changed meanwhile: run this again."
        if error is not None:
            _say(f"not compiled, so brokers run as plain Python: {error}")
            return 1
        _put(folder / "lib", stamp)
        _keep(folder / "lib", cached)
    return 0


def _cache_name(stamp: str) -> str:
    """Of all that the extension modules follow from: the sources, this Python, mypyc and the C compiler."""
    compiler = subprocess.run([_compiler(), "--version"], capture_output=True, text=True, check=False).stdout
    parts = [stamp, importlib.metadata.version("mypy"), compiler, *MODULES, _SETUP]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _put(modules: Path, stamp: str) -> None:
    shutil.rmtree(COMPILED, ignore_errors=True)
    shutil.copytree(modules, COMPILED)
    STAMP.write_text(stamp)  # last: what has no stamp is not used


def _keep(modules: Path, cached: Path) -> None:
    """Keep them for other checkouts; a cache that cannot be written is none."""
    try:
        copy_folder(modules, cached)
        by_use = sorted(_CACHE.glob("[!.]*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
        for old in by_use[_CACHED_MAX:]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        _say(f"not kept for other checkouts: {error}")


def _missing() -> str | None:
    if shutil.which(_compiler()) is None:
        return f"C compiler ({_compiler()})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h"
    return None


def _compiler() -> str:
    return str(sysconfig.get_config_var("CC") or "cc").split()[0]


def _build(folder: Path) -> str | None:
    """Put the extension modules into `folder`/lib; what was printed if that failed."""
    options = [f"--config-file={REPOSITORY / 'pyproject.toml'}", f"--cache-dir={folder / 'types'}"]
    arguments = [*options, *(str(PACKAGE / name) for name in MODULES)]
    setup = folder / "setup.py"
    setup.write_text(_SETUP.format(arguments=arguments))
    built = subprocess.run(
        [sys.executable, setup, "--quiet", "build_ext", "--build-lib", "lib", "--build-temp", "temp"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return f"\n{built.stdout[-4000:]}" if built.returncode else None


def _say(line: str) -> None:
    sys.stdout.write(f"compile: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
