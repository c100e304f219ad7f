"""What the registry decides of requests, from its state alone (R31)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from mainstem_registry import operations
from mainstem_registry.errors import RegistryError
from mainstem_registry.records import Record, VersionKey, VersionValue
from mainstem_registry.requests import SchemaRequest
from mainstem_registry.schemas.schema import PARSERS, Reference, SchemaText
from mainstem_registry.state import Mode, RegistryState, Version


def record_of(*fields: str) -> SchemaText:
    """An Avro schema of a record whose fields have no defaults."""
    members = ",".join(f'{{"name":"{field}","type":"string"}}' for field in fields)
    return SchemaText("AVRO", f'{{"type":"record","name":"R","fields":[{members}]}}')


def apply(state: RegistryState, records: list[Record] | tuple[Record, ...]) -> None:
    for record in records:
        assert state.apply(record)


def register(state: RegistryState, subject: str, schema: SchemaText, **given: Any) -> Version:
    registration = operations.register(state, subject, SchemaRequest(schema, **given), normalize=False)
    apply(state, registration.records)
    return registration.version


def delete(state: RegistryState, subject: str, number: int | None = None, *, permanent: bool = False) -> Any:
    """What was deleted: the number of a version, or those of all."""
    if number is None:
        numbers, records = operations.delete_subject(state, subject, permanent=permanent)
        apply(state, records)
        return numbers
    deleted, records = operations.delete_version(state, subject, number, permanent=permanent)
    apply(state, records)
    return deleted


def refusal_of(act: Callable[[], object]) -> int:
    """The code with which it is refused."""
    with pytest.raises(RegistryError) as refused:
        act()
    return refused.value.code


def test_a_subject_lives_until_it_is_deleted_for_good() -> None:
    state, schema, other = RegistryState(), record_of("a"), record_of()
    first = register(state, "s", schema)
    assert register(state, "s", schema) == first, "nothing changes"
    second = register(state, "s", other)
    assert (first.number, second.number, second.id) == (1, 2, first.id + 1)
    assert register(state, "t", schema).id == first.id, "an id is a schema's"
    assert delete(state, "s", 1) == 1
    assert refusal_of(lambda: operations.find_version(state, "s", 1, deleted=False)) == 40402
    assert operations.find_version(state, "s", 1, deleted=True).id == first.id
    assert refusal_of(lambda: delete(state, "s", 1)) == 40406
    assert refusal_of(lambda: delete(state, "s", 2, permanent=True)) == 40407
    assert refusal_of(lambda: delete(state, "s", permanent=True)) == 40405
    assert delete(state, "s") == [2]
    assert refusal_of(lambda: delete(state, "s")) == 40404
    assert refusal_of(lambda: operations.versions_of(state, "s", deleted=False)) == 40401
    again = register(state, "s", schema)
    assert (again.number, again.id) == (3, first.id), "numbers are not used again"
    assert delete(state, "s", 1, permanent=True) == 1
    assert state.schema(second.id), "what is softly deleted is still read by its id"
    delete(state, "s")
    apply(state, operations.set_config(state, "s", "FULL", None))
    apply(state, operations.set_mode(state, "s", "READWRITE", force=False))
    assert delete(state, "s", permanent=True) == [2, 3]
    assert (state.schema(second.id), state.config("s"), state.mode("s")) == (None, None, None)
    assert state.schema(first.id), "another subject has it"
    assert refusal_of(lambda: delete(state, "s")) == 40401
    assert register(state, "s", record_of("new")).id == second.id + 1, "ids are not used again"


def test_what_is_referenced_is_not_deleted() -> None:
    state = RegistryState()
    register(state, "address", record_of("street"))
    home = '{"type":"record","name":"Person","fields":[{"name":"home","type":"R"}]}'
    person = SchemaText("AVRO", home, (Reference("R", "address", -1),))
    assert register(state, "person", person).schema.references == (Reference("R", "address", 1),)
    assert refusal_of(lambda: delete(state, "address")) == 42206
    assert refusal_of(lambda: delete(state, "address", 1)) == 42206
    missing = SchemaText("AVRO", home, (Reference("R", "address", 2),))
    assert refusal_of(lambda: register(state, "other", missing)) == 42201
    delete(state, "person")
    assert delete(state, "address") == [1]


def test_a_schema_is_found_in_its_subject_alone() -> None:
    state = RegistryState()
    for subject, field in (("s", "a"), ("t", "b")):
        register(state, subject, record_of(field))

    def find(subject: str, field: str, *, deleted: bool = False) -> Version:
        request = SchemaRequest(record_of(field))
        return operations.look_up(state, subject, request, normalize=False, deleted=deleted)

    assert find("s", "a").number == 1
    assert refusal_of(lambda: find("s", "b")) == 40403
    delete(state, "s")
    assert refusal_of(lambda: find("s", "a")) == 40401
    assert find("s", "a", deleted=True).number == 1


def test_a_lookup_parses_each_version_of_a_subject_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each attempt with an unknown schema keeps the instance from other requests."""
    state, count = RegistryState(), 600
    for number in range(1, count + 1):
        value = VersionValue(number, record_of(f"stored_{number}"))
        apply(state, [Record(VersionKey("s", number), value)])
    parse, parsed = PARSERS["AVRO"], list[str]()

    def counted(text: str, references: Sequence[tuple[str, str]]) -> Any:
        parsed.append(text)
        return parse(text, references)

    def find(schema: SchemaText) -> Version:
        return operations.look_up(state, "s", SchemaRequest(schema), normalize=False, deleted=False)

    monkeypatch.setattr(operations, "PARSERS", {"AVRO": counted})
    unknown = [record_of(f"unknown_{number}", "x" * operations.CACHED_TEXT_MAX) for number in range(3)]
    assert [refusal_of(partial(find, schema)) for schema in unknown] == [40403] * 3
    assert len(parsed) == count + 2 * len(unknown)


