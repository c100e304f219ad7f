"""The file that says which topics the resident loader loads, and how.

JSON, as the operator writes it into a ConfigMap:

    {"topics": {"clicks": {"freshnessSeconds": 60, "arguments": ["clicks", "--warehouse", "/tables", ...]}}}

Names are those by which the page of states tells topics apart. Arguments are those of
`python -m mainstem_loader`. The file is read again when it changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mainstem_loader.arguments import load_parser, settings_of
from mainstem_loader.errors import LoaderError, SettingsError
from mainstem_loader.settings import LoadSettings

RECORDS_AT_ONCE_MAX: Final = 10_000_000
"""What one load reads at most, so that a backlog holds up no other topic, and a transform gets no more."""
FRESHNESS_SECONDS_MIN: Final = 5


@dataclass(frozen=True, slots=True)
class ResidentTopic:
    """How a topic is loaded. `error`: why it cannot be; `settings` is None then, and only then."""

    freshness_s: int
    settings: LoadSettings | None
    error: str = ""


def topics_of(text: str) -> dict[str, ResidentTopic]:
    """The topics that the file names. What is wrong with one of them is its own error and no other's.

    Raises:
        SettingsError: the file is not of this form.
    """
    try:
        entries: Mapping[str, Mapping[str, Any]] = json.loads(text)["topics"]
        return {
            str(name): _topic(int(entry["freshnessSeconds"]), list(map(str, entry["arguments"])))
            for name, entry in entries.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"The resident loader's file is not of its form ({type(error).__name__}: {error}); see the"
            " documentation of the resident loader."
        ) from error


def _topic(freshness_s: int, arguments: list[str]) -> ResidentTopic:
    try:
        if freshness_s < FRESHNESS_SECONDS_MIN:
            raise SettingsError(
                f"The freshness is {freshness_s} s; it must be at least {FRESHNESS_SECONDS_MIN} s."
            )
        settings = settings_of(load_parser().parse_args(arguments))
        settings.check()
        at_once = min(settings.max_records or RECORDS_AT_ONCE_MAX, RECORDS_AT_ONCE_MAX)
        return ResidentTopic(freshness_s, replace(settings, max_records=at_once))
    except LoaderError as error:
        return ResidentTopic(freshness_s, None, str(error))
    except SystemExit:  # argparse has said why on the error output
        return ResidentTopic(freshness_s, None, f"No load has the arguments {arguments}.")
