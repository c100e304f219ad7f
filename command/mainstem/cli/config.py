"""`mainstem config`: get, set, unset, for topics, brokers, groups, and the quotas of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from mainstem.cli.number_options import integer
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    complete_brokers,
    complete_groups,
    complete_topics,
    completion_cluster,
    connect,
    settings_of,
)
from mainstem.cli.output import Column, Output, OutputFormat, table
from mainstem.errors import BadInput, CommandError
from mainstem.kafka.client import Cluster
from mainstem.kafka.quotas import QUOTAS, Client, change_quotas, quota_value, read_quotas
from mainstem.kafka.setting_requests import Kind
from mainstem.kafka.settings import (
    Resource,
    Setting,
    change_settings,
    check_names,
    find_broker,
    in_milliseconds,
    read_settings,
)

app = typer.Typer(
    no_args_is_help=True,
    help="Show and change settings of topics, brokers and groups, and quotas of clients.",
)

_WHOSE: Final = "--topic, --broker, --all-brokers, --group, --user or --client-id"
_SECRET: Final = "(secret)"


def complete_settings(context: typer.Context, incomplete: str) -> list[str]:
    """Names of settings of what the options before name."""
    given = context.params
    if given.get("user") is not None or given.get("client_id") is not None:
        return [name for name in QUOTAS if name.startswith(incomplete)]
    try:
        cluster = completion_cluster(context)
        owner = _owner(
            given.get("topic"),
            given.get("broker"),
            bool(given.get("all_brokers")),
            given.get("group"),
            None,
            None,
        )
        assert isinstance(owner, Resource)
        return [name for name in _known(cluster, owner) if name.startswith(incomplete)]
    except CommandError:
        return []


def complete_assignments(context: typer.Context, incomplete: str) -> list[str]:
    return [f"{name}=" for name in complete_settings(context, incomplete)]


TopicOption = Annotated[
    str | None,
    typer.Option("--topic", metavar="NAME", help="Settings of this topic.", autocompletion=complete_topics),
]
BrokerOption = Annotated[
    int | None,
    typer.Option(
        "--broker",
        **integer(),
        metavar="ID",
        help="Settings of this broker.",
        autocompletion=complete_brokers,
    ),
]
AllBrokersOption = Annotated[
    bool, typer.Option("--all-brokers", help="Settings of every broker that has no value of its own.")
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group", metavar="NAME", help="Settings of this consumer group.", autocompletion=complete_groups
    ),
]
UserOption = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="NAME", help="Quotas of this user; '<default>' is every user without quotas."
    ),
]
ClientOption = Annotated[
    str | None,
    typer.Option(
        "--client-id",
        metavar="NAME",
        help="Quotas of this client id; '<default>' is every client id without quotas.",
    ),
]


@app.command()
def get(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SETTING...]",
            help="Names of settings; by default all that are set.",
            autocompletion=complete_settings,
        ),
    ] = None,
    topic: TopicOption = None,
    broker: BrokerOption = None,
    all_brokers: AllBrokersOption = False,
    group: GroupOption = None,
    user: UserOption = None,
    client_id: ClientOption = None,
    show_all: Annotated[
        bool, typer.Option("--all", "-a", help="Include settings that have their default.")
    ] = False,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show settings: value, and where it comes from."""
    out, owner = Output(output), _owner(topic, broker, all_brokers, group, user, client_id)
    cluster = connect(bootstrap_servers, client_properties)
    if isinstance(owner, Client):
        check_names(names or [], QUOTAS, "clients")
        quotas = read_quotas(cluster, owner)
        rows = [
            {"setting": name, "value": value, "source": str(owner), "read_only": False}
            for name, value in quotas.items()
            if not names or name in names
        ]
    else:
        _see_that_it_is_there(cluster, owner)
        settings = read_settings(cluster, owner)
        if names:
            check_names(names, _known(cluster, owner), str(owner))
        rows = [
            _row(setting)
            for setting in settings.values()
            if (setting.name in names if names else show_all or not setting.is_default)
        ]
    if not rows and not out.json:
        out.say(_nothing_set(owner, names))
        return
    columns = [
        Column("Setting", "setting", whole=True),
        Column("Value", "value", separators=False),
        Column("From", "source", whole=True),
    ]
    if any(row["read_only"] for row in rows):
        columns.append(Column("Read-only", "read_only"))
    out.result(rows, table("", columns, rows))


def _nothing_set(owner: Resource | Client, names: list[str] | None) -> str:
    if names:
        return f"{', '.join(names)}: not set for {owner}."
    if isinstance(owner, Client) or owner == Resource(Kind.BROKER, ""):
        return f"Nothing is set for {owner}."
    return f"All settings of {owner} have their defaults: --all shows them."


