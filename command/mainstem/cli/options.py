"""Options that several commands share, their completion, and the cluster that they select.

`--bootstrap-servers`, `--client-property` and `--output` may stand before or after the command's name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final

import typer

from mainstem.cli.client_properties import (
    FILE_VARIABLE,
    bootstrap_servers_in,
    kafka_properties,
    properties_of_environment,
    properties_of_options,
)
from mainstem.cli.output import OutputFormat
from mainstem.cli.profiles import Profile, read_profiles
from mainstem.errors import BadInput, CommandError
from mainstem.kafka.client import DEFAULT_BOOTSTRAP_SERVERS, Cluster
from mainstem.local.stack_folder import DEFAULT_DATA_DIRECTORY, StackFolder
from mainstem.records.text import is_utf8

BOOTSTRAP_VARIABLE: Final = "MAINSTEM_BOOTSTRAP_SERVERS"


def _or_global(context: typer.Context, parameter: typer.CallbackParam, value: object) -> object:
    """The option's value after the command's name, or else its value before it."""
    name = parameter.name or ""
    source = context.get_parameter_source(name)
    if source is None or source.name != "DEFAULT":
        return value
    return context.find_root().params.get(name, value)


def default_bootstrap_servers() -> str:
    """The addresses to use when no option, no variable of the environment and no client property names any.

    They are those of the profile in use, or else those of the local stack.
    """
    profile = read_profiles().current
    return _local_bootstrap_servers() if profile is None else profile.bootstrap_servers


def _local_bootstrap_servers() -> str:
    """All brokers of the local stack that runs in the default folder, or else the default address.

    With the addresses of all brokers, commands work while one of them is down.
    """
    state = StackFolder(DEFAULT_DATA_DIRECTORY).running_state()
    try:
        ports = [int(broker["port"]) for broker in (state or {}).get("brokers", [])]
    except (KeyError, TypeError, ValueError):
        ports = []
    return ",".join(f"127.0.0.1:{port}" for port in ports) or DEFAULT_BOOTSTRAP_SERVERS


def connect(bootstrap_servers: str | None, client_properties: Sequence[str] | None) -> Cluster:
    """The cluster that the options select; nothing connects yet.

    Without `bootstrap_servers` it is the one that client properties name, or else the default one. The
    properties of the profile in use apply to its cluster only. Those of the environment's file override them,
    and `client_properties` override both.

    Raises:
        BadInput: a property is not of the form NAME=VALUE, or a file of properties cannot be read.
    """
    properties = {**properties_of_environment(), **properties_of_options(client_properties)}
    if bootstrap_servers is None:
        bootstrap_servers = bootstrap_servers_in(properties)
    if bootstrap_servers is None:
        bootstrap_servers = default_bootstrap_servers()
    profile: Profile | None = read_profiles().current
    if profile is not None and profile.bootstrap_servers == bootstrap_servers:
        properties = {**profile.properties, **properties}
    return Cluster(bootstrap_servers, kafka_properties(properties))


def completion_cluster(context: typer.Context) -> Cluster:
    """The cluster that an incomplete command line selects."""
    root = context.find_root().params
    servers = context.params.get("bootstrap_servers") or root.get("bootstrap_servers")
    properties = context.params.get("client_properties") or root.get("client_properties")
    return connect(servers, properties)


def _completed(
    context: typer.Context, incomplete: str, names: Callable[[Cluster], Iterable[str]]
) -> list[str]:
    """Names that begin with `incomplete`; none when the cluster does not answer at once."""
    try:
        return [name for name in names(completion_cluster(context)) if name.startswith(incomplete)]
    except CommandError:
        return []


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    return _completed(context, incomplete, Cluster.topics)


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    from mainstem.kafka.groups import list_groups

    return _completed(context, incomplete, lambda cluster: list_groups(cluster)[0])


def complete_brokers(context: typer.Context, incomplete: str) -> list[str]:
    return _completed(
        context,
        incomplete,
        lambda cluster: [str(broker.broker_id) for broker in cluster.description().brokers],
    )


BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,...",
        help=f"Brokers to connect to first. [env: {BOOTSTRAP_VARIABLE}]",
        callback=_or_global,
        show_default=False,
    ),
]
ClientProperties = Annotated[
    list[str] | None,
    typer.Option(
        "--client-property",
        "-X",
        metavar="NAME=VALUE|@FILE",
        help="A setting of the Kafka client (librdkafka), such as security.protocol=ssl, or @ and a file of"
        f" such lines; repeatable. Options for the same setting override it. [env: {FILE_VARIABLE}, a file]",
        callback=_or_global,
        show_default=False,
    ),
]
OutputChoice = Annotated[
    OutputFormat,
    typer.Option(
        "--output",
        "-o",
        help="Tables for people, JSON for programs.",
        callback=_or_global,
        show_default=False,
    ),
]
Confirmed = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
TableName = Annotated[
    str | None, typer.Option("--table", "-t", help="Name of the table. Default: the topic's name.")
]
GroupNames = Annotated[
    list[str], typer.Argument(metavar="GROUP...", help="Groups.", autocompletion=complete_groups)
]
TopicNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC...]", help="Topics; all by default.", autocompletion=complete_topics),
]
TopicSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A setting; repeatable. Settings in ms take durations such as 7d.",
    ),
]
TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topics)
]


def settings_of(pairs: Sequence[str] | None, option: str = "--config") -> dict[str, str]:
    """The settings in `name=value` texts; the last value of a name counts.

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


def headers_of(pairs: Sequence[str] | None) -> list[tuple[str, bytes]]:
    """The headers in `name=value` texts, all of them and as they are: names may repeat, and blanks count.

    Raises:
        BadInput: one of them has no `=` or no name, or its name is not UTF-8.
    """
    headers: list[tuple[str, bytes]] = []
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadInput(f"--header takes NAME=VALUE, not {pair!r}.")
        if not is_utf8(name):  # the Kafka client would crash
            raise BadInput(f"The name in --header {pair!r} is not UTF-8 text.")
        headers.append((name, os.fsencode(value)))
    return headers
