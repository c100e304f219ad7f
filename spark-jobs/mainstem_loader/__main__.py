"""`python -m mainstem_loader`: one load, one rewrite of what was loaded, or one upkeep of its table, from a
command line: as a Spark driver in a pod or on a laptop.

Prints the report as one line of JSON. Exit codes:

    0    everything was loaded, or there was nothing to load
    1    the load failed; one sentence on the error output says why and what to do
    3    the load committed what it read, but rejected more records than allowed; a rewrite commits nothing
         then
    130  the load was interrupted, by Ctrl-C or SIGTERM; steps that were committed stay
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from mainstem_loader.arguments import Rewrite, chosen_offsets_of, load_parser, settings_of
from mainstem_loader.errors import LoaderError, SettingsError
from mainstem_loader.load_topic import load_topic
from mainstem_loader.maintain_table import maintain
from mainstem_loader.rewrite_rows import (
    RewriteTooManyRejectedError,
    backfill,
    replay_dead_letters,
    rewind,
)

TERMINATION_MESSAGE_CHARACTERS_MAX: Final = 4000

EXIT_FAILED: Final = 1
EXIT_REJECTED_TOO_MANY: Final = 3
EXIT_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Load, and return the exit code."""
    options = load_parser().parse_args(arguments)
    # The first process of a container ignores SIGTERM unless it handles it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.maintain:
            return _maintain(options)
        if options.rewrite is not None:
            return _rewrite(options)
        report = load_topic(settings_of(options))
    except RewriteTooManyRejectedError as error:
        _note(options.summary_file, {"error": str(error)})
        sys.stderr.write(f"{error}\n")
        return EXIT_REJECTED_TOO_MANY
    except LoaderError as error:
        _note(options.summary_file, {"error": str(error)})
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        sentence = "The load was interrupted. What was committed before stays; load again to continue."
        _note(options.summary_file, {"error": sentence})
        sys.stderr.write(f"{sentence}\n")
        return EXIT_INTERRUPTED
    _note(options.summary_file, report.summary())
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    for warning in report.warnings:
        sys.stderr.write(f"{warning}\n")
    if report.rejected_too_many:
        sys.stderr.write(f"{report.rejection()}\n")
        return EXIT_REJECTED_TOO_MANY
    return 0


def _rewrite(options: argparse.Namespace) -> int:
    """Load again what was loaded before, and return the exit code."""
    settings, chosen, request_id = settings_of(options), chosen_offsets_of(options), options.request_id
    match options.rewrite:
        case Rewrite.REWIND:
            report = rewind(settings, chosen, request_id=request_id)
        case Rewrite.REPLAY:
            report = replay_dead_letters(settings, chosen, request_id=request_id)
        case kind:
            report = backfill(settings, chosen, kind == Rewrite.REPLACE, request_id=request_id)
    _note(options.summary_file, report.summary())
    sys.stdout.write(json.dumps(asdict(report), default=str) + "\n")
    for warning in report.warnings:
        sys.stderr.write(f"{warning}\n")
    return 0


def _maintain(options: argparse.Namespace) -> int:
    """Maintain the table, and return the exit code."""
    if options.rewrite is not None:
        raise SettingsError("--maintain loads nothing, so it does not go with --rewrite; run one of them.")
    report = maintain(settings_of(options), options.sweep_orphans_after_hours)
    _note(options.summary_file, report.summary())
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    for warning in report.warnings:
        sys.stderr.write(f"{warning}\n")
    return 0


def _note(file: Path | None, summary: dict[str, object]) -> None:
    """Of a pod, Kubernetes keeps what is in /dev/termination-log, up to 4096 bytes, in its status."""
    if file is not None:
        file.write_text(json.dumps(summary)[:TERMINATION_MESSAGE_CHARACTERS_MAX])


if __name__ == "__main__":
    sys.exit(main())
