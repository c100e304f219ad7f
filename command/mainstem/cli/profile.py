"""`mainstem profile`: create, list, use, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from mainstem.cli.client_properties import properties_of_options
from mainstem.cli.options import ClientProperties, OutputChoice
from mainstem.cli.output import Column, Output, OutputFormat, table
from mainstem.cli.profiles import Profile, Profiles, change_profiles, profiles_path, read_profiles
from mainstem.errors import BadInput, CommandError
from mainstem.kafka.client import addresses_of

app = typer.Typer(no_args_is_help=True, help="Remember clusters: their addresses and client properties.")


def complete_profiles(incomplete: str) -> list[str]:
    try:
        return [name for name in read_profiles().profiles if name.startswith(incomplete)]
    except CommandError:
        return []


ProfileName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the profile.", autocompletion=complete_profiles)
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new profile.")],
    servers: Annotated[
        str,
        typer.Option(
            "--bootstrap-servers", "-b", metavar="HOST:PORT,...", help="Brokers to connect to first."
        ),
    ],
    client_properties: ClientProperties = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a profile of this name.")] = False,
) -> None:
    """Create a profile and use it from now on."""
    addresses_of(servers)
    profile = Profile(servers, properties_of_options(client_properties))

    def with_profile(profiles: Profiles) -> Profiles:
        if name in profiles.profiles and not overwrite:
            raise BadInput(f"There is a profile {name} already: add --overwrite to replace it.")
        return profiles.with_profile(name, profile).using(name)

    change_profiles(with_profile)
    Output().done(f"Created profile {name} in {profiles_path()}; it is in use from now on.")


@app.command("list")
def list_all(output: OutputChoice = OutputFormat.TABLE) -> None:
    """List the profiles; values of properties are not shown, as they may be secret."""
    out, profiles = Output(output), read_profiles()
    rows = [
        {
            "profile": name,
            "used": name == profiles.used,
            "bootstrap_servers": profile.bootstrap_servers,
            "properties": sorted(profile.properties),
        }
        for name, profile in sorted(profiles.profiles.items())
    ]
    if not rows and not out.json:
        out.say("There are no profiles: create one with `mainstem profile create NAME -b HOST:PORT`.")
        return
    columns = [
        Column("Profile", "profile", whole=True),
        Column("In use", "used"),
        Column("Bootstrap servers", "bootstrap_servers"),
        Column("Properties", "properties"),
    ]
    out.result(rows, table("", columns, rows))


@app.command()
def use(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Name of the profile.", autocompletion=complete_profiles),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no profile.")] = False,
) -> None:
    """Use a profile in all commands from now on, unless --bootstrap-servers names another cluster."""
    if (name is None) != none:
        raise BadInput("Name the profile to use, or give --none.")
    change_profiles(lambda profiles: profiles.using(name))
    Output().done("No profile is in use." if name is None else f"Profile {name} is in use.")


@app.command()
def delete(name: ProfileName) -> None:
    """Delete a profile."""
    change_profiles(lambda profiles: profiles.without(name))
    Output().done(f"Deleted profile {name}.")
