"""`mainstem apply`: Topics and ConsumerGroups from the manifests that Kubernetes takes, on any cluster."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS
from mainstem.errors import BadInput, ClusterRefused, ClusterUnreachable
from mainstem.options import BootstrapServers, OutputChoice
from mainstem.output import Column, Output, OutputFormat, table

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
            help="Remembers what was done once, such as a reset, as a cluster's statuses would.",
        ),
    ] = DEFAULT_STATE,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Make topics and groups as manifests say.

    Takes the Topics and ConsumerGroups that the operator takes on Kubernetes. Apply them again after every
    change; what is as it should be is left alone.
    """
    out = Output(output)
    manifests = [manifest for file in files for manifest in _read(file)]
    with out.waiting("Applying"):
        applied = _apply(bootstrap_servers, manifests, state)
    rows = [_row(one) for one in applied]
    out.result(rows, table("", _COLUMNS, rows))
    if any(one.ready["status"] == "False" for one in applied):
        raise typer.Exit(1)


def _apply(bootstrap_servers: str, manifests: list[Any], state: Path) -> list[Applied]:
    from mainstem_operator.admin import Brokers, BrokersRefused, BrokersUnreachable
    from mainstem_operator.fields import InvalidSpec
    from mainstem_operator.standalone import Statuses, apply_manifests

    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        return asyncio.run(apply_manifests(Brokers(bootstrap_servers), manifests, Statuses(state)))
    except InvalidSpec as error:
        raise BadInput(str(error)) from error
    except BrokersUnreachable as error:
        raise ClusterUnreachable(
            f"No broker of {bootstrap_servers} answered: see whether they are up."
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
    try:
        found = [manifest for manifest in yaml.load_all(text, Loader) if manifest is not None]
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise BadInput(f"{file} is no YAML: {problem or 'it cannot be read'}{where}.") from error
    for manifest in found:
        if not isinstance(manifest, dict) or "kind" not in manifest:
            raise BadInput(
                f"{file} holds something that is no manifest: each has apiVersion, kind, metadata and spec."
            )
    return found


def _row(applied: Applied) -> dict[str, Any]:
    ready = applied.ready
    return {
        "kind": applied.kind,
        "name": applied.name,
        "ready": ready["status"],
        "reason": ready.get("reason", ""),
        "message": ready.get("message", ""),
    }
