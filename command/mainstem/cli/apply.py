"""`mainstem apply`: Topics, Users and ConsumerGroups from the manifests of Kubernetes, on any cluster."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mainstem.cli.options import BootstrapServers, ClientProperties, OutputChoice, connect
from mainstem.cli.output import Column, Output, OutputFormat, table
from mainstem.errors import BadInput, ClusterRefused, ClusterUnreachable
from mainstem.kafka.client import Cluster, answering_servers

if TYPE_CHECKING:
    from mainstem_operator.standalone import Applied

DEFAULT_STATE: Final = Path("data/manifests.json")
_COLUMNS: Final = [
    Column("Kind", "kind"),
    Column("Name", "name"),
    Column("Ready", "ready"),
    Column("Reason", "reason"),
    Column("Message", "message"),
]
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


def apply(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Manifests; - is standard input.")],
    state: Annotated[
        Path,
        typer.Option(
            "--state",
            metavar="FILE",
            help="File that records what was done once, such as a reset.",
        ),
    ] = DEFAULT_STATE,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create and change topics, users and groups as in manifests.

    Accepts the Topics, Users and ConsumerGroups of the operator on Kubernetes, and the Secrets with the
    passwords of Users. Apply them again after every change; objects without a difference are not changed. A
    password in a Secret is set each time.
    """
    out = Output(output)
    manifests = [manifest for file in files for manifest in _read(file)]
    with out.waiting("Applying"):
        applied = _apply(connect(bootstrap_servers, client_properties), manifests, state)
    rows = [_row(one) for one in applied]
    out.result(rows, table("", _COLUMNS, rows))
    for one in applied:
        for change in one.changes:
            out.done(f"{one.kind} {one.name}: {change}")
    if any(one.ready["status"] != "True" for one in applied):  # Unknown: the brokers refused to describe it
        raise typer.Exit(1)


def _apply(cluster: Cluster, manifests: list[Any], state: Path) -> list[Applied]:
    from mainstem_operator.api.fields import InvalidSpec
    from mainstem_operator.brokers.admin import Brokers
    from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
    from mainstem_operator.standalone import Statuses, apply_manifests

    # Fails at once if there is no cluster.
    servers = ",".join(answering_servers(cluster.bootstrap_servers, cluster.properties))
    brokers = Brokers(servers)
    brokers.connect_to(servers, cluster.properties)
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        return asyncio.run(apply_manifests(brokers, manifests, Statuses(state)))
    except InvalidSpec as error:
        raise BadInput(str(error)) from error
    except BrokersUnreachable as error:
        raise ClusterUnreachable(
            f"No broker of {cluster.bootstrap_servers} answered: see whether they are up, and check the"
            " client properties of encryption and login."
        ) from error
    except BrokersRefused as error:
        raise ClusterRefused(str(error)) from error
    except (OSError, ValueError) as error:
        raise BadInput(f"{state} cannot be used ({error}): name another --state.") from error


def _read(file: str) -> Iterable[Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Leaves times as the texts they are in JSON, as Kubernetes does."""

        yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML reads it from the class
            first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except OSError as error:
        raise BadInput(f"{file} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} cannot be read (it is not text).") from error
    try:
        manifests = [manifest for manifest in yaml.load_all(text, Loader) if manifest is not None]
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise BadInput(f"{file} is not YAML: {problem or 'it cannot be read'}{where}.") from error
    for manifest in manifests:
        if not isinstance(manifest, dict) or "kind" not in manifest:
            raise BadInput(
                f"{file} holds a document that is not a manifest: a manifest has apiVersion, kind, metadata"
                " and spec."
            )
    return manifests


def _row(applied: Applied) -> dict[str, Any]:
    ready = applied.ready
    return {
        "kind": applied.kind,
        "name": applied.name,
        "ready": ready["status"],
        "reason": ready.get("reason", ""),
        "message": ready.get("message", ""),
        "changes": list(applied.changes),
    }
