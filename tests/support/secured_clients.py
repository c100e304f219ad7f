"""Stock clients that connect with encryption and a login: one round trip of a record each.

Only what connecting takes is set; everything else of these clients is `stock_clients.py`'s business.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
from kafka.net.sasl.oauth import AbstractTokenProvider
from tests.support.kafka_tools import run_tool

TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Access:
    """How to connect: Kafka's protocol, the file to trust, a certificate file of one's own, a login.

    The login is a mechanism, a user and a password, or what returns a token.
    """

    protocol: str
    bootstrap_servers: str
    trust: Path | None = None
    own: Path | None = None
    login: tuple[str, str, str] | None = None
    token: Callable[[], str] | None = None

    def librdkafka(self) -> dict[str, str]:
        settings = {"bootstrap.servers": self.bootstrap_servers, "security.protocol": self.protocol}
        if self.trust is not None:
            settings["ssl.ca.location"] = str(self.trust)
        if self.own is not None:
            settings |= {"ssl.certificate.location": str(self.own), "ssl.key.location": str(self.own)}
        if self.login is not None:
            names = ("sasl.mechanism", "sasl.username", "sasl.password")
            settings |= dict(zip(names, self.login, strict=True))
        return settings

    def java(self) -> dict[str, str]:
        """Of the Java client, with PEM files; for trust and PLAIN and SCRAM only."""
        settings = {"security.protocol": self.protocol}
        if "SSL" in self.protocol:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.trust)}
        if self.login is not None:
            mechanism, user, password = self.login
            module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
            settings |= {
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": (
                    f"org.apache.kafka.common.security.{module} required"
                    f' username="{user}" password="{password}";'
                ),
            }
        return settings

    def python(self) -> dict[str, Any]:
        """What kafka-python and aiokafka have in common."""
        settings: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": self.protocol,
        }
        if "SSL" in self.protocol:
            context = ssl.create_default_context(cafile=self.trust)
            if self.own is not None:
                context.load_cert_chain(self.own)
            settings["ssl_context"] = context
        if self.login is not None:
            names = ("sasl_mechanism", "sasl_plain_username", "sasl_plain_password")
            settings |= dict(zip(names, self.login, strict=True))
        return settings


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is untyped
    def __init__(self, token: Callable[[], str]) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token()


class _AsyncTokenProvider(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]  # as is aiokafka
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token()


def confluent_round_trip(access: Access, topic: str) -> bytes:
    return librdkafka_round_trip(access.librdkafka(), topic)


def librdkafka_round_trip(settings: Mapping[str, Any], topic: str) -> bytes:
    """The record that was sent, as it was consumed again.

    Raises:
        PermissionError: the client reports why it cannot connect; the message is its own.
    """
    troubles: list[str] = []
    shared = {**settings, "error_cb": lambda error: troubles.append(str(error)), "log_level": 0}
    producer = confluent_kafka.Producer(shared)
    failures: list[Any] = []
    producer.produce(topic, b"secured", partition=0, on_delivery=lambda error, _: failures.append(error))
    deadline_polls = int(TIMEOUT_S / 0.1)
    for _ in range(deadline_polls):
        producer.poll(0.1)
        if failures or any("fail" in trouble.lower() for trouble in troubles):
            break
    if not failures or failures[0] is not None:
        raise PermissionError(f"{failures} {troubles}")
    consumer = confluent_kafka.Consumer({**shared, "group.id": "secured", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        for _ in range(deadline_polls):
            record = consumer.poll(0.1)
            if record is not None and record.error() is None:
                value: bytes = record.value()
                return value
        raise PermissionError(str(troubles))
    finally:
        consumer.close()


def kafka_python_round_trip(access: Access, topic: str) -> bytes:
    settings = access.python()
    if access.token is not None:
        settings |= {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": _TokenProvider(access.token),
        }
    producer = kafka.KafkaProducer(**settings)
    try:
        producer.send(topic, b"secured", partition=0).get(TIMEOUT_S)
    finally:
        producer.close(timeout=5)
    consumer = kafka.KafkaConsumer(**settings, group_id=None, consumer_timeout_ms=int(TIMEOUT_S * 1000))
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        value: bytes = next(iter(consumer)).value
        return value
    finally:
        consumer.close()


def aiokafka_round_trip(access: Access, topic: str) -> bytes:
    async def go() -> bytes:
        settings = access.python()
        if access.token is not None:
            settings |= {
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauth_token_provider": _AsyncTokenProvider(access.token),
            }
        producer = aiokafka.AIOKafkaProducer(**settings)
        await producer.start()
        try:
            await producer.send_and_wait(topic, b"secured", partition=0)
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(**settings, group_id=None)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            value: bytes = (await consumer.getone()).value
            return value
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(go(), TIMEOUT_S))


def kcat_round_trip(access: Access, topic: str) -> bytes:
    settings = [part for name, value in access.librdkafka().items() for part in ("-X", f"{name}={value}")]
    program = shutil.which("kcat")
    assert program is not None
    subprocess.run(
        [program, *settings, "-P", "-t", topic, "-p", "0"], input=b"secured", timeout=TIMEOUT_S, check=True
    )
    read = subprocess.run(
        [program, *settings, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", "1", "-q"],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return read.stdout.rstrip(b"\n")


def java_round_trip(access: Access, topic: str, folder: Path) -> bytes:
    """By the Java client's console tools, which take settings from a file in `folder`.

    Raises:
        AssertionError: a tool does not end, or no record comes; the message is what it says.
    """
    settings = folder / "java.properties"
    settings.write_text("".join(f"{name}={value}\n" for name, value in access.java().items()))
    where = ("--bootstrap-server", access.bootstrap_servers, "--topic", topic)
    sent = run_tool("ConsoleProducer", *where, "--command-config", str(settings), stdin="secured\n")
    reading = ("--command-config", str(settings), "--partition", "0", "--offset", "earliest")
    limits = ("--max-messages", "1", "--timeout-ms", str(int(1000 * TIMEOUT_S)))
    read = run_tool("consumer.ConsoleConsumer", *where, *reading, *limits)
    lines = [line for line in read.splitlines() if not line.startswith("Processed a total of")]
    assert len(lines) == 1, f"{sent}\n{read}"
    return lines[0].encode()


RoundTrip = Callable[[Access, str], bytes]
ROUND_TRIPS: Final[Mapping[str, RoundTrip]] = {
    "confluent-kafka": confluent_round_trip,
    "kafka-python": kafka_python_round_trip,
    "aiokafka": aiokafka_round_trip,
    **({"kcat": kcat_round_trip} if shutil.which("kcat") else {}),
}
