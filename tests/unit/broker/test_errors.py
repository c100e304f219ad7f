from __future__ import annotations

from collections.abc import Iterator

from kio.schema.errors import ErrorCode

from mainstem_broker import errors
from mainstem_broker.errors import MESSAGE_CHARACTERS_MAX, InvalidConfig, InvalidRecord, ProtocolError


def protocol_errors(root: type[ProtocolError] = ProtocolError) -> Iterator[type[ProtocolError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from protocol_errors(kind)


def test_every_code_is_one_that_clients_know() -> None:
    for kind in protocol_errors():
        assert ErrorCode(kind.code).value == kind.code


def test_the_codes_of_the_module_are_those_of_the_names_of_the_protocol() -> None:
    """As InvalidTopic is INVALID_TOPIC_EXCEPTION; where the names differ, the table says how."""
    differing = {
        "InvalidTopic": "invalid_topic_exception",
        "StorageError": "kafka_storage_error",
        "CoordinatorNotAvailable": "coordinator_not_available",
    }
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, ProtocolError) and kind is not ProtocolError:
            snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)[1:]
            assert ErrorCode(kind.code).name == differing.get(name, snake)


def test_an_error_without_words_sends_no_message() -> None:
    assert InvalidConfig().message is None
    assert InvalidConfig("It does not fit.").message == "It does not fit."


def test_a_message_that_quotes_the_peer_still_fits_into_a_string_of_the_protocol() -> None:
    message = InvalidConfig("\N{GRINNING FACE}" * 40_000).message
    assert message is not None
    assert len(message) == MESSAGE_CHARACTERS_MAX
    assert len(message.encode()) < 2**15


def test_invalid_records_are_named() -> None:
    error = InvalidRecord("Key missing.", [3, 5])
    assert (error.message, error.batch_indexes) == ("Key missing.", (3, 5))
