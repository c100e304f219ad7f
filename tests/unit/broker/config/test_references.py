"""References in a settings file: variables first, then files, and what of them may be missing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.config.references import filled_in
from mainstem_broker.errors import InvalidSetting

RACK = "${file:PATH:${env:NODE_NAME}}"


@pytest.fixture
def racks(tmp_path: Path) -> Path:
    path = tmp_path / "racks.properties"
    path.write_text("ip-10-0-1-7.eu-west-1.compute.internal=eu-west-1a\nnode=b\nnode-1=c\n")
    return path


def rack(path: Path, node: str) -> dict[str, str]:
    return filled_in({"broker.rack": RACK.replace("PATH", str(path))}, {"NODE_NAME": node})


def test_values_are_filled_in_from_the_environment() -> None:
    settings = {"advertised.listeners": "OUT://${env:HOST_IP}:${env:PORT}", "log.dirs": "/$HOME/${x}"}
    filled = filled_in(settings, {"HOST_IP": "10.0.0.1", "PORT": "30000"})
    assert filled == {"advertised.listeners": "OUT://10.0.0.1:30000", "log.dirs": "/$HOME/${x}"}


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(InvalidSetting, match="the environment has no HOST_IP"):
        filled_in({"advertised.listeners": "OUT://${env:HOST_IP}:1"}, {})


@pytest.mark.parametrize(
    ("node", "expected"),
    [("ip-10-0-1-7.eu-west-1.compute.internal", "eu-west-1a"), ("node", "b"), ("node-1", "c")],
)
def test_a_file_is_asked_for_what_a_variable_names(racks: Path, node: str, expected: str) -> None:
    assert rack(racks, node) == {"broker.rack": expected}


def test_a_broker_on_a_node_that_the_file_does_not_name_is_in_no_rack(racks: Path) -> None:
    assert rack(racks, "node-2") == {}


def test_a_broker_is_in_no_rack_where_no_node_is(racks: Path) -> None:
    racks.write_text("")
    assert rack(racks, "node-1") == {}


def test_a_name_that_the_file_lacks_is_an_error_in_any_other_setting(racks: Path) -> None:
    reference = f"${{file:{racks}:retention}}"
    with pytest.raises(InvalidSetting, match=re.escape(f"{reference} cannot be filled in: {racks} has no")):
        filled_in({"log.retention.hours": reference}, {})


def test_a_file_that_is_not_there_is_an_error_also_for_the_rack(racks: Path) -> None:
    racks.unlink()
    with pytest.raises(InvalidSetting, match=r"cannot be read \(.*No such file.*put a file of name=value"):
        rack(racks, "node-1")


def test_a_file_that_is_something_else_is_an_error_that_names_it(racks: Path) -> None:
    racks.write_text("node-1=c\nsomething\n")
    with pytest.raises(InvalidSetting, match=re.escape(f"{racks} cannot be read (Line 2 is not")):
        rack(racks, "node-1")


def test_a_value_holds_references_beside_text_and_what_a_file_says_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"outside=${{env:HOST_IP}}\nport=9\\1\nagain=${{file:{path}:port}}\n")
    text = f"A://${{file:{path}:outside}}:${{env:PORT}},B://${{file:{path}:again}}:${{file:{path}:port}}"
    filled = filled_in({"advertised.listeners": text}, {"PORT": "1", "HOST_IP": "10.0.0.1"})
    assert filled == {"advertised.listeners": f"A://${{env:HOST_IP}}:1,B://${{file:{path}:port}}:9\\1"}


def test_what_is_no_whole_reference_is_text() -> None:
    settings = {"broker.rack": "${file:racks}", "log.dirs": "${file::x}/${file:y:}", "x": "${vault:a:b}"}
    assert filled_in(settings, {}) == settings


@given(st.dictionaries(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,30}[a-z0-9])?", fullmatch=True), st.just("r")))
def test_each_node_of_a_file_finds_its_own_rack(
    tmp_path_factory: pytest.TempPathFactory, nodes: dict[str, str]
) -> None:
    path = tmp_path_factory.getbasetemp() / f"racks-{os.getpid()}"
    racks = {node: f"rack-{number}" for number, node in enumerate(nodes)}
    path.write_text("".join(f"{node}={rack}\n" for node, rack in racks.items()))
    assert {node: rack(path, node).get("broker.rack") for node in racks} == racks
