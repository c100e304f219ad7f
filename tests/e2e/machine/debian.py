"""Base images made from Debian's packages, for machines that can pull none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.e2e.machine.commands import MachineError, run, say
from tests.e2e.machine.engine import Engine
from tests.e2e.machine.settings import DEBIAN_RELEASE, key_of
from tests.e2e.machine.tools import install_packages

_WITHOUT_DOCUMENTS: Final = [
    f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale", "info")
]
_MERGED_USR_HOOKS: Final = Path("/usr/share/mmdebstrap/hooks/maybe-merged-usr")
"""Has /usr merged from the start: else a package does it that brings the whole of Perl, 50 MB."""
_JAVA_PACKAGE: Final = "openjdk-17-jre-headless"
_JAVA_HOME: Final = "/opt/java/openjdk"  # where the public Java images have it


def debian_image(engine: Engine, name: str, packages: Sequence[str]) -> str:
    """The image `name` of a minimal Debian with `packages`, under a tag that tells what it holds."""
    image = f"{name}:{key_of([DEBIAN_RELEASE, *_WITHOUT_DOCUMENTS, str(_MERGED_USR_HOOKS), *packages])}"
    if not engine.has_image(image):
        say(f"making {name} from Debian's packages")
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "files.tar"
            _bootstrap(archive, packages, *_WITHOUT_DOCUMENTS)
            engine.docker("import", archive, image)
    return image


def java_image(engine: Engine, name: str, base: str) -> str:
    """The image `name`: `base` and a Java runtime in /opt/java/openjdk, as the public Java images have it."""
    image = f"{name}:{key_of([base, _JAVA_PACKAGE])}"
    if engine.has_image(image):
        return image
    say(f"making {name} from Debian's packages")
    with tempfile.TemporaryDirectory() as folder:
        # Debian's runtime has links into /etc: copied with what they lead to, it is whole by itself.
        _bootstrap(
            Path("/dev/null"),
            [_JAVA_PACKAGE],
            f'--customize-hook=mkdir -p "$1{_JAVA_HOME}"',
            f'--customize-hook=chroot "$1" sh -c "cp -rLT /usr/lib/jvm/java-17-openjdk-* {_JAVA_HOME}"',
            f'--customize-hook=rm -r "$1{_JAVA_HOME}/docs" "$1{_JAVA_HOME}/legal" "$1{_JAVA_HOME}/man"',
            f"--customize-hook=tar-out {_JAVA_HOME} {folder}/java.tar",
        )
        dockerfile = Path(folder) / "Dockerfile"
        dockerfile.write_text("ARG BASE\nFROM ${BASE}\nADD java.tar /opt/java/\n")
        engine.docker("build", "--quiet", "--build-arg", f"BASE={base}", "--tag", image, folder)
    return image


def _bootstrap(archive: Path, packages: Sequence[str], *options: str) -> None:
    if os.geteuid() != 0:
        raise MachineError("Base images are made from Debian's packages as root: sudo make e2e")
    install_packages({"mmdebstrap": "mmdebstrap"})
    hooks = [f"--hook-dir={_MERGED_USR_HOOKS}"] if _MERGED_USR_HOOKS.is_dir() else []
    run(
        [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            "--format=tar",
            *hooks,
            *options,
            f"--include={','.join(packages)}",
            DEBIAN_RELEASE,
            archive,
        ]
    )
