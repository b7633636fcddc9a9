"""One lifecycle for all services: ``startup``, serve until a signal, ``drain``, ``shutdown``."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any, Protocol

import uvloop

from omnibus.errors import OmnibusError, Rejected
from omnibus.metrics.http import ScrapeServer
from omnibus.process.spec import EXIT_MISCONFIGURED
from omnibus.settings import ServiceSettings, read_settings

log = logging.getLogger("omnibus")


class Service(Protocol):
    """A service as ``run_service`` drives it.

    Each step has a time limit. ``shutdown`` runs even if ``startup`` failed.
    """

    async def startup(self) -> None:
        """Acquire everything and become ready, or raise."""

    async def drain(self, seconds: float) -> None:
        """Reject new work, and finish accepted work within ``seconds``."""

    async def shutdown(self) -> None:
        """Release everything."""


def set_log_level(level: str) -> None:
    """Set the level of all loggers that have none of their own.

    ``logging`` resets a cache of each logger even if the level is the same, and a forked process would then have its
    own copies of them. Therefore the fork server calls this first.
    """
    root = logging.getLogger()
    if logging.getLevelName(root.level) != level:
        root.setLevel(level)


def run_service(name: str, make: Callable[[], Service]) -> int:
    """Start a service and run it until SIGINT or SIGTERM; return the exit code.

    An error that Omnibus raises on purpose is one line of the log. ``EXIT_MISCONFIGURED`` means that it is permanent.
    """
    try:
        settings = read_settings(ServiceSettings)
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
        set_log_level(settings.log_level)
        uvloop.run(_run_until_signal(name, make(), settings))
    except Rejected as error:
        log.error("%s cannot run: %s", name, error)
        return EXIT_MISCONFIGURED
    except OmnibusError as error:
        log.error("%s cannot run: %s", name, error)
        return 1
    return 0


async def _run_until_signal(name: str, service: Service, settings: ServiceSettings) -> None:
    stop = asyncio.Event()
    scrape = await _start_scrape_server(name, settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        starting = loop.create_task(service.startup())
        stopping = loop.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            await until_cancelled(starting)
            return
        starting.result()
        scrape.set_ready(True)
        await stopping
        scrape.set_ready(False)
        await service.drain(settings.drain_seconds(name))
    finally:
        await service.shutdown()
        await scrape.close()


async def _start_scrape_server(name: str, settings: ServiceSettings) -> ScrapeServer:
    """Start the server of metrics and health, if enabled.

    It covers the service from before its start until its end.
    """
    scrape = ScrapeServer(name)
    if settings.metrics_port or settings.metrics_dir:
        await scrape.start(settings.metrics_host, settings.metrics_port)
    if settings.metrics_dir:
        scrape.write_discovery_file(settings.metrics_dir, settings.metrics_host)
    return scrape


async def until_cancelled(work: asyncio.Task[Any]) -> None:
    """Cancel a background task and await its end.

    Raises the task's error, and ``CancelledError`` if the caller itself is cancelled meanwhile. Plainly awaiting
    ``work`` would take that cancellation for the end of ``work``, and the canceller would wait forever.
    """
    work.cancel()
    await asyncio.wait([work])
    if not work.cancelled():
        work.result()
