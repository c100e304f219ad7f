"""Encryption and login of the data source, by the options that users of Spark's Kafka connector know.

They are Kafka's client properties behind `kafka.`, by librdkafka's names (`kafka.sasl.username`) or those of
the Java client (`kafka.sasl.jaas.config`), which are translated. Stores have to be in PEM (KIP-651): a JVM's
keystores cannot be read here. No message of an error holds a value that may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mainstem_loader.errors import SettingsError
from mainstem_loader.kafka.client_security import check_client_properties

_PREFIX: Final = "kafka."
_PROTOCOL: Final = "security.protocol"
_JAAS: Final = "sasl.jaas.config"

_PLAIN_NAMES: Final = (
    _PROTOCOL,
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
)
_TRANSLATED: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.location": "ssl.certificate.location",
}
_STORE_TYPES: Final = {
    "ssl.truststore.type": "ssl.truststore.location",
    "ssl.keystore.type": "ssl.keystore.location",
}
_JAAS_PAIR: Final = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_ESCAPED: Final = re.compile(r"\\(.)")


def is_security_option(name: str) -> bool:
    """Whether an option, in lower case, is about encryption or login."""
    return name == _PREFIX + _PROTOCOL or name.startswith((f"{_PREFIX}ssl.", f"{_PREFIX}sasl."))


def client_security(options: Mapping[str, str]) -> Mapping[str, str]:
    """The properties of `kafka.client_security`, out of options.

    Args:
        options: all of the data source, their names in lower case.

    Raises:
        SettingsError: an option is unknown or missing, or cannot be used.
    """
    given = {name.removeprefix(_PREFIX): value for name, value in options.items() if is_security_option(name)}
    properties: dict[str, str] = {}
    for name, value in given.items():
        if name in _PLAIN_NAMES or name in _TRANSLATED:
            properties[_TRANSLATED.get(name, name)] = value
        elif name in _STORE_TYPES:
            if value.upper() != "PEM":
                raise _not_pem(name)
        elif name == _JAAS:
            properties |= _of_jaas(value)
        else:
            known_names = (*_PLAIN_NAMES, *_TRANSLATED, *_STORE_TYPES, _JAAS)
            raise SettingsError(
                f"The data source has no option kafka.{name}; encryption and login take"
                f" {', '.join(_PREFIX + known for known in sorted(known_names))}."
            )
    for kind, location in _STORE_TYPES.items():
        # The Java client takes stores for JKS by default.
        if location in given and kind not in given:
            raise _not_pem(kind)
    if properties.get("ssl.endpoint.identification.algorithm") == "":
        # As the Java client writes that names are not compared.
        properties["ssl.endpoint.identification.algorithm"] = "none"
    if properties and _PROTOCOL not in properties:
        raise SettingsError(
            "kafka.ssl.* and kafka.sasl.* count only with kafka.security.protocol; write SSL,"
            " SASL_PLAINTEXT or SASL_SSL, or leave them out."
        )
    check_client_properties(properties)
    return properties


def _not_pem(name: str) -> SettingsError:
    return SettingsError(
        f"kafka.{name} must be PEM, for a JVM's stores cannot be read; convert the store with keytool and"
        " openssl, or name PEM files by kafka.ssl.ca.location and kafka.ssl.certificate.location."
    )


def _of_jaas(text: str) -> dict[str, str]:
    """User and password of a login module, as the Java client has them."""
    values = {
        name: _ESCAPED.sub(r"\1", double or single or bare)
        for name, double, single, bare in _JAAS_PAIR.findall(text)
    }
    if "username" not in values or "password" not in values:
        raise SettingsError(
            'kafka.sasl.jaas.config has no username="..." and password="..."; write both, or use'
            " kafka.sasl.username and kafka.sasl.password."
        )
    return {"sasl.username": values["username"], "sasl.password": values["password"]}
