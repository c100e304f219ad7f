"""`mainstem schema`: list, show, register, check and delete schemas, and set what may change."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mainstem.cli.number_options import integer
from mainstem.cli.options import ClientProperties, Confirmed, OutputChoice
from mainstem.cli.output import Column, Output, OutputFormat, print_line, table
from mainstem.cli.registry_access import REGISTRY_VARIABLE, registry_access
from mainstem.errors import BadInput, CommandError
from mainstem.schema_registry import SchemaDefinition, SchemaRegistry
from mainstem.whole_numbers import is_whole_number

app = typer.Typer(no_args_is_help=True, help="Show, register and check the schemas in a registry.")


class SchemaType(StrEnum):
    """Languages in which schemas are written."""

    AVRO = "avro"
    JSON = "json"
    PROTOBUF = "protobuf"


class Level(StrEnum):
    """Compatibility levels."""

    NONE = "none"
    BACKWARD = "backward"
    BACKWARD_TRANSITIVE = "backward_transitive"
    FORWARD = "forward"
    FORWARD_TRANSITIVE = "forward_transitive"
    FULL = "full"
    FULL_TRANSITIVE = "full_transitive"


class Incompatible(CommandError):
    """The schema is not compatible; nothing was changed."""


def _registry(url: str | None, client_properties: list[str] | None) -> SchemaRegistry:
    return registry_access(url, client_properties).client()


def complete_subjects(context: typer.Context, incomplete: str) -> list[str]:
    try:
        root = context.find_root().params
        properties = context.params.get("client_properties") or root.get("client_properties")
        subjects = _registry(context.params.get("registry"), properties).subjects()
    except CommandError:
        return []
    return [subject for subject in subjects if subject.startswith(incomplete)]


Registry = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL",
        envvar=REGISTRY_VARIABLE,
        help="The registry. Default: that of the client properties, or the local stack's.",
        show_default=False,
    ),
]
Subject = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT", help="A subject, such as clicks-value.", autocompletion=complete_subjects
    ),
]
SchemaFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The schema's text; - reads it from standard input.")
]
TypeOption = Annotated[
    SchemaType | None,
    typer.Option("--type", help="The schema's language; protobuf for FILE.proto, else avro if unset."),
]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="The schema that a name refers to; repeatable.",
    ),
]


@app.command("list")
def list_subjects(
    deleted: Annotated[bool, typer.Option("--deleted", help="Include soft-deleted subjects.")] = False,
    registry: Registry = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List subjects with their newest version."""
    out, schemas = Output(output), _registry(registry, client_properties)
    rows = []
    for subject in schemas.subjects(deleted=deleted):
        numbers = schemas.versions(subject, deleted=deleted)
        newest = schemas.version(subject, numbers[-1], deleted=deleted)
        rows.append(
            {
                "subject": subject,
                "versions": len(numbers),
                "newest": newest["version"],
                "id": newest["id"],
                "type": newest.get("schemaType", "AVRO"),
                "compatibility": schemas.compatibility(subject),
            }
        )
    columns = [
        Column("Subject", "subject", whole=True),
        Column("Versions", "versions"),
        Column("Newest", "newest"),
        Column("Id", "id"),
        Column("Type", "type"),
        Column("Compatibility", "compatibility"),
    ]
    if not rows and not out.json:
        out.say(f"The registry at {schemas.url} has no subjects.")
        return
    out.result(rows, table("", columns, rows))


