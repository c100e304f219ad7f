"""Runs the operator: `python -m mainstem_operator`, until SIGTERM or SIGINT.

Its settings are environment variables: WATCH_NAMESPACES (comma separated; empty for all), LOG_LEVEL,
BROKER_IMAGE, ZOOKEEPER_IMAGE, SPARK_IMAGE, IMAGE_PULL_SECRETS (names of Secrets, comma separated),
IMAGE_PULL_POLICY, POD_NAMESPACE, POD_NAME and LEASE_NAME (for the Lease), RESYNC_S, LEADER_ELECTION (true
when there are several replicas), HTTP_PORT (8080; /healthz and /metrics), CLUSTER_DOMAIN (cluster.local; of
Kubernetes' DNS). Log lines are JSON on standard error. Exit code 1 if it could not start, or lost what it
needs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import kopf
import structlog

from mainstem_operator import definitions
from mainstem_operator.api import names
from mainstem_operator.api.clusters import Images
from mainstem_operator.brokers.health import Health
from mainstem_operator.kubernetes.client import Kube, Refused
from mainstem_operator.kubernetes.observe import Addresses, Observer, ServiceAddresses
from mainstem_operator.runtime.context import Context
from mainstem_operator.runtime.handlers import Reconciler, registry_for, settings
from mainstem_operator.runtime.lease import Lease
from mainstem_operator.runtime.left_namespaces import leave
from mainstem_operator.runtime.metrics import Metrics
from mainstem_operator.runtime.web import serve
from mainstem_operator.uninstall import let_go_with

logger = structlog.get_logger(__name__)

_RESYNC_SECONDS: Final = 120.0
_RELEASE_SECONDS: Final = 5.0
_PORT_MAX: Final = 65_535
_DOMAIN_LABEL: Final = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN: Final = re.compile(rf"(?:{_DOMAIN_LABEL}[.])*{_DOMAIN_LABEL}")
_DOMAIN_MAX: Final = 253  # RFC 1035


@dataclass(frozen=True, slots=True)
class Options:
    """The environment, read once."""

    namespaces: tuple[str, ...] = ()
    images: Images = field(default_factory=Images)
    resync_seconds: float = _RESYNC_SECONDS
    leader_election: bool = False
    pod_namespace: str = "default"
    pod_name: str = "mainstem-operator"
    lease_name: str = "mainstem-operator"
    http_port: int = 8080
    log_level: str = "info"
    cluster_domain: str = names.CLUSTER_DOMAIN

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Options:
        """The options in `environment`.

        Raises:
            ValueError: with the variable and what is wrong with it.
        """
        get = environment.get
        level = get("LOG_LEVEL", "info").lower()
        if level not in ("debug", "info", "warning", "error"):
            raise ValueError(f"LOG_LEVEL must be debug, info, warning or error, not {level!r}.")
        return cls(
            namespaces=_names(get("WATCH_NAMESPACES", "")),
            images=Images(
                get("BROKER_IMAGE") or Images().broker,
                get("ZOOKEEPER_IMAGE") or Images().zookeeper,
                get("SPARK_IMAGE") or Images().spark,
                _names(get("IMAGE_PULL_SECRETS", "")),
                get("IMAGE_PULL_POLICY", ""),
            ),
            resync_seconds=_seconds("RESYNC_S", get("RESYNC_S") or str(_RESYNC_SECONDS)),
            leader_election=get("LEADER_ELECTION", "").lower() == "true",
            pod_namespace=get("POD_NAMESPACE") or "default",
            pod_name=get("POD_NAME") or f"{os.uname().nodename}-{os.getpid()}",
            lease_name=get("LEASE_NAME") or "mainstem-operator",
            http_port=_port("HTTP_PORT", get("HTTP_PORT") or "8080"),
            log_level=level,
            cluster_domain=_domain("CLUSTER_DOMAIN", get("CLUSTER_DOMAIN") or names.CLUSTER_DOMAIN),
        )


def _names(text: str) -> tuple[str, ...]:
    """The names in a list that is separated by commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]+(\.[0-9]*)?", text):
        raise ValueError(f"{name} must be a number of seconds, not {text!r}.")
    return float(text)


