"""Runs one instance of the registry: `python -m mainstem_registry --bootstrap-servers HOST:PORT`.

Runs until SIGTERM or SIGINT. Log lines are JSON on standard error. Exit code 0 after a clean stop, 1 if the
registry could not start.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import signal
import sys
from pathlib import Path

import structlog
from aiohttp import web

from mainstem_registry.addresses import advertised_url, is_loopback, listener_of
from mainstem_registry.client_security import Brokers, brokers_of, login_brokers_of, properties_of_file
from mainstem_registry.election import Election
from mainstem_registry.errors import StartupError
from mainstem_registry.logins import BrokerLogin, Logins
from mainstem_registry.metrics import Metrics
from mainstem_registry.registry import Registry
from mainstem_registry.server import Server
from mainstem_registry.store import Store
from mainstem_registry.tls import TlsFiles, client_context, keep_current, server_context


def main() -> int:
    arguments = _parse_arguments()
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        asyncio.run(_serve(arguments))
    except StartupError as error:
        print(f"mainstem registry: {error}", file=sys.stderr)  # noqa: T201  # a person reads this one
        return 1
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mainstem_registry", description="Run one instance of the schema registry."
    )
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    parser.add_argument(
        "--client-config",
        type=Path,
        metavar="FILE",
        help="client properties for connections to brokers, one name=value a line, with librdkafka's names:"
        " security.protocol, ssl.ca.location, ssl.certificate.location, ssl.key.location, sasl.mechanism,"
        " sasl.username, sasl.password and others",
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:8081",
        metavar="HOST:PORT",
        help="address of the HTTP API",
    )
    parser.add_argument(
        "--advertised-url",
        metavar="URL",
        help="where the other instances reach this one; default: http:// and the address of --listen,"
        " unless that stands for all addresses of the machine",
    )
    parser.add_argument(
        "--tls-certificate",
        type=Path,
        metavar="FILE",
        help="serve HTTPS with this certificate chain in PEM; it is read again when it changes",
    )
    parser.add_argument(
        "--tls-key",
        type=Path,
        metavar="FILE",
        help="the certificate's key in PEM; default: in the file of the certificate",
    )
    parser.add_argument(
        "--tls-ca",
        type=Path,
        metavar="FILE",
        help="authorities in PEM of the other instances' certificates; default: those of the system",
    )
    parser.add_argument(
        "--login-config",
        type=Path,
        metavar="FILE",
        help="require basic authentication by users of the brokers: client properties of a listener on which"
        " they log in, in the form of --client-config and without a user; bootstrap.servers is"
        " --bootstrap-servers by default",
    )
    parser.add_argument("--topic", default="_schemas", help="where schemas are kept")
    parser.add_argument(
        "--group-id", default="schema-registry", help="the consumer group in which instances elect a leader"
    )
    parser.add_argument(
        "--session-timeout-ms",
        type=_whole_number,
        default=10_000,
        metavar="MS",
        help="how long a leader may be silent before another is elected",
    )
    return parser.parse_args()


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 10000")
    return int(text)


async def _serve(arguments: argparse.Namespace) -> None:
    host, port = listener_of(arguments.listen)
    tls, peers = _tls_of(arguments)
    url = advertised_url(arguments.listen, arguments.advertised_url, is_encrypted=tls is not None)
    properties = {} if arguments.client_config is None else properties_of_file(arguments.client_config)
    brokers = brokers_of(arguments.bootstrap_servers, properties)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    store = Store(brokers, arguments.topic)
    election = Election(brokers, arguments.topic, arguments.group_id, url, arguments.session_timeout_ms)
    login_brokers = _login_brokers(arguments, host, is_encrypted=tls is not None)
    server = Server(
        Registry(store, election),
        Metrics(),
        None if login_brokers is None else Logins(BrokerLogin(login_brokers)),
        None if peers is None else peers.context,
    )
    files = (brokers.tls, tls, peers, None if login_brokers is None else login_brokers.tls)
    reloading = asyncio.create_task(keep_current([each for each in files if each is not None]))
    runner = web.AppRunner(server.application(), access_log=None)
    await runner.setup()
    try:
        try:
            # Listens before the topic is read: probes want to know how far it is.
            context = None if tls is None else tls.context
            await web.TCPSite(runner, host or None, port, ssl_context=context).start()
        except OSError as error:
            raise StartupError(
                f"Cannot listen on {arguments.listen} ({error.strerror or error}): stop what listens there,"
                " or name another address with --listen."
            ) from error
        starting = asyncio.create_task(store.start())
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            election.start()
            await stopped
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    finally:
        reloading.cancel()
        await election.stop()
        await runner.cleanup()
        await store.stop()


def _tls_of(arguments: argparse.Namespace) -> tuple[TlsFiles | None, TlsFiles | None]:
    """What the HTTP API shows, and what it trusts of the other instances; None without TLS."""
    if arguments.tls_certificate is None:
        for name in ("tls_key", "tls_ca"):
            if getattr(arguments, name) is not None:
                raise StartupError(f"--{name.replace('_', '-')} needs --tls-certificate, too.")
        return None, None
    shown = TlsFiles(server_context, certificate=arguments.tls_certificate, key=arguments.tls_key)
    return shown, TlsFiles(client_context(arguments.tls_ca), authorities=arguments.tls_ca)


def _login_brokers(arguments: argparse.Namespace, host: str, *, is_encrypted: bool) -> Brokers | None:
    """Where users log in; None if the API has no authentication."""
    if arguments.login_config is None:
        return None
    if not is_encrypted and not is_loopback(host):
        raise StartupError(
            "--login-config without --tls-certificate would send passwords in the clear: add a certificate,"
            " or listen on 127.0.0.1 behind a proxy with TLS."
        )
    properties = properties_of_file(arguments.login_config)
    servers = properties.get("bootstrap.servers", arguments.bootstrap_servers)
    brokers = login_brokers_of(servers, properties)
    if brokers.mechanism is None:
        raise StartupError(
            f"{arguments.login_config} has security.protocol={brokers.protocol}, which has no login: name a"
            " listener with SASL_SSL or SASL_PLAINTEXT."
        )
    return brokers


if __name__ == "__main__":
    sys.exit(main())
