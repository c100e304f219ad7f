"""The options of the data source (R34)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem_loader.errors import SettingsError
from mainstem_loader.kafka.fetch import IsolationLevel
from mainstem_loader.spark.source.client_options import client_security
from mainstem_loader.spark.source.offsets import EARLIEST, LATEST, AtTime, Positions
from mainstem_loader.spark.source.options import read_options, write_options

CLICKS = {"kafka.bootstrap.servers": "h:1", "subscribe": "clicks"}
LOGIN = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "SCRAM-SHA-512"}


def test_a_batch_begins_at_the_earliest_offset_and_a_stream_at_the_latest() -> None:
    batch, stream = read_options(CLICKS, is_stream=False), read_options(CLICKS, is_stream=True)
    assert (batch.starting, batch.ending) == (Positions(EARLIEST), Positions(LATEST))
    assert stream.starting == Positions(LATEST)
    assert (batch.topics, batch.fail_on_data_loss, batch.isolation) == (
        ("clicks",),
        True,
        IsolationLevel.READ_COMMITTED,
    )


def test_names_are_compared_without_case_and_topics_are_divided_by_commas() -> None:
    options = read_options(
        {"KAFKA.Bootstrap.Servers": "h:1", "Subscribe": " a, b,a ,", "FAILONDATALOSS": "False"},
        is_stream=True,
    )
    assert (options.topics, options.fail_on_data_loss) == (("a", "b"), False)


def test_offsets_are_named_in_the_json_of_sparks_connector() -> None:
    options = read_options(
        CLICKS
        | {"startingOffsets": '{"clicks":{"0":23,"1":-2}}', "endingOffsets": '{"clicks":{"0":50,"1":-1}}'},
        is_stream=False,
    )
    assert options.starting.by_partition == {("clicks", 0): 23, ("clicks", 1): EARLIEST}
    assert options.ending.by_partition == {("clicks", 0): 50, ("clicks", 1): LATEST}


def test_a_time_for_all_partitions_comes_before_times_by_partition_and_these_before_offsets() -> None:
    by_partition = {"startingOffsetsByTimestamp": '{"clicks":{"0":7}}'}
    offsets = {"startingOffsets": "earliest"}
    time = {"startingTimestamp": "9", "startingOffsetsByTimestampStrategy": "latest"}
    result = read_options(CLICKS | offsets | by_partition, is_stream=True)
    assert result.starting.by_partition == {("clicks", 0): AtTime(7)}
    result = read_options(CLICKS | offsets | by_partition | time, is_stream=True)
    assert result.starting == Positions(AtTime(9, or_latest=True))
    assert result.starting.times_ms() == {9}


def test_settings_that_tune_another_client_have_no_effect() -> None:
    tuned = CLICKS | {"kafkaConsumer.pollTimeoutMs": "5", "groupIdPrefix": "x", "kafka.group.id": "g"}
    assert read_options(tuned, is_stream=True) == read_options(CLICKS, is_stream=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": "t"}, "No brokers are given"),
        (CLICKS | {"kafka.bootstrap.servers": "h"}, "is not a bootstrap server"),
        ({"kafka.bootstrap.servers": "h:1"}, "no topic is given"),
        (CLICKS | {"subscribePattern": "c.*"}, "subscribe and subscribePattern are given"),
        (CLICKS | {"subscribe": " , "}, "names no topic"),
        (CLICKS | {"startingOffset": "earliest"}, "did you mean startingOffsets"),
        (CLICKS | {"topic": "x"}, "no option 'topic'"),
        (CLICKS | {"path": "clicks"}, "reads topics, not paths"),
        (CLICKS | {"startingOffsets": "latest"}, "would read nothing"),
        (CLICKS | {"endingOffsets": "earliest"}, "nothing would be read"),
        (CLICKS | {"startingOffsets": "{"}, "startingOffsets is '{'"),
        (CLICKS | {"startingOffsets": "[]"}, "write for example"),
        (CLICKS | {"startingOffsets": '{"clicks": 5}'}, "no partitions of clicks"),
        (CLICKS | {"startingOffsets": '{"clicks": {"0": -3}}'}, "has -3 for partition '0'"),
        (CLICKS | {"startingOffsets": '{"clicks": {"0": true}}'}, "has True"),
        (CLICKS | {"startingOffsets": '{"clicks": {"0": 9223372036854775808}}'}, "has 9223372036854775808"),
        (CLICKS | {"startingOffsetsByTimestamp": '{"clicks": {"0": -1}}'}, "has -1"),
        (CLICKS | {"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        (CLICKS | {"startingOffsetsByTimestampStrategy": "skip"}, "must be error or latest"),
        (CLICKS | {"failOnDataLoss": "no"}, "must be true or false"),
        (CLICKS | {"maxOffsetsPerTrigger": "0"}, "at least 1"),
        (CLICKS | {"minPartitions": "1.5"}, "whole number"),
        (CLICKS | {"payload": "xml"}, "must be raw or json"),
        (CLICKS | {"payloadSchema": "n long"}, "values stay bytes"),
        (CLICKS | {"kafka.security.protocol": "TLS"}, "write one of PLAINTEXT, SSL"),
        (CLICKS | {"kafka.sasl.mechanism": "PLAIN"}, "count only with kafka.security.protocol"),
        (CLICKS | {"kafka.security.protocol": "SASL_SSL"}, "logs in by PLAIN, SCRAM-SHA-256"),
        (CLICKS | {"kafka.ssl.cipher.suites": "x"}, "no option kafka.ssl.cipher.suites"),
        (CLICKS | {"kafka.ssl.truststore.location": "a.jks"}, "kafka.ssl.truststore.type must be PEM"),
        (CLICKS | LOGIN | {"kafka.sasl.jaas.config": "hunter2"}, "has no username"),
        (CLICKS | {"kafka.isolation.level": "serializable"}, "read_committed or read_uncommitted"),
        ({"kafka.bootstrap.servers": "h:1", "subscribePattern": "("}, "not a regular expression"),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"t": []}'}, "no partitions of t"),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"t": [-1]}'}, "no partitions of t"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_an_error_that_says_what_to_write(options: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason.replace("[", r"\[")):
        read_options(options, is_stream=False)


def test_a_stream_does_not_end() -> None:
    with pytest.raises(SettingsError, match="leave out endingTimestamp"):
        read_options(CLICKS | {"endingTimestamp": "5"}, is_stream=True)


def test_a_write_takes_a_topic_and_settings_of_the_producer() -> None:
    options = write_options(
        {"kafka.bootstrap.servers": "h:1", "topic": "t", "kafka.Compression.Type": "zstd", "queryName": "q"}
    )
    assert options.topic == "t"
    assert options.client == {"bootstrap.servers": "h:1", "compression.type": "zstd"}
    with pytest.raises(SettingsError, match="no option 'subscribe'"):
        write_options(CLICKS)


@pytest.mark.parametrize(
    "login",
    [
        {"kafka.sasl.username": "ann", "kafka.sasl.password": 'hun"ter2'},
        {
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
            ' username="ann" password="hun\\"ter2";'
        },
    ],
)
def test_a_login_is_named_as_librdkafka_or_as_the_java_client_does(login: dict[str, str]) -> None:
    read = read_options(CLICKS | LOGIN | login, is_stream=False)
    write = write_options({"kafka.bootstrap.servers": "localhost:9092"} | LOGIN | login)
    assert read.brokers.client_properties == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": 'hun"ter2',
    }
    assert write.client == {**read.brokers.client_properties, "bootstrap.servers": "localhost:9092"}
    assert "ter2" not in repr(read) + repr(write)


def test_stores_in_pem_are_files_of_certificates(tmp_path: Path) -> None:
    store = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(tmp_path / "ca.pem")}
    with pytest.raises(SettingsError, match="cannot be used"):
        read_options(CLICKS | {"kafka.security.protocol": "SSL"} | store, is_stream=False)
    assert client_security({"kafka.security.protocol": "PLAINTEXT"} | store) == {
        "security.protocol": "PLAINTEXT",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
    }


def test_names_of_brokers_are_compared_unless_the_java_clients_way_says_no() -> None:
    options = CLICKS | {"kafka.security.protocol": "SSL", "kafka.ssl.endpoint.identification.algorithm": ""}
    properties = read_options(options, is_stream=False).brokers.client_properties
    assert properties["ssl.endpoint.identification.algorithm"] == "none"
