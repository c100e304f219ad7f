"""`mainstem verify`: its options and its report; `trials/verification.py` does the work."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from mainstem.cli.number_options import integer
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    connect,
)
from mainstem.cli.output import Output, OutputFormat, facts
from mainstem.cli.sending_options import AcksChoice, TemporaryTopicPartitions, TemporaryTopicReplicas
from mainstem.errors import BadInput, CommandError
from mainstem.records.sending import Acks
from mainstem.times import duration_ms
from mainstem.trials.broker_watch import BrokerWatch, Outage
from mainstem.trials.temporary_topic import temporary_topic
from mainstem.trials.verification import Verification

_RECORDS: Final = 100_000


class Unfaithful(CommandError):
    """The cluster broke a promise; the details were printed before."""


def verify(
    records: Annotated[
        int | None,
        typer.Option("--records", **integer(1), help=f"How many records to send. Default: {_RECORDS:,}."),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration", metavar="TIME", help="Send for this long (30s, 10m), instead of --records."
        ),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option("--rate", **integer(1), help="Records per second, at most; unlimited by default."),
    ] = None,
    partitions: TemporaryTopicPartitions = 6,
    replication_factor: TemporaryTopicReplicas = None,
    acks: AcksChoice = Acks.ALL,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Send numbered records, read them back, and report lost, duplicate and reordered ones.

    Uses a temporary topic. Reports the longest pause and the brokers that went down meanwhile. Exits with
    code 1 when an acknowledged record is lost, duplicate or out of order. Ctrl-C ends the sending early;
    the records sent until then are verified.
    """
    if records is not None and duration is not None:
        raise BadInput("--records and --duration exclude each other: leave one of them out.")
    seconds = None if duration is None else _seconds(duration)
    count = None if seconds is not None else records or _RECORDS
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    with (
        temporary_topic(cluster, out.warn, "verify", partitions, replication_factor) as topic,
        BrokerWatch(cluster) as watch,
    ):
        run = Verification(cluster, topic, partitions, acks, out.warn)
        with out.progress("Sending", count) as advance, _interrupt_calls(run.stop_sending):
            run.send(count, seconds, rate, advance)
        with out.waiting("Waiting for the remaining records"):
            run.finish()
    verdict = run.verdict
    _show(out, run, watch.outages)
    if not verdict.flawless:
        raise Unfaithful(
            f"Of {verdict.acknowledged:,} acknowledged records {verdict.lost:,} were lost; "
            f"{verdict.duplicate:,} arrived twice, and {verdict.reordered:,} out of order."
        )


@contextmanager
def _interrupt_calls(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C call `stop`: an exception could come between the sending of a record and its account."""
    previous_handler = signal.signal(signal.SIGINT, lambda _number, _frame: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)


def _seconds(text: str) -> float:
    parsed_ms = duration_ms(text)
    if not parsed_ms:
        raise BadInput(f"--duration takes a time such as 30s, 10m or 1h30m, not {text!r}.")
    return parsed_ms / 1000


def _show(out: Output, run: Verification, outages: list[Outage]) -> None:
    verdict = run.verdict
    value: dict[str, Any] = {
        **asdict(verdict),
        "not_acknowledged": run.refusals,
        "seconds": round(run.send_seconds, 3),
        "longest_pause_seconds": round(run.longest_pause_seconds, 3),
        "outages": [{"broker": one.broker_id, "seconds": round(one.seconds, 3)} for one in outages],
        "flawless": verdict.flawless,
    }
    refused = verdict.sent - verdict.acknowledged
    reasons = "; ".join(f"{reason.rstrip('.')} ({count:,})" for reason, count in run.refusals.items())
    headline = {
        "Sent": f"{verdict.sent:,} records in {run.send_seconds:.1f} s",
        "Acknowledged": verdict.acknowledged,
        **({"Not acknowledged": f"{refused:,}: {reasons}"} if refused else {}),
        "Lost": verdict.lost,
        "Duplicate": verdict.duplicate,
        "Out of order": verdict.reordered,
        "Longest pause": f"{run.longest_pause_seconds:.1f} s",
        "Brokers down": [f"broker {one.broker_id} for {one.seconds:.1f} s" for one in outages] or "none",
    }
    out.result(value, facts(headline))
    for kind, examples in verdict.examples.items():
        out.problem(f"{kind}, as partition: number: {', '.join(examples)}")
    if run.last_read_error is not None:
        out.warn(f"the consumer reported meanwhile: {run.last_read_error}")
    if verdict.flawless:
        out.done("Every acknowledged record arrived once, and in order.")