def _port(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > _PORT_MAX:
        raise ValueError(f"{name} must be a port from 0 to {_PORT_MAX}, not {text!r}.")
    return int(text)


def _domain(name: str, text: str) -> str:
    if not _DOMAIN.fullmatch(text) or len(text) > _DOMAIN_MAX:
        raise ValueError(
            f"{name} must be a DNS name such as cluster.local, in lower case and without a dot at its end,"
            f" not {text!r}."
        )
    return text


def main() -> int:
    try:
        options = Options.read(os.environ)
    except ValueError as error:
        print(f"mainstem operator: {error}", file=sys.stderr)  # noqa: T201  # a person reads this one
        return 1
    configure_logging(options.log_level)
    return asyncio.run(_start(options))


async def _start(options: Options) -> int:
    kube = await Kube.connect()
    try:
        lacking = await definitions.lacking(kube)
    finally:
        await kube.close()
    if lacking is not None:
        logger.error("definitions are missing or too old", reason=lacking)
        return 1
    return await run(options, ServiceAddresses(), asyncio.Event())


async def run(
    options: Options, addresses: Addresses, stop: asyncio.Event, health: Health | None = None
) -> int:
    """Run until `stop` is set, or a signal comes; the exit code."""
    health, metrics = health or Health(), Metrics()
    kube = await Kube.connect(metrics)
    lease = Lease(kube, options.pod_namespace, options.lease_name, options.pod_name)
    may_act = lease.still_mine if options.leader_election else _always
    context = Context(
        kube,
        Observer(kube, health, addresses),
        addresses,
        options.images,
        metrics,
        may_act,
        options.pod_namespace,
        options.cluster_domain,
    )
    reconciler = Reconciler(context, options.resync_seconds)
    ready, acting = asyncio.Event(), asyncio.Event()
    os.environ.setdefault("USER", names.FIELD_MANAGER)  # kopf asks who runs it, and our uid has no name

    async def leading() -> None:
        await ready.wait()
        if options.leader_election:
            await lease.wait()
        metrics.leading.set(1)
        acting.set()

    async def leave_namespaces() -> None:
        await acting.wait()
        await leave(kube, lease, options.namespaces, options.resync_seconds)

    leaving = asyncio.create_task(leave_namespaces(), name="left namespaces")
    tasks = {
        asyncio.create_task(
            kopf.operator(
                registry=registry_for(reconciler),
                settings=settings(),
                clusterwide=not options.namespaces,
                namespaces=options.namespaces,
                stop_flag=stop,
                ready_flag=ready,
            ),
            name="watches",
        ),
        asyncio.create_task(reconciler.run(leading, options.namespaces), name="reconciler"),
        asyncio.create_task(serve(options.http_port, metrics, reconciler), name="web"),
    }
    if options.leader_election:
        tasks.add(asyncio.create_task(lease.keep(), name="lease"))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in done if not task.cancelled() and task.exception() is not None]
        for task in failed:
            logger.error("ended", part=task.get_name(), error=str(task.exception()))
        return 0 if not failed and any(task.get_name() == "watches" for task in done) else 1
    finally:
        await _release_topics(kube, options.pod_namespace)
        for task in (leaving, *tasks):
            task.cancel()
        await asyncio.gather(leaving, *tasks, return_exceptions=True)
        if options.leader_election and lease.leading:
            await lease.release()
        await health.close()
        await kube.close()


async def _release_topics(kube: Kube, namespace: str) -> None:
    """If the namespace is being deleted, release its Topics at once: the rights to do so are deleted soon."""
    try:
        released = await asyncio.wait_for(let_go_with(kube, namespace), _RELEASE_SECONDS)
    except (Refused, OSError, TimeoutError) as error:
        logger.warning("could not see whether the namespace goes", error=str(error))
        return
    if released:
        logger.info("let go, because the namespace is being deleted", topics=released)


async def _always() -> bool:
    return True


def configure_logging(level: str) -> None:
    """Our lines and those of libraries as JSON, one a line."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer = structlog.processors.JSONRenderer(default=str)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


if __name__ == "__main__":
    sys.exit(main())
