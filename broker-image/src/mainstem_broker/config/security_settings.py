"""How clients and brokers prove who they are, and how their connections are encrypted.

Each of these settings may be given for one listener, as `listener.name.X.NAME` with the listener's name in
lower case. `sasl.jaas.config` may be given for one mechanism of it, as
`listener.name.X.MECHANISM.sasl.jaas.config`, and so may `sasl.oauthbearer.*`, with the mechanism oauthbearer.
They are read when the broker starts; files that they name are read again when they change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mainstem_broker.config.setting import INT, LIST, LONG, PASSWORD, STRING, Setting, table

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The SASL mechanisms that are served."""

TLS: Final = (
    Setting(
        "ssl.keystore.type",
        STRING,
        "PEM",
        "Format of the private key and its certificates. Kafka's default JKS is not served.",
        choices=("PEM",),
    ),
    Setting(
        "ssl.keystore.location",
        STRING,
        None,
        "File with the private key and its certificate chain, in PEM, or a directory with tls.key and"
        " tls.crt, as Kubernetes mounts a Secret. It is read again when it changes.",
    ),
    Setting(
        "ssl.keystore.certificate.chain",
        PASSWORD,
        None,
        "Certificate chain in PEM, in place of a file; with ssl.keystore.key.",
    ),
    Setting("ssl.keystore.key", PASSWORD, None, "Private key in PEM, in place of a file."),
    Setting("ssl.key.password", PASSWORD, None, "Password of the private key, if it is encrypted."),
    Setting(
        "ssl.truststore.type",
        STRING,
        "PEM",
        "Format of the trusted certificates. Kafka's default JKS is not served.",
        choices=("PEM",),
    ),
    Setting(
        "ssl.truststore.location",
        STRING,
        None,
        "File with the trusted certificates, in PEM, or a directory with ca.crt. It is read again when it"
        " changes. Without one, clients cannot show certificates, and other brokers are checked by the"
        " system's certificates.",
    ),
    Setting("ssl.truststore.certificates", PASSWORD, None, "Trusted certificates in PEM, not in a file."),
    Setting(
        "ssl.client.auth",
        STRING,
        "none",
        "Whether clients show a certificate. As in Kafka, a SASL_SSL listener takes this only from"
        " listener.name.X.ssl.client.auth.",
        choices=("none", "requested", "required"),
    ),
    Setting(
        "ssl.cipher.suites",
        LIST,
        "",
        "Cipher suites by their IANA names; empty for all that are considered strong. Those of TLS 1.3 can"
        " only be enabled together.",
    ),
    Setting(
        "ssl.enabled.protocols",
        LIST,
        "TLSv1.2,TLSv1.3",
        "Versions of TLS.",
        choices=("TLSv1.2", "TLSv1.3"),
    ),
    Setting(
        "ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        "Whether a broker that connects to another one checks its host name (https) or not (empty).",
        choices=("https", ""),
    ),
    Setting(
        "ssl.principal.mapping.rules",
        STRING,
        "DEFAULT",
        "Rules that make a name of a client certificate's subject: RULE:pattern/replacement/[LU], or DEFAULT"
        " for the whole subject; the first that fits counts (KIP-371).",
    ),
)

SASL: Final = (
    Setting(
        "sasl.enabled.mechanisms",
        LIST,
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "Mechanisms by which clients may log in. Kafka's default GSSAPI is not served.",
        choices=MECHANISMS,
    ),
    Setting(
        "sasl.jaas.config",
        PASSWORD,
        None,
        'Users of PLAIN (user_NAME="PASSWORD") and this broker\'s own login to other brokers (username,'
        " password), in the form of JAAS. Given as listener.name.X.MECHANISM.sasl.jaas.config.",
    ),
    Setting(
        "sasl.server.max.receive.size",
        INT,
        524_288,
        "Largest request accepted before the client has logged in.",
        minimum=1,
    ),
    Setting(
        "connections.max.reauth.ms",
        LONG,
        0,
        "Time after which a client has to log in again or is disconnected (KIP-368); 0 for never. With"
        " OAUTHBEARER it is at the latest when the token expires.",
        minimum=0,
    ),
    Setting(
        "connection.failed.authentication.delay.ms",
        INT,
        100,
        "How long the answer to a failed login is held back.",
        minimum=0,
    ),
)

OAUTH: Final = (
    Setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        STRING,
        None,
        "Where the public keys of the issuer of tokens are, as a JWK set: https://... or file:///...",
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        LONG,
        3_600_000,
        "How often these keys are read again; also when a token names a key that is not among them. A file is"
        " read again when it changes.",
        minimum=1,
    ),
    Setting(
        "sasl.oauthbearer.expected.audience",
        LIST,
        "",
        "Audiences (aud) of which a token has to have one; empty for any.",
    ),
    Setting(
        "sasl.oauthbearer.expected.issuer",
        STRING,
        None,
        "Issuer (iss) that a token must have; any if unset.",
    ),
    Setting("sasl.oauthbearer.scope.claim.name", STRING, "scope", "Claim of a token that has its scopes."),
    Setting(
        "sasl.oauthbearer.required.scopes",
        LIST,
        "",
        "Scopes that a token has to have, all of them. Kafka has no such setting.",
    ),
    Setting("sasl.oauthbearer.sub.claim.name", STRING, "sub", "Claim of a token that names the user."),
    Setting(
        "sasl.oauthbearer.clock.skew.seconds",
        INT,
        30,
        "How much the clocks of the issuer and the broker may differ.",
        minimum=0,
    ),
)

INTER_BROKER: Final = (
    Setting(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "Security protocol between brokers, whose name is that of the listener, if inter.broker.listener.name"
        " is not set.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    Setting(
        "sasl.mechanism.inter.broker.protocol",
        STRING,
        "SCRAM-SHA-512",
        "Mechanism by which brokers log in to each other. Kafka's default GSSAPI is not served.",
        choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    ),
)

LISTENER_SETTINGS: Final[Mapping[str, Setting]] = table(*TLS, *SASL, *OAUTH)
"""Those that may be given for one listener."""