def test_a_schema_that_a_java_client_writes_in_its_own_way_is_the_same_version() -> None:
    """Its text has the attributes in another order, and types where the stored one has references to them.

    As in Confluent's registry (`lookUpSchemaUnderSubject`), a text with references is another version.
    """
    state = RegistryState()
    register(
        state, "address", SchemaText("AVRO", '{"namespace":"n","name":"Address","type":"record","fields":[]}')
    )
    fields = '"fields":[{"name":"home","type":TYPE},{"name":"work","type":"n.Address"}]'
    named = '{"name":"Person","type":"record",' + fields.replace("TYPE", '"n.Address"') + "}"
    references = (Reference("n.Address", "address", 1),)
    person = register(state, "person", SchemaText("AVRO", named, references))
    address = '{"type":"record","name":"Address","namespace":"n","fields":[]}'
    inlined = SchemaText("AVRO", '{"type":"record","name":"Person",' + fields.replace("TYPE", address) + "}")
    other = SchemaText("AVRO", inlined.text.replace('"namespace"', '"doc":"other","namespace"'))
    for same in (inlined, SchemaText("AVRO", person.schema.text, references)):
        assert register(state, "person", same) == person
        request = SchemaRequest(same)
        assert operations.look_up(state, "person", request, normalize=False, deleted=False) == person
    assert register(state, "person", other).number == 2
    first = register(state, "inlined", inlined)
    assert register(state, "inlined", SchemaText("AVRO", named, references)).number == first.number + 1


def store(state: RegistryState, subject: str, number: int, schema_id: int, schema: SchemaText) -> Version:
    """A version as another registry or an earlier release has written it."""
    assert state.apply(Record(VersionKey(subject, number), VersionValue(schema_id, schema)), has_header=False)
    version = state.version(subject, number)
    assert version is not None
    return version


def found(state: RegistryState, subject: str, schema: SchemaText, *, normalize: bool = False) -> Version:
    request = SchemaRequest(schema)
    return operations.look_up(state, subject, request, normalize=normalize, deleted=False)


def spaced(schema: SchemaText) -> SchemaText:
    """The schema as a client writes it that leaves white space in its texts."""
    return SchemaText(schema.type, schema.text.replace(",", ", "), schema.references)


OF_PYTHON, OF_JAVA = (
    SchemaText("AVRO", text)
    for text in (
        '{"name":"R","type":"record","fields":[{"name":"a","type":"int"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
    )
)
WRAPPED = SchemaText("AVRO", OF_PYTHON.text.replace('"int"', '{"type": "int"}'))


