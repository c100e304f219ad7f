"""The operator's HTTP port: /healthz for Kubernetes, /metrics for Prometheus."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client import generate_latest

from mainstem_operator.runtime.metrics import Metrics

if TYPE_CHECKING:
    from mainstem_operator.runtime.handlers import Reconciler

_SILENCE_SECONDS: Final = 600.0
"""Every resync ends within this, unless it hangs."""


async def serve(port: int, metrics: Metrics, reconciler: Reconciler) -> None:
    """Serve until cancelled."""

    async def healthz(_: web.Request) -> web.Response:
        stuck = reconciler.stuck_seconds()
        if stuck > _SILENCE_SECONDS:
            return web.json_response({"reason": f"nothing was reconciled for {stuck:.0f} s"}, status=503)
        return web.json_response({"heardSecondsAgo": round(time.monotonic() - reconciler.heard)})

    async def exposition(_: web.Request) -> web.Response:
        metrics.queue.set(len(reconciler.queue))
        text = generate_latest(metrics.registry)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/metrics", exposition)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