def _row(setting: Setting) -> dict[str, object]:
    return {
        "setting": setting.name,
        "value": _SECRET if setting.sensitive else setting.value,
        "source": setting.source,
        "read_only": setting.read_only,
    }


@app.command("set")
def set_values(
    assignments: Annotated[
        list[str],
        typer.Argument(
            metavar="SETTING=VALUE...", help="Settings and their values.", autocompletion=complete_assignments
        ),
    ],
    topic: TopicOption = None,
    broker: BrokerOption = None,
    all_brokers: AllBrokersOption = False,
    group: GroupOption = None,
    user: UserOption = None,
    client_id: ClientOption = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Set values; they apply at once, without a restart. Settings in ms take durations such as 7d."""
    owner = _owner(topic, broker, all_brokers, group, user, client_id)
    _change(
        connect(bootstrap_servers, client_properties),
        Output(output),
        owner,
        settings_of(assignments, "config set"),
    )


@app.command()
def unset(
    names: Annotated[
        list[str],
        typer.Argument(metavar="SETTING...", help="Settings to remove.", autocompletion=complete_settings),
    ],
    topic: TopicOption = None,
    broker: BrokerOption = None,
    all_brokers: AllBrokersOption = False,
    group: GroupOption = None,
    user: UserOption = None,
    client_id: ClientOption = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Remove values, so that the brokers' values or the defaults apply."""
    owner = _owner(topic, broker, all_brokers, group, user, client_id)
    _change(connect(bootstrap_servers, client_properties), Output(output), owner, dict.fromkeys(names))


def _change(
    cluster: Cluster, out: Output, owner: Resource | Client, changes: Mapping[str, str | None]
) -> None:
    if isinstance(owner, Client):
        check_names(changes, QUOTAS, "clients")
        values = {name: None if text is None else quota_value(name, text) for name, text in changes.items()}
        before: Mapping[str, object] = read_quotas(cluster, owner)
        change_quotas(cluster, owner, values)
    else:
        _see_that_it_is_there(cluster, owner)
        documented = _known(cluster, owner)
        check_names(changes, documented, str(owner))
        for name in changes:
            if documented[name].read_only:
                raise BadInput(
                    f"{name} cannot be changed while brokers run: set it in each broker's file, and restart "
                    "them."
                )
        settings = read_settings(cluster, owner)
        before = {name: _SECRET if one.sensitive else one.value for name, one in settings.items()}
        changes = {name: in_milliseconds(name, text) for name, text in changes.items()}
        change_settings(cluster, owner, changes)
    for name, text in changes.items():
        was = before.get(name)
        if text is None:
            out.done(f"Removed {name} of {owner} (was {'not set' if was is None else was}).")
        else:
            out.done(f"Set {name}={text} for {owner} (was {'not set' if was is None else was}).")
    if out.json:
        rows = [
            {"setting": name, "before": before.get(name), "after": text} for name, text in changes.items()
        ]
        out.result(rows)


def _known(cluster: Cluster, owner: Resource) -> dict[str, Setting]:
    """Every setting that `owner` may have."""
    if owner == Resource(Kind.BROKER, ""):  # which lists only what is set
        first = cluster.description().brokers[0].broker_id
        return read_settings(cluster, Resource(Kind.BROKER, str(first)))
    return read_settings(cluster, owner)


def _see_that_it_is_there(cluster: Cluster, owner: Resource) -> None:
    """Raise, with similar names, when there is no such topic or broker. A group may come later."""
    if owner.kind is Kind.TOPIC:
        cluster.topic(owner.name)
    elif owner.kind is Kind.BROKER and owner.name:
        find_broker(cluster, int(owner.name))


def _owner(
    topic: str | None,
    broker: int | None,
    all_brokers: bool,
    group: str | None,
    user: str | None,
    client_id: str | None,
) -> Resource | Client:
    """Whose settings are meant.

    Raises:
        BadInput: no owner, or several at once.
    """
    owners: list[Resource | Client] = []
    if topic is not None:
        owners.append(Resource(Kind.TOPIC, topic))
    if broker is not None:
        owners.append(Resource(Kind.BROKER, str(broker)))
    if all_brokers:
        owners.append(Resource(Kind.BROKER, ""))
    if group is not None:
        owners.append(Resource(Kind.GROUP, group))
    if user is not None or client_id is not None:
        owners.append(Client(user, client_id))
    if len(owners) != 1:
        raise BadInput(
            f"Name the owner of the settings, in one way: {_WHOSE} (a user and a client id may be combined)."
        )
    return owners[0]