def test_texts_that_earlier_releases_registered_as_two_versions_keep_their_ids() -> None:
    state = RegistryState()
    first, second = store(state, "s", 1, 1, OF_PYTHON), store(state, "s", 2, 2, OF_JAVA)
    for schema, version in ((OF_PYTHON, first), (WRAPPED, first), (OF_JAVA, second)):
        for same in (schema, spaced(schema)):
            assert register(state, "s", same) == version
            assert found(state, "s", same) == version
    in_another_order = SchemaText("AVRO", '{"fields":[{"type":"int","name":"a"}],"name":"R","type":"record"}')
    assert register(state, "s", in_another_order) == second, "the newest that says the same"
    assert found(state, "s", OF_PYTHON, normalize=True) == second


def test_a_text_that_an_earlier_release_stored_keeps_its_id_in_other_subjects() -> None:
    state = RegistryState()
    store(state, "s", 1, 5, OF_PYTHON)
    version = register(state, "t", spaced(WRAPPED))
    assert (version.id, version.schema) == (5, OF_PYTHON), "an id keeps its text"
    delete(state, "t")
    assert register(state, "t", OF_PYTHON).id == 5
    assert register(state, "u", OF_JAVA).id == 6


def test_an_import_that_an_earlier_release_began_can_be_ended() -> None:
    """The rest has the ids of texts that this registry would write in another way."""
    state = RegistryState()
    apply(state, operations.set_mode(state, None, "IMPORT", force=False))
    store(state, "s", 1, 5, OF_PYTHON)
    for schema in (OF_PYTHON, OF_JAVA, OF_JAVA):
        version = register(state, "t", schema, id=5, version=3)
        assert (version.id, version.schema) == (5, OF_PYTHON), "an id keeps its text"
    other = SchemaText("AVRO", OF_PYTHON.text.replace("int", "long"))
    assert refusal_of(lambda: register(state, "t", other, id=5)) == 42205
    store(state, "a", 1, 7, SchemaText("AVRO", '{"type":"enum","name":"E","symbols":["x"]}'))
    holding = '{"type":"record","name":"H","fields":[{"name":"e","type":"E"}]}'
    referring = SchemaText("AVRO", holding, (Reference("E", "a", 1),))
    store(state, "h", 1, 8, referring)
    inlined = SchemaText("AVRO", holding.replace('"E"', '{"type":"enum","name":"E","symbols":["x"]}'))
    assert refusal_of(lambda: register(state, "i", inlined, id=8)) == 42205, "it has other references"


NEW_JSON = '{"type":"object","properties":{"a":{"type":"integer"}}}'


@pytest.mark.parametrize(
    "text",
    [
        '{"$schema":"http://json-schema.org/draft-03/schema#",'
        '"type":"object","properties":{"a":{"type":"integer","required":true}}}',
        '{"type":"object","properties":{"a":{"$id":"u","type":"integer"}},"$defs":{"a":{"$id":"u"}}}',
        '{"$schema":"http://json-schema.org/draft-04/schema#","id":"http://jsonschema.net","type":"object",'
        '"properties":{"a":{"id":"http://jsonschema.net/a","allOf":[{"$ref":"#/definitions/a"}]}},'
        '"definitions":{"a":{"type":"integer"}}}',
        '{"title":"t","type":"object","properties":{"a":{"$ref":"#/title"}}}',
    ],
    ids=["draft 3", "one identifier twice", "an identifier around a reference", "to no schema"],
)
def test_a_json_schema_that_only_an_earlier_release_took_is_found_and_followed(text: str) -> None:
    state, schema = RegistryState(), SchemaText("JSON", text)
    stored = store(state, "s", 1, 7, schema)
    for same in (schema, spaced(schema)):
        assert register(state, "s", same) == stored
        assert found(state, "s", same) == stored
    following = register(state, "s", SchemaText("JSON", NEW_JSON))
    assert (following.number, following.id) == (2, 8)
    other = SchemaText("JSON", '{"type":"object","properties":{"a":{"type":"null"}}}')
    assert refusal_of(lambda: register(state, "s", other)) == 409


def test_a_text_that_another_registry_stored_and_this_one_cannot_read_is_found() -> None:
    state, schema = RegistryState(), SchemaText("AVRO", '{"type":"unknown"}')
    stored = store(state, "s", 1, 7, schema)
    assert register(state, "s", schema) == stored
    assert found(state, "s", schema) == stored
    assert refusal_of(lambda: register(state, "t", schema)) == 42201


