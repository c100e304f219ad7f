"""`mainstem acl`: list, add, remove."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    complete_groups,
    complete_topics,
    connect,
)
from mainstem.cli.output import Column, Output, OutputFormat, table
from mainstem.errors import BadInput
from mainstem.kafka.acls import (
    CLUSTER_NAME,
    EVERY_HOST,
    OPERATIONS,
    Acl,
    AclFilter,
    add_acls,
    list_acls,
    operation_of,
    principal_of,
    remove_acls,
)

app = typer.Typer(no_args_is_help=True, help="Show, add and remove ACLs.")


def complete_operations(incomplete: str) -> list[str]:
    return [operation for operation in OPERATIONS if operation.startswith(incomplete)]


PrincipalArgument = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="A user, such as alice; '*' is every user.")
]
OperationsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="OPERATION...",
        help=f"One or more of {', '.join(OPERATIONS)}.",
        autocompletion=complete_operations,
    ),
]
TopicOption = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="NAME", help="A topic; repeatable.", autocompletion=complete_topics),
]
GroupOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group", metavar="NAME", help="A consumer group; repeatable.", autocompletion=complete_groups
    ),
]
TransactionalIdOption = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="NAME", help="A transactional id; repeatable."),
]
ClusterOption = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
PrefixOption = Annotated[bool, typer.Option("--prefix", help="Treat the names as prefixes.")]
DenyOption = Annotated[bool, typer.Option("--deny", help="Deny instead of allow.")]
HostOption = Annotated[
    str,
    typer.Option(
        "--host", metavar="ADDRESS", help="Only from this address or range (10.0.0.0/8); '*' is every one."
    ),
]


@app.command("list")
def list_all(
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="PRINCIPAL", help="Only ACLs that name this user.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="NAME",
            help="Only ACLs that apply to this topic.",
            autocompletion=complete_topics,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="NAME",
            help="Only ACLs that apply to this group.",
            autocompletion=complete_groups,
        ),
    ] = None,
    cluster_only: Annotated[bool, typer.Option("--cluster", help="Only ACLs of the cluster itself.")] = False,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the ACLs. Deny takes precedence over allow."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    if sum((topic is not None, group is not None, cluster_only)) > 1:
        raise BadInput("Choose one of --topic, --group and --cluster.")
    acl_filter = AclFilter(
        "topic"
        if topic is not None
        else "group"
        if group is not None
        else "cluster"
        if cluster_only
        else None,
        topic if topic is not None else group,
        None if principal is None else principal_of(principal),
    )
    acls = list_acls(cluster, acl_filter)
    if not acls and not out.json:
        # librdkafka answers an empty list, too, where the brokers refuse to describe ACLs.
        out.say(
            f"No {'such ' * (acl_filter != AclFilter())}ACLs are shown: there are none, this user may not see"
            " them, or the brokers have no authorizer (authorizer.class.name)."
        )
        return
    _show(out, acls)


@app.command()
def add(
    principal: PrincipalArgument,
    operations: OperationsArgument,
    topic: TopicOption = None,
    group: GroupOption = None,
    transactional_id: TransactionalIdOption = None,
    on_cluster: ClusterOption = False,
    prefix: PrefixOption = False,
    deny: DenyOption = False,
    host: HostOption = EVERY_HOST,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Allow operations to a user, or deny them. Changes take effect at once."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    acls = _acls(principal, operations, topic, group, transactional_id, on_cluster, prefix, not deny, host)
    add_acls(cluster, acls)
    for acl in acls:
        out.done(f"Added: {acl}.")
    if out.json:
        out.result([_row(acl) for acl in acls])


@app.command()
def remove(
    principal: PrincipalArgument,
    operations: OperationsArgument,
    topic: TopicOption = None,
    group: GroupOption = None,
    transactional_id: TransactionalIdOption = None,
    on_cluster: ClusterOption = False,
    prefix: PrefixOption = False,
    deny: DenyOption = False,
    host: HostOption = EVERY_HOST,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Remove ACLs, named as they were added. Changes take effect at once."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    acls = _acls(principal, operations, topic, group, transactional_id, on_cluster, prefix, not deny, host)
    removed = remove_acls(cluster, acls)
    for acl in removed:
        out.done(f"Removed: {acl}.")
    if out.json:
        out.result([_row(acl) for acl in removed])
    missing = [acl for acl in acls if acl not in removed]
    if missing:
        raise BadInput(
            f"There is no such ACL: {'; '.join(map(str, missing))}. `mainstem acl list` shows those that"
            " exist."
        )


def _acls(
    principal: str,
    operations: list[str],
    topics: list[str] | None,
    groups: list[str] | None,
    transactional_ids: list[str] | None,
    on_cluster: bool,
    is_prefix: bool,
    allows: bool,
    host: str,
) -> list[Acl]:
    """The ACLs that the options describe: each operation on each resource.

    Raises:
        BadInput: they describe none, or an operation does not exist.
    """
    resources = [
        *(("topic", name) for name in topics or ()),
        *(("group", name) for name in groups or ()),
        *(("transactional-id", name) for name in transactional_ids or ()),
    ]
    if is_prefix and (on_cluster or not resources):
        raise BadInput("--prefix needs the name that others begin with, such as --topic orders- --prefix.")
    if on_cluster:
        resources.append(("cluster", CLUSTER_NAME))
    if not resources:
        raise BadInput("Name the resource: --topic, --group, --transactional-id or --cluster.")
    return [
        Acl(resource, name, is_prefix, principal_of(principal), operation_of(operation), allows, host)
        for resource, name in dict.fromkeys(resources)
        for operation in dict.fromkeys(operations)
    ]


def _row(acl: Acl) -> dict[str, Any]:
    return {
        "resource": acl.resource,
        "name": acl.name,
        "pattern": "prefixed" if acl.is_prefix else "literal",
        "permission": "allow" if acl.allows else "deny",
        "principal": acl.principal,
        "operation": acl.operation,
        "host": acl.host,
    }


def _show(out: Output, acls: list[Acl]) -> None:
    rows = [_row(acl) for acl in acls]
    shown = [
        row | {"name": f"{row['name']}..." if row["pattern"] == "prefixed" else row["name"]} for row in rows
    ]
    columns = [
        Column("Resource", "resource"),
        Column("Name", "name"),
        Column("Permission", "permission"),
        Column("Principal", "principal"),
        Column("Operation", "operation"),
        Column("Host", "host"),
    ]
    out.result(rows, table("", columns, shown))
