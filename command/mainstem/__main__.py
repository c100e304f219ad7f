"""The entry point of the command `mainstem`, also as `python -m mainstem`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. A wheel that was installed without extras has no packages for it."""
    try:
        from mainstem.cli.main import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"Error: the package {error.name} is missing. Type: pip install 'mainstem[all]'")
    run()


if __name__ == "__main__":
    main()