ADDRESS = 'syntax = "proto3"; package shop; message Address { string city = 1; }'
ORDER = 'syntax = "proto3"; package shop; import "shop/address.proto"; message Order { Address home = 1; }'


def test_a_text_and_the_descriptor_of_a_program_are_one_version() -> None:
    """A serializer sends a descriptor, and a person a text, which is kept as it was written."""
    state = RegistryState()
    register(state, "address", SchemaText("PROTOBUF", ADDRESS))
    references = (Reference("shop/address.proto", "address", 1),)
    commented = SchemaText("PROTOBUF", f"// An order.\n{ORDER}", references)
    version = register(state, "orders", commented)
    assert version.schema.text.startswith("// An order.")
    descriptor = operations.serialized(state, version.schema)
    assert "message" not in descriptor.text
    for same in (SchemaText("PROTOBUF", ORDER, references), descriptor):
        assert register(state, "orders", same) == version
        request = SchemaRequest(same)
        assert operations.look_up(state, "orders", request, normalize=False, deleted=False) == version
    assert operations.serialized(state, record_of("a")) == record_of("a"), "only Protobuf has descriptors"


@pytest.mark.parametrize("by_setting", [True, False])
def test_schemas_are_normalized_on_request_or_by_a_setting(by_setting: bool) -> None:
    """Then texts that say the same are one version."""
    state = RegistryState()
    spaced = SchemaText("JSON", '{"type": "object", "properties": {"b": {}, "a": {}}}')
    sorted_names = SchemaText("JSON", '{"properties":{"a":{},"b":{}},"type":"object"}')
    if by_setting:
        apply(state, operations.set_config(state, "s", None, True))
    for text in (spaced, sorted_names):
        registration = operations.register(state, "s", SchemaRequest(text), normalize=not by_setting)
        apply(state, registration.records)
    (version,) = state.versions("s")
    request = SchemaRequest(sorted_names)
    found = operations.look_up(state, "s", request, normalize=not by_setting, deleted=False)
    assert (found, version.schema.text) == (version, sorted_names.text)


def check(state: RegistryState, schema: SchemaText) -> list[str]:
    return operations.check_compatibility(state, "s", schema, state.versions("s", deleted=False))


def test_a_schema_is_compared_with_the_versions_that_the_level_names() -> None:
    """Readers of `a` cannot read what has no `a`, and the newest version has none."""
    state = RegistryState()
    apply(state, operations.set_config(state, "s", "NONE", None))
    for schema in (record_of("a"), record_of("a", "b"), record_of("b")):
        register(state, "s", schema)
    assert check(state, record_of("z")) == []
    apply(state, operations.set_config(state, "s", "BACKWARD", None))
    assert check(state, record_of("b")) == []
    assert check(state, record_of("a"))
    assert refusal_of(lambda: register(state, "s", record_of("z"))) == 409
    apply(state, operations.set_config(state, "s", "BACKWARD_TRANSITIVE", None))
    (problem,) = check(state, record_of("b"))[:1]
    assert "version 1" in problem
    number = SchemaText("JSON", '{"type":"number"}')
    assert check(state, number) == ["version 1 is AVRO, the new schema is JSON"]
    apply(state, operations.delete_config(state, "s")[1])
    assert check(state, number) == ["version 3 is AVRO, the new schema is JSON"]


def test_what_is_not_set_stays_as_it_is() -> None:
    state = RegistryState()
    apply(state, operations.set_config(state, None, "full", None))
    apply(state, operations.set_config(state, "s", None, True))
    assert (state.compatibility("s").value, state.normalizes("s"), state.normalizes("t")) == (
        "FULL",
        True,
        False,
    )
    apply(state, operations.set_config(state, "s", "NONE", None))
    assert (state.compatibility("s").value, state.normalizes("s")) == ("NONE", True)
    assert refusal_of(lambda: operations.set_config(state, "s", "SOME", None)) == 42203
    assert refusal_of(lambda: operations.set_config(state, "s", None, "yes")) == 422
    removed, records = operations.delete_config(state, "s")
    apply(state, records)
    assert (removed.compatibility, state.compatibility("s").value) == ("NONE", "FULL")
    assert refusal_of(lambda: operations.delete_config(state, "s")) == 40408


