"""The texts are Kafka's: people and scripts that know `zookeeper-shell` read and write them (R18)."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.znodes import BrokerRegistration, Change, Endpoint, TopicAssignment
from mainstem_broker.replica.partition_state import PartitionState

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
TOPIC_ID_TEXT = "ABEiM0RVZneImaq7zN3u_w"

IDS = st.integers(0, 2**31 - 1)
EPOCHS = st.integers(-1, 2**31 - 1)
ASSIGNMENTS = st.dictionaries(IDS, st.lists(IDS, max_size=4).map(tuple), max_size=5)
STATES = st.builds(
    PartitionState,
    leader=EPOCHS,
    leader_epoch=EPOCHS,
    isr=st.lists(IDS, max_size=4).map(tuple),
    controller_epoch=EPOCHS,
    partition_epoch=st.integers(0, 2**31 - 1),
    recovering=st.booleans(),
)
ENDPOINTS = st.builds(
    Endpoint,
    listener=st.from_regex(r"[A-Z_]{1,12}", fullmatch=True),
    security_protocol=st.sampled_from(["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]),
    host=st.from_regex(r"[a-z0-9.-]{1,30}", fullmatch=True) | st.just("::1"),
    port=st.integers(1, 65535),
)


# --- Brokers ---


def test_a_broker_registers_in_version_5() -> None:
    registration = BrokerRegistration(
        7,
        (
            Endpoint("PLAINTEXT", "PLAINTEXT", "10.0.0.1", 9092),
            Endpoint("EXTERNAL", "SSL", "k.example", 9093),
            Endpoint("OTHER", "SSL", "2001:db8::1", 9094),
        ),
        "rack-a",
    )
    assert json.loads(registration.encode(1_700_000_000_000)) == {
        "version": 5,
        "host": "10.0.0.1",
        "port": 9092,
        "jmx_port": -1,
        "timestamp": "1700000000000",
        "endpoints": ["PLAINTEXT://10.0.0.1:9092", "EXTERNAL://k.example:9093", "OTHER://[2001:db8::1]:9094"],
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT", "EXTERNAL": "SSL", "OTHER": "SSL"},
        "features": {},
        "rack": "rack-a",
    }
    assert znodes.broker_path(7) == "/brokers/ids/7"


def test_a_broker_without_a_rack_does_not_mention_one() -> None:
    registration = BrokerRegistration(7, (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),), None)
    assert "rack" not in json.loads(registration.encode(0))


def test_the_registration_of_an_apache_kafka_broker_is_read() -> None:
    """Version 4, as Kafka before 2.7 wrote it: without features."""
    data = (
        b'{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://[::1]:9092"],'
        b'"jmx_port":-1,"port":9092,"host":"::1","version":4,"timestamp":"1577836800000"}'
    )
    registration = BrokerRegistration.decode(3, data, 99)
    assert registration == BrokerRegistration(3, (Endpoint("PLAINTEXT", "PLAINTEXT", "::1", 9092),), None, 99)


@given(
    st.builds(
        BrokerRegistration,
        broker_id=IDS,
        endpoints=st.lists(ENDPOINTS, min_size=1, max_size=3, unique_by=lambda e: e.listener).map(tuple),
        rack=st.none() | st.text(max_size=10),
        epoch=st.integers(-1, 2**63 - 1),
    )
)
def test_a_registration_is_read_back(registration: BrokerRegistration) -> None:
    data = registration.encode(0)
    assert BrokerRegistration.decode(registration.broker_id, data, registration.epoch) == registration
    first = registration.endpoints[0]
    assert registration.endpoint(first.listener) == first
    assert registration.endpoint("none") is None


# --- Topics and partitions ---


def test_a_topic_is_written_in_version_3() -> None:
    assignment = TopicAssignment("t", TOPIC_ID, {1: (2, 1), 0: (1, 2)})
    assert json.loads(assignment.encode()) == {
        "version": 3,
        "partitions": {"0": [1, 2], "1": [2, 1]},
        "adding_replicas": {},
        "removing_replicas": {},
        "topic_id": TOPIC_ID_TEXT,
    }
    assert znodes.topic_path("t") == "/brokers/topics/t"
    assert znodes.deletion_path("t") == "/admin/delete_topics/t"
    assert znodes.topic_config_path("t") == "/config/topics/t"


@given(
    st.builds(
        TopicAssignment,
        topic=st.just("t"),
        topic_id=st.uuids(),
        replicas=ASSIGNMENTS,
        adding_replicas=ASSIGNMENTS,
        removing_replicas=ASSIGNMENTS,
        version=IDS,
    )
)
def test_an_assignment_is_read_back(assignment: TopicAssignment) -> None:
    assert TopicAssignment.decode("t", assignment.encode(), assignment.version) == assignment


def test_a_partition_state_is_written_as_kafka_writes_it() -> None:
    state = PartitionState(1, 4, (1, 2), 3, partition_epoch=9)
    assert znodes.encode_state(state) == (
        b'{"controller_epoch":3,"leader":1,"version":1,"leader_epoch":4,"isr":[1,2]}'
    )
    assert znodes.state_path("t", 0) == "/brokers/topics/t/partitions/0/state"


def test_a_recovering_leader_is_marked() -> None:
    body = json.loads(znodes.encode_state(PartitionState(1, 4, (1,), 3, recovering=True)))
    assert body["leader_recovery_state"] == 1


@given(STATES)
def test_a_state_is_read_back_with_the_version_of_its_node(state: PartitionState) -> None:
    assert znodes.decode_state(znodes.encode_state(state), state.partition_epoch) == state


# --- The rest ---


def test_the_controller_is_written_in_version_2() -> None:
    assert json.loads(znodes.encode_controller(5, 1_700_000_000_000)) == {
        "version": 2,
        "brokerid": 5,
        "timestamp": "1700000000000",
        "kraftControllerEpoch": -1,
    }
    assert znodes.decode_controller(b'{"version":1,"brokerid":3,"timestamp":"1"}') == 3


def test_settings_are_written_as_kafka_writes_them() -> None:
    assert znodes.encode_config({"b": "2", "a": "1"}) == b'{"version":1,"config":{"a":"1","b":"2"}}'


def test_the_cluster_id_has_22_characters_and_a_version_in_quotes() -> None:
    assert znodes.encode_uuid(TOPIC_ID) == TOPIC_ID_TEXT
    assert len(TOPIC_ID_TEXT) == 22
    assert znodes.encode_cluster_id(TOPIC_ID_TEXT) == b'{"version":"1","id":"ABEiM0RVZneImaq7zN3u_w"}'
    assert znodes.decode_cluster_id(znodes.encode_cluster_id(TOPIC_ID_TEXT)) == TOPIC_ID_TEXT


@given(st.uuids())
def test_ids_are_read_back_from_their_text(value: UUID) -> None:
    assert znodes.decode_uuid(znodes.encode_uuid(value)) == value


NAMES = st.text(min_size=1, max_size=10)


@given(
    st.builds(
        Change,
        states=st.lists(st.tuples(st.uuids(), IDS, STATES), max_size=3).map(tuple),
        topics=st.lists(NAMES, max_size=3).map(tuple),
        deleted=st.lists(st.tuples(NAMES, st.uuids()), max_size=3).map(tuple),
        configs=st.lists(NAMES, max_size=3).map(tuple),
        deletions=st.lists(st.uuids(), max_size=3).map(tuple),
    )
)
def test_a_change_is_read_back(change: Change) -> None:
    assert Change.decode(change.encode()) == change


@pytest.mark.parametrize(
    ("name", "number"),
    [("change_0000000000", 0), ("change_0000000042", 42), ("change_2147483647", 2**31 - 1)],
)
def test_a_change_is_numbered_by_its_name(name: str, number: int) -> None:
    assert znodes.change_number(name) == number
    assert f"{znodes.CHANGE_PREFIX}{number:010d}".endswith("/" + name)


def test_a_node_without_content_has_no_settings() -> None:
    """`/config/users/alice` is made so, for the quotas of alice together with a client."""
    assert znodes.decode_config(b"") == {}
