"""The entry point of the command `mainstem`, also as `python -m mainstem`."""

from __future__ import annotations

import signal
import sys
from types import FrameType

_received = signal.SIGINT


def main() -> None:
    """Run the command line. A wheel that was installed without extras has no packages for it.

    SIGTERM interrupts as Ctrl-C does, so that a command drops its temporary topics and reports what was sent.
    An interrupted command exits with 128 and the number of the signal, as shells have it.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        try:
            from mainstem.cli.main import main as run
        except ModuleNotFoundError as error:
            sys.exit(f"Error: the package {error.name} is missing. Type: pip install 'mainstem[all]'")
        run()
    except KeyboardInterrupt:
        sys.exit(128 + _received)
    except SystemExit as ended:
        if ended.code == 128 + signal.SIGINT:  # as Typer ends for each KeyboardInterrupt
            sys.exit(128 + _received)
        raise


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    global _received
    _received = signal.SIGTERM
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