@pytest.mark.parametrize(
    ("subject", "mode"), [("s", "READONLY"), (None, "READONLY_OVERRIDE"), (None, "readonly")]
)
def test_in_a_mode_to_read_nothing_is_written(subject: str | None, mode: str) -> None:
    state = RegistryState()
    first = register(state, "s", record_of("a"))
    apply(state, operations.set_mode(state, subject, mode, force=False))
    assert register(state, "s", record_of("a")) == first, "it is there already"
    assert refusal_of(lambda: register(state, "s", record_of())) == 42205
    assert refusal_of(lambda: delete(state, "s")) == 42205
    assert refusal_of(lambda: delete(state, "s", 1)) == 42205
    for place in ("s", subject):
        assert refusal_of(lambda: operations.set_config(state, place, "NONE", None)) == 42205  # noqa: B023
        assert refusal_of(lambda: operations.delete_config(state, place)) == 42205  # noqa: B023
    if mode == "readonly":  # a subject's own mode goes before
        apply(state, operations.set_mode(state, "s", "READWRITE", force=False))
        assert register(state, "s", record_of()).number == 2
    removed, records = operations.delete_mode(state, subject)
    apply(state, records)
    assert (removed.value, state.effective_mode("s")) == (mode.upper(), Mode.READWRITE)
    assert register(state, "s", record_of()).number == 2


def test_only_in_import_mode_a_client_gives_ids_and_numbers() -> None:
    state = RegistryState()
    assert refusal_of(lambda: register(state, "s", record_of("a"), id=4000)) == 42205
    assert refusal_of(lambda: register(state, "s", record_of("a"), version=2)) == 42205
    apply(state, operations.set_mode(state, "s", "IMPORT", force=False))
    version = register(state, "s", record_of("a"), id=4000, version=3)
    assert (version.id, version.number) == (4000, 3)
    assert refusal_of(lambda: register(state, "s", record_of("b"), id=4000)) == 42205
    assert refusal_of(lambda: register(state, "s", record_of("b"), id=5, version=3)) == 42205
    assert register(state, "s", record_of("b"), id=7, version=1).number == 1, "in any order"
    assert register(state, "t", record_of("c")).id == 4001
    for subject in ("t", None):
        assert refusal_of(lambda: operations.set_mode(state, subject, "IMPORT", force=False)) == 42205  # noqa: B023
        assert operations.set_mode(state, subject, "IMPORT", force=True)
    assert refusal_of(lambda: operations.set_mode(state, "s", "SOME", force=False)) == 42204
    assert refusal_of(lambda: operations.set_mode(state, "s", "READONLY_OVERRIDE", force=False)) == 42205
    assert refusal_of(lambda: operations.delete_mode(state, "t")) == 40409


@pytest.mark.parametrize("text", ["0", "-2", "x", "", "1.0", "٣", "2147483648", "99999999999"])
def test_what_is_no_number_of_a_version_is_refused(text: str) -> None:
    assert refusal_of(lambda: operations.parse_version(text)) == 42202


def test_numbers_of_versions_are_read() -> None:
    assert [operations.parse_version(text) for text in ("latest", "LATEST", "-1", "1", "2147483647")] == [
        -1,
        -1,
        -1,
        1,
        2**31 - 1,
    ]


@pytest.mark.parametrize(
    "subject", ["", ":.context:s", "__GLOBAL", "__EMPTY", "a\nb", "a\x7fb", "a\x85b", "x" * 1001]
)
def test_what_no_subject_may_be_called_is_refused(subject: str) -> None:
    state = RegistryState()
    assert refusal_of(lambda: register(state, subject, record_of("a"))) == 42208
    assert refusal_of(lambda: operations.set_config(state, subject, "FULL", None)) == 42208
    assert refusal_of(lambda: operations.set_mode(state, subject, "READONLY", force=False)) == 42208


def test_only_new_schemas_have_to_be_those_that_other_libraries_read() -> None:
    """A version that another registry has stored goes on to be found and compared."""
    state = RegistryState()
    twice = record_of("a", "a")
    assert refusal_of(lambda: register(state, "s", twice)) == 42201
    apply(state, operations.set_mode(state, "s", "IMPORT", force=False))
    stored = register(state, "s", twice, id=1, version=1)
    apply(state, operations.delete_mode(state, "s")[1])
    assert register(state, "s", twice) == stored
    assert register(state, "s", record_of("a")).number == 2
    assert refusal_of(lambda: check(state, twice)) == 42201
