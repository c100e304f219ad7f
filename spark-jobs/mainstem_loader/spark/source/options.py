"""The options of the data source: texts to values. Pure, except that files of certificates are opened once.

Names are those of Spark's Kafka connector and are compared without case, as everywhere in Spark. An option
that is not known is an error, because a misspelled `startingOffsets` would silently read something else.
Options of Spark's connector that only tune its client, which is not used here, are accepted and have no
effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from mainstem_loader.errors import SettingsError
from mainstem_loader.kafka.fetch import IsolationLevel
from mainstem_loader.kafka.leaders import BrokerSettings, parse_bootstrap_servers
from mainstem_loader.spark.source.client_options import client_security, is_security_option
from mainstem_loader.spark.source.offsets import (
    EARLIEST,
    LATEST,
    AtTime,
    Position,
    Positions,
    TopicPartition,
)
from mainstem_loader.whole_numbers import is_whole_number

FETCH_BYTES: Final = 16 * 1024 * 1024

_READ_OPTIONS: Final = (
    "assign",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "kafka.bootstrap.servers",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "minPartitions",
    "payload",
    "payloadSchema",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
)
_WRITE_OPTIONS: Final = ("topic", "kafka.bootstrap.servers")
_CONNECTOR_TUNING: Final = frozenset(
    {"kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms", "groupidprefix"}
)
# Spark adds these itself: where a sink keeps its state, and the argument of `load` and `save`.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
_PATTERN_MAX: Final = 1000

Options = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a DataFrame reads.

    Attributes:
        brokers, isolation, fetch_bytes: how topics are read.
        topics: the names that are read, in the order given; empty where there is a pattern.
        pattern: a regular expression that the whole name matches; None where topics are named.
        assigned: the only partitions that are read, by topic; None for all.
        starting, ending: where a batch begins and ends, and where a stream begins.
        fail_on_data_loss: whether records that are gone before they were read are an error.
        include_headers: whether rows have headers unless a schema says so.
        payload: the format of values that are parsed; None where they stay bytes.
        payload_schema: the fields of `payload` as Spark SQL writes a schema; None where the DataFrame's
            schema has it.
        offsets_per_trigger_max: how much one micro-batch reads; None for all there is.
        splits_min, split_records_max: into how many tasks, at least, and how large ones a read is divided;
            None for one of each partition.
    """

    brokers: BrokerSettings
    isolation: IsolationLevel
    fetch_bytes: int
    topics: tuple[str, ...]
    pattern: str | None
    assigned: Mapping[str, frozenset[int]] | None
    starting: Positions
    ending: Positions
    fail_on_data_loss: bool
    include_headers: bool
    payload: str | None
    payload_schema: str | None
    offsets_per_trigger_max: int | None
    splits_min: int | None
    split_records_max: int | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where a DataFrame is written. `topic`: for all rows; None where each row names its topic. `client`: the
    settings of the producer, by librdkafka's names, with secrets.
    """

    topic: str | None
    client: Mapping[str, str] = field(repr=False)


def read_options(options: Options, is_stream: bool) -> ReadOptions:
    """The options of a read.

    Raises:
        SettingsError: an option is missing, unknown, or has a value that it cannot have.
    """
    texts = {name.lower(): value for name, value in options.items()}
    if "path" in texts:
        raise SettingsError(
            f"The data source reads topics, not paths; leave out {texts['path']!r}, and write"
            " .option('subscribe', 'TOPIC')."
        )
    _refuse_unknown(texts, _READ_OPTIONS)
    if is_stream and (
        ending := [name for name in _READ_OPTIONS if name[:3] == "end" and name.lower() in texts]
    ):
        raise SettingsError(f"A stream does not end; leave out {ending[0]}, or read a batch with spark.read.")
    topics, pattern, assigned = _subscription(texts)
    return ReadOptions(
        brokers=_brokers(texts),
        isolation=_isolation(texts),
        fetch_bytes=_count(texts, "kafka.fetch.max.bytes") or FETCH_BYTES,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_starting(texts, LATEST if is_stream else EARLIEST, is_stream),
        ending=_ending(texts),
        fail_on_data_loss=_boolean(texts, "failOnDataLoss", True),
        include_headers=_boolean(texts, "includeHeaders", False),
        payload=_payload(texts),
        payload_schema=texts.get("payloadschema"),
        offsets_per_trigger_max=_count(texts, "maxOffsetsPerTrigger"),
        splits_min=_count(texts, "minPartitions"),
        split_records_max=_count(texts, "maxRecordsPerPartition"),
    )


def write_options(options: Options) -> WriteOptions:
    """The options of a write. Settings `kafka.*` go to the producer.

    Raises:
        SettingsError: an option is missing or unknown.
    """
    texts = {name.lower(): value for name, value in options.items()}
    if "path" in texts:
        raise SettingsError(
            f"The data source writes to topics, not paths; leave out {texts['path']!r}, and write"
            " .option('topic', 'TOPIC')."
        )
    _refuse_unknown(texts, _WRITE_OPTIONS)
    servers = _bootstrap_servers(texts)
    client = {
        name.removeprefix("kafka."): value
        for name, value in texts.items()
        if name.startswith("kafka.") and not is_security_option(name)
    }
    security = dict(client_security(texts))
    if "ssl.certificate.location" in security:
        # Without this, librdkafka does not look for the key in the certificate's file.
        security.setdefault("ssl.key.location", security["ssl.certificate.location"])
    return WriteOptions(texts.get("topic"), client | security | {"bootstrap.servers": servers})


def _refuse_unknown(texts: Options, known_options: tuple[str, ...]) -> None:
    known = {name.lower(): name for name in known_options}
    for name in texts:
        if name in known or name.startswith("kafka.") or name in _CONNECTOR_TUNING | _OF_SPARK:
            continue
        near = get_close_matches(name, known, 1)
        advice = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(known_options)}."
        raise SettingsError(f"The data source has no option {name!r}; {advice}")


def _bootstrap_servers(texts: Options) -> str:
    servers = texts.get("kafka.bootstrap.servers")
    if not servers:
        raise SettingsError("No brokers are given; write .option('kafka.bootstrap.servers', 'host:port').")
    parse_bootstrap_servers(servers)
    return servers


def _brokers(texts: Options) -> BrokerSettings:
    servers = _bootstrap_servers(texts)
    defaults = BrokerSettings(servers)
    return BrokerSettings(
        servers,
        _count(texts, "kafka.request.timeout.ms") or defaults.request_timeout_ms,
        _count(texts, "kafka.default.api.timeout.ms") or defaults.retry_ms,
        client_security(texts),
    )


def _isolation(texts: Options) -> IsolationLevel:
    level = texts.get("kafka.isolation.level", "read_committed").upper()
    if level not in IsolationLevel.__members__:
        raise SettingsError(
            f"kafka.isolation.level is {level.lower()!r}; it must be read_committed or read_uncommitted."
        )
    return IsolationLevel[level]


def _subscription(texts: Options) -> tuple[tuple[str, ...], str | None, Mapping[str, frozenset[int]] | None]:
    given = [name for name in ("assign", "subscribe", "subscribePattern") if texts.get(name.lower())]
    if len(given) != 1:
        both = f"{' and '.join(given)} are given" if given else "no topic is given"
        raise SettingsError(
            f"Exactly one of subscribe, subscribePattern and assign says what is read, and {both}; write for"
            " example .option('subscribe', 'clicks')."
        )
    text = texts[given[0].lower()]
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(filter(None, (name.strip() for name in text.split(",")))))
        if not topics:
            raise SettingsError("subscribe names no topic; write one, or several with commas.")
        return topics, None, None
    if given[0] == "subscribePattern":
        try:
            re.compile(text[:_PATTERN_MAX])
        except re.error as error:
            raise SettingsError(
                f"subscribePattern {text!r} is not a regular expression ({error})."
            ) from error
        return (), text, None
    found = _json(text, "assign", '{"clicks": [0, 1]}')
    assigned: dict[str, frozenset[int]] = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, list) or not partitions or not all(map(_is_partition, partitions)):
            raise SettingsError(
                f"assign lists no partitions of {topic}; write for example {{{topic!r}: [0, 1]}}."
            )
        assigned[topic] = frozenset(partitions)
    return tuple(assigned), None, assigned


def _starting(texts: Options, default: int, is_stream: bool) -> Positions:
    strategy = texts.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise SettingsError(
            f"startingOffsetsByTimestampStrategy is {strategy!r}; it must be error or latest."
        )
    positions = _positions(texts, "starting", default, or_latest=strategy == "latest")
    if not is_stream and LATEST in (positions.default, *positions.by_partition.values()):
        raise SettingsError(
            "startingOffsets is latest, so a batch would read nothing; use earliest, offsets or a time, or"
            " read a"
            " stream."
        )
    return positions


def _ending(texts: Options) -> Positions:
    positions = _positions(texts, "ending", LATEST, or_latest=True)
    if EARLIEST in (positions.default, *positions.by_partition.values()):
        raise SettingsError(
            "endingOffsets is earliest, so nothing would be read; use latest, offsets or a time."
        )
    return positions


def _positions(texts: Options, edge: str, default: int, or_latest: bool) -> Positions:
    """Where a read begins or ends. As in Spark's connector a time for all partitions comes before times by
    partition, and these before offsets.
    """
    if (text := texts.get(f"{edge}timestamp")) is not None:
        return Positions(AtTime(_whole(text, f"{edge}Timestamp"), or_latest))
    if (text := texts.get(f"{edge}offsetsbytimestamp")) is not None:
        name = f"{edge}OffsetsByTimestamp"
        times: dict[TopicPartition, Position] = {
            part: AtTime(time_ms, or_latest) for part, time_ms in _by_partition(text, name, 0).items()
        }
        return Positions(None, times)
    text = texts.get(f"{edge}offsets", "")
    match text.strip().lower():
        case "":
            return Positions(default)
        case "earliest":
            return Positions(EARLIEST)
        case "latest":
            return Positions(LATEST)
        case _:
            offsets: dict[TopicPartition, Position] = {**_by_partition(text, f"{edge}Offsets", EARLIEST)}
            return Positions(None, offsets)


def _by_partition(text: str, name: str, lowest: int) -> dict[TopicPartition, int]:
    example = f'{{"clicks": {{"0": 23, "1": {lowest}}}}}'
    by_partition: dict[TopicPartition, int] = {}
    for topic, numbers in _json(text, name, example).items():
        if not isinstance(numbers, dict):
            raise SettingsError(f"{name} has no partitions of {topic}; write for example {example}.")
        for partition, number in numbers.items():
            if not is_whole_number(partition) or type(number) is not int or not lowest <= number < 1 << 63:
                raise SettingsError(
                    f"{name} has {number!r} for partition {partition!r} of {topic}; write for example"
                    f" {example}."
                )
            by_partition[topic, int(partition)] = number
    return by_partition


def _json(text: str, name: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found:
        raise SettingsError(f"{name} is {text[:80]!r}; write for example {example}.")
    return found


def _payload(texts: Options) -> str | None:
    payload = texts.get("payload", "raw").lower()
    if payload not in ("raw", "json"):
        raise SettingsError(f"payload is {payload!r}; it must be raw or json.")
    if payload == "raw":
        if "payloadschema" in texts:
            raise SettingsError(
                "payloadSchema is given, and values stay bytes; add .option('payload', 'json')."
            )
        return None
    return payload


def _is_partition(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 31


def _boolean(texts: Options, name: str, default: bool) -> bool:
    text = texts.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise SettingsError(f"{name} is {text!r}; it must be true or false.")
    return text == "true"


def _count(texts: Options, name: str) -> int | None:
    text = texts.get(name.lower())
    if text is None:
        return None
    if not is_whole_number(text) or int(text) < 1:
        raise SettingsError(f"{name} is {text!r}; it must be a whole number of at least 1.")
    return int(text)


def _whole(text: str, name: str) -> int:
    if not is_whole_number(text):
        raise SettingsError(f"{name} is {text!r}; write the milliseconds since 1970, such as 1735689600000.")
    return int(text)
