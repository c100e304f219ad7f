"""The entry point of the command `mainstem`, also as `python -m mainstem`."""

from __future__ import annotations

import signal
import sys
from types import FrameType

_received = 0
"""The number of the signal that interrupted the command; 0 if none did."""


def main() -> None:
    """Run the command line. A wheel that was installed without extras has no packages for it.

    SIGTERM interrupts as Ctrl-C does, so that a command drops its temporary topics and reports what was sent.
    An interrupted command exits with 128 and the number of the signal, as shells have it.
    """
    # Not if they are ignored, as SIGINT is for what a script runs in the background.
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is default:
            signal.signal(number, _interrupt)
    try:
        try:
            from mainstem.cli.main import main as run
        except ModuleNotFoundError as error:
            sys.exit(f"Error: the package {error.name} is missing. Type: pip install 'mainstem[all]'")
        run()
    except KeyboardInterrupt:
        sys.exit(128 + (_received or signal.SIGINT))
    except SystemExit as ended:
        # Typer ends with 130 for each KeyboardInterrupt, and with 1 at a prompt.
        if _received and ended.code in (1, 128 + signal.SIGINT):
            sys.exit(128 + _received)
        raise


def _interrupt(number: int, _frame: FrameType | None) -> None:
    global _received
    _received = number
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
