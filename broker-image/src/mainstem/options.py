"""Options that many commands share, and what the shell completes for them.

`--bootstrap-servers` and `--output` may stand before or after the command's name, as people type them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final

import typer

from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS, Cluster
from mainstem.errors import BadInput, CommandError
from mainstem.output import OutputFormat

BOOTSTRAP_VARIABLE: Final = "MAINSTEM_BOOTSTRAP_SERVERS"


def _or_the_global_one(context: typer.Context, parameter: typer.CallbackParam, value: object) -> object:
    name = parameter.name or ""
    source = context.get_parameter_source(name)
    if source is None or source.name != "DEFAULT":
        return value
    return context.find_root().params.get(name, value)


def cluster_of(context: typer.Context) -> Cluster:
    """The cluster that a command line means that is being completed."""
    given = context.params.get("bootstrap_servers") or context.find_root().params.get("bootstrap_servers")
    return Cluster(given or DEFAULT_BOOTSTRAP_SERVERS)


def _completed(
    context: typer.Context, incomplete: str, names: Callable[[Cluster], Iterable[str]]
) -> list[str]:
    """Names that begin with `incomplete`; none when the cluster does not answer at once."""
    try:
        found = names(cluster_of(context))
    except CommandError:
        return []
    return [name for name in found if name.startswith(incomplete)]


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    return _completed(context, incomplete, Cluster.topics)


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    from mainstem.groups import list_groups

    return _completed(context, incomplete, lambda cluster: list_groups(cluster)[0])


def complete_brokers(context: typer.Context, incomplete: str) -> list[str]:
    return _completed(
        context,
        incomplete,
        lambda cluster: [str(broker.broker_id) for broker in cluster.description().brokers],
    )


BootstrapServers = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,...",
        help=f"Brokers to begin with. [env: {BOOTSTRAP_VARIABLE}]",
        callback=_or_the_global_one,
        show_default=False,
    ),
]
OutputChoice = Annotated[
    OutputFormat,
    typer.Option(
        "--output",
        "-o",
        help="Tables for people, JSON for programs.",
        callback=_or_the_global_one,
        show_default=False,
    ),
]
TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topics)
]


def settings_of(pairs: list[str] | None, option: str = "--config") -> dict[str, str]:
    """The settings in `name=value` texts, later ones winning.

    Raises:
        BadInput: one of them has no `=` or no name.
    """
    settings: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise BadInput(f"{option} takes NAME=VALUE, not {pair!r}.")
        settings[name.strip()] = value.strip()
    return settings