@app.command()
def show(
    subject: Annotated[
        str | None,
        typer.Argument(metavar="[SUBJECT]", help="Name of the subject.", autocompletion=complete_subjects),
    ] = None,
    version: Annotated[str, typer.Option("--version", "-V", help="Version: a number, or latest.")] = "latest",
    schema_id: Annotated[
        int | None,
        typer.Option("--id", **integer(1, 2**31 - 1), help="Show the schema with this id instead."),
    ] = None,
    registry: Registry = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a schema."""
    if (subject is None) == (schema_id is None):
        raise BadInput("Name either a subject or --id.")
    out, schemas = Output(output), _registry(registry, client_properties)
    shown_schema = (
        schemas.version(subject, version) if subject is not None else schemas.schema(schema_id or 0)
    )
    if out.json:
        out.result(shown_schema)
        return
    if subject is not None:
        out.say(f"{subject} version {shown_schema['version']}, id {shown_schema['id']}", style="dim")
    for reference in shown_schema.get("references", []):
        name = reference["name"]
        out.say(f"{name} is version {reference['version']} of {reference['subject']}", style="dim")
    print_line(_indented(shown_schema["schema"]))


@app.command()
def register(
    subject: Subject,
    file: SchemaFile,
    schema_type: TypeOption = None,
    references: References = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Ignore differences without meaning, such as order.")
    ] = False,
    registry: Registry = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Register a schema as the subject's next version, if it is compatible.

    A schema that the subject has already keeps its version and id.
    """
    out, schemas = Output(output), _registry(registry, client_properties)
    schema = _definition(schema_type, file, references)
    schema_id = schemas.register(subject, schema, normalize=normalize)
    version = schemas.find(subject, schema, normalize=normalize)["version"]
    out.done(f"{subject} version {version} has this schema, with id {schema_id}.")
    if out.json:
        out.result({"subject": subject, "version": version, "id": schema_id})


@app.command()
def check(
    subject: Subject,
    file: SchemaFile,
    version: Annotated[
        str | None,
        typer.Option(
            "--version",
            "-V",
            help="Compare with this version. Default: what a registration is compared with.",
        ),
    ] = None,
    schema_type: TypeOption = None,
    references: References = None,
    registry: Registry = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Check whether a schema may be registered, without registering it. Exits with 1 if not."""
    out, schemas = Output(output), _registry(registry, client_properties)
    problems = schemas.problems(subject, _definition(schema_type, file, references), version)
    if out.json:
        out.result({"compatible": not problems, "problems": problems})
    if problems:
        level = schemas.compatibility(subject)
        raise Incompatible(
            "\n  ".join([f"The schema is not compatible with {subject} ({level}):", *problems])
        )
    out.done(f"The schema is compatible with {subject}.")


@app.command()
def delete(
    subject: Subject,
    version: Annotated[
        str | None, typer.Option("--version", "-V", help="Only this version: a number, or latest.")
    ] = None,
    permanent: Annotated[
        bool,
        typer.Option("--permanent", help="Also remove the ids of what was soft-deleted before."),
    ] = False,
    yes: Confirmed = False,
    registry: Registry = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete a subject or one version of it. Its ids stay, so that records can still be decoded.

    With --permanent, records with these ids can no longer be decoded.
    """
    out, schemas = Output(output), _registry(registry, client_properties)
    what = subject if version is None else f"{subject} version {version}"
    if permanent and not yes:
        if not sys.stdin.isatty():
            raise BadInput(f"Deleting {what} for good needs --yes without a terminal.")
        typer.confirm(f"Delete {what} for good? Its records cannot be decoded then.", abort=True, err=True)
    numbers = schemas.delete(subject, version, permanent=permanent)
    out.done(f"Deleted {subject}, versions {', '.join(map(str, numbers))}{' for good' if permanent else ''}.")
    if out.json:
        out.result({"subject": subject, "versions": numbers, "permanent": permanent})


@app.command()
def compatibility(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[SUBJECT]",
            help="Name of the subject. Default: all subjects.",
            autocompletion=complete_subjects,
        ),
    ] = None,
    level: Annotated[Level | None, typer.Option("--set", metavar="LEVEL", help="The new level.")] = None,
    registry: Registry = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show or set the compatibility level, which limits the changes of a new version.

    backward: a new version reads old data. forward: old versions read new data. full: both. Levels with
    _transitive compare with all versions, not only with the newest.
    """
    out, schemas = Output(output), _registry(registry, client_properties)
    whose = "all subjects without a level of their own" if subject is None else subject
    if level is not None:
        schemas.set_compatibility(level.value.upper(), subject)
        out.done(f"The compatibility level of {whose} is {level.value.upper()}.")
    current = schemas.compatibility(subject)
    if out.json:
        out.result({"subject": subject, "compatibility": current})
    elif level is None:
        print_line(current)


def _definition(schema_type: SchemaType | None, file: Path, references: list[str] | None) -> SchemaDefinition:
    if schema_type is None:
        schema_type = SchemaType.PROTOBUF if file.suffix == ".proto" else SchemaType.AVRO
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInput(f"The schema {file} cannot be read: {reason}.") from error
    return SchemaDefinition(schema_type.value.upper(), text, [_reference(text) for text in references or []])


def _reference(text: str) -> tuple[str, str, int]:
    name, _, place = text.partition("=")
    subject, _, version = place.rpartition(":")
    if not name or not subject or not is_whole_number(version):
        raise BadInput(
            f"--reference takes NAME=SUBJECT:VERSION, such as Address=address-value:1, not {text!r}."
        )
    return name, subject, int(version)


def _indented(text: str) -> str:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return text
    return json.dumps(value, indent=2, ensure_ascii=False)
