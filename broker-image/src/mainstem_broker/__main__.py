"""Runs one broker: `python -m mainstem_broker server.properties [--override name=value ...]`.

Reads the settings, puts the broker together, runs it until SIGTERM or SIGINT. Log lines are JSON on
standard error. Exit code 0 after a clean stop, 1 if the broker could not start or had to give up.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Final

import structlog
import uvloop

from mainstem_broker.compiled import use_compiled
from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.properties import parse_properties
from mainstem_broker.config.references import filled_in
from mainstem_broker.errors import InvalidSetting, ProtocolError, StartupError
from mainstem_broker.runtime.log_level import LogLevel, drop_below_level, set_log_level
from mainstem_broker.runtime.memory import collect_rarely, keep_freed_blocks

THREAD_SWITCH_S: Final = 0.0005
"""Python's own 5 ms add up to a tenth of a second where one request takes several turns of the loop."""


def main() -> int:
    arguments = _parse_arguments()
    _configure_logging(arguments.log_level)
    keep_freed_blocks()
    # The loop waits this long for a thread that decodes records or writes metrics, whenever both want to run.
    sys.setswitchinterval(THREAD_SWITCH_S)
    try:
        config = _read_config(arguments.properties, arguments.override)
        uvloop.run(_serve(config))
    except (StartupError, InvalidSetting) as error:
        print(f"mainstem broker: {error}", file=sys.stderr)  # noqa: T201  # a person reads this one
        return 1
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mainstem_broker", description="Run one Mainstem broker.")
    parser.add_argument(
        "properties",
        type=Path,
        help="settings, as in Kafka's server.properties; ${env:NAME} and ${file:PATH:NAME} are filled in",
    )
    parser.add_argument(
        "--override", action="append", default=[], metavar="NAME=VALUE", help="a setting above the file's"
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="least level logged",
    )
    return parser.parse_args()


def _read_config(path: Path, overrides: list[str]) -> BrokerConfig:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"The properties file {path} cannot be read: {error}.") from error
    settings = parse_properties(text)
    for override in overrides:  # as they are: escapes are of files
        name, separator, value = override.partition("=")
        if not name.strip() or not separator:
            raise StartupError(f"--override {override!r} is not of the form name=value.")
        settings[name.strip()] = value.strip()
    config = BrokerConfig(filled_in(settings, os.environ))
    config.topic({})  # a topic default that does not fit is found out now
    for name in config.unknown:
        structlog.get_logger(__name__).warning("unknown setting ignored", name=name)
    return config


async def _serve(config: BrokerConfig) -> None:
    # kio registers its types with hypothesis wherever tests have that installed: a third of the start-up
    # (0.37 s of imports with it, 0.23 s without). None makes its import fail, which kio expects.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # documented, but not typed
    is_compiled = use_compiled()
    from mainstem_broker.server.broker import Broker

    structlog.get_logger(__name__).info("starting", compiled=is_compiled)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = Broker(config)
    starting = asyncio.create_task(broker.start())
    stopped = asyncio.create_task(stopping.wait())
    failed = asyncio.create_task(broker.failed.wait())
    try:
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            try:
                starting.result()
            except ProtocolError as error:
                raise StartupError(str(error)) from error
            collect_rarely()
            await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                raise StartupError(
                    "The last data directory failed, so this broker stops: see to its disks, or name others"
                    " in log.dirs, and start it again."
                )
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await broker.stop()


def _configure_logging(level: str) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    warnings.filterwarnings("ignore", message="No chroot path exists")  # kazoo's; we make it
    warnings.filterwarnings("ignore", module="kazoo")  # of a chroot that is missing, and that we create
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # what it warns of, we log ourselves
    set_log_level(LogLevel["WARN" if level == "warning" else level.upper()])
    structlog.configure(
        processors=[
            drop_below_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


if __name__ == "__main__":
    sys.exit(main())
