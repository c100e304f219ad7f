"""`mainstem user`: list, create, password, delete."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mainstem.cli.number_options import integer
from mainstem.cli.options import BootstrapServers, ClientProperties, Confirmed, OutputChoice, connect
from mainstem.cli.output import Column, Output, OutputFormat, table
from mainstem.errors import BadInput
from mainstem.kafka.users import (
    ITERATIONS,
    MECHANISMS,
    Credential,
    delete_credentials,
    list_credentials,
    set_password,
)

PASSWORD_VARIABLE: Final = "MAINSTEM_USER_PASSWORD"

app = typer.Typer(
    no_args_is_help=True, help="Show, create and delete users that log in by a password (SCRAM)."
)


def complete_mechanisms(incomplete: str) -> list[str]:
    return [mechanism for mechanism in MECHANISMS if mechanism.startswith(incomplete.upper())]


UserName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
MechanismOption = Annotated[
    str,
    typer.Option(
        "--mechanism",
        metavar="NAME",
        help=f"How the user logs in: {' or '.join(MECHANISMS)}.",
        autocompletion=complete_mechanisms,
    ),
]
IterationsOption = Annotated[
    int,
    typer.Option(
        "--iterations",
        **integer(4096, 16_384),
        help="Number of hashes that a login costs, and each guess at the password.",
    ),
]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="Read the password from the first line of a file, or of standard input ('-'). Otherwise it is "
        f"read from {PASSWORD_VARIABLE} or requested on the terminal.",
    ),
]


@app.command("list")
def list_all(
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the users and how they log in."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    credentials = list_credentials(cluster)
    if not credentials and not out.json:
        out.say("There are no users yet: `mainstem user create NAME` creates one.")
        return
    rows = [_row(credential) for credential in credentials]
    columns = [
        Column("User", "user"),
        Column("Mechanism", "mechanism", whole=True),
        Column("Iterations", "iterations"),
    ]
    out.result(rows, table("", columns, rows))


@app.command()
def create(
    name: UserName,
    mechanism: MechanismOption = MECHANISMS[1],
    iterations: IterationsOption = ITERATIONS,
    password_file: PasswordFileOption = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create a user with a password. The user may do nothing until ACLs allow it."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    mechanism = _mechanism(mechanism)
    if any(credential.mechanism == mechanism for credential in list_credentials(cluster, name)):
        raise BadInput(
            f"The user {name} has a password for {mechanism} already: `mainstem user password {name}` changes"
            " it."
        )
    set_password(cluster, name, mechanism, _password(name, password_file), iterations)
    out.done(f"Created user {name} for {mechanism}.")
    if out.json:
        out.result(_row(Credential(name, mechanism, iterations)))


@app.command()
def password(
    name: UserName,
    mechanism: Annotated[
        str | None,
        typer.Option(
            "--mechanism",
            metavar="NAME",
            help="Change the password for this mechanism only; by default for all mechanisms of the user.",
            autocompletion=complete_mechanisms,
        ),
    ] = None,
    iterations: IterationsOption = ITERATIONS,
    password_file: PasswordFileOption = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Change a user's password."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    chosen = [
        credential
        for credential in list_credentials(cluster, name)
        if mechanism is None or credential.mechanism == _mechanism(mechanism)
    ]
    if not chosen:
        raise _unknown(name, mechanism)
    text = _password(name, password_file)
    for credential in chosen:
        set_password(cluster, name, credential.mechanism, text, iterations)
        out.done(f"Changed the password of {name} for {credential.mechanism}.")
    if out.json:
        out.result([_row(Credential(name, one.mechanism, iterations)) for one in chosen])


@app.command()
def delete(
    name: UserName,
    yes: Confirmed = False,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete a user's passwords. ACLs and quotas of the user stay."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    credentials = list_credentials(cluster, name)
    if not credentials:
        raise _unknown(name, None)
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput(f"Deleting the user {name} needs --yes without a terminal.")
        typer.confirm(f"Delete the user {name}, so that it can no longer log in?", abort=True, err=True)
    delete_credentials(cluster, credentials)
    out.done(f"Deleted user {name}.")
    if out.json:
        out.result({"deleted": name})


def _unknown(name: str, mechanism: str | None) -> BadInput:
    what = "no password" if mechanism is None else f"no password for {mechanism}"
    return BadInput(
        f"There is no such user: {name} has {what}. `mainstem user list` shows all users, and `mainstem user"
        f" create {name}` creates this one."
    )


def _mechanism(text: str) -> str:
    """Raises BadInput if there is no such mechanism."""
    if text.upper() not in MECHANISMS:
        raise BadInput(f"There is no mechanism {text}: it can be {' or '.join(MECHANISMS)}.")
    return text.upper()


def _password(user: str, file: Path | None) -> bytes:
    """The password, from where no other user of the machine sees it: never from the command line.

    Raises:
        BadInput: there is none.
    """
    if file is not None:
        try:
            # As bytes: a carriage return may be part of the password, and ends no line.
            data = sys.stdin.buffer.readline() if str(file) == "-" else file.read_bytes()
            text = data[: data.find(b"\n") + 1 or None].decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise BadInput(f"The password file {file} could not be read: {reason}.") from error
    elif PASSWORD_VARIABLE in os.environ:
        text = os.environ[PASSWORD_VARIABLE]
    elif sys.stdin.isatty():
        text = typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise BadInput(
            f"There is no terminal for entering the password: use --password-file, or {PASSWORD_VARIABLE}."
        )
    text = text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
    if not text:
        raise BadInput("The password is empty.")
    return text.encode()


def _row(credential: Credential) -> dict[str, Any]:
    return {
        "user": credential.user,
        "mechanism": credential.mechanism,
        "iterations": credential.iterations,
    }
