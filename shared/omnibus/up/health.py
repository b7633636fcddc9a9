"""Probes of running processes, for ``omnibus.up.watchdog``.

Probes of services that send no event when they are ready. The caller sets the deadline.
"""

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from omnibus.bus import Bus, subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.cluster.presence import follow_events
from omnibus.up import fork_client
from omnibus.up.ports import LOOPBACK
from omnibus.up.watchdog import find_forked_pid

_READY = "200"


async def fetch_status(host: str, port: int, path: str) -> str:
    """Return the HTTP status of ``path``, empty if the connection fails.

    This waits for the response without a time limit: the caller sets one.
    """
    words = (await _http_get(host, port, path)).split(b" ", 2)
    return words[1].decode("latin-1") if len(words) > 1 else ""


async def fetch_body(host: str, port: int, path: str) -> bytes:
    """Return the HTTP body of ``path``, empty as in ``fetch_status``."""
    return (await _http_get(host, port, path)).partition(b"\r\n\r\n")[2]


async def _http_get(host: str, port: int, path: str) -> bytes:
    try:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            return await reader.read(-1)  # our own servers end it
        finally:
            writer.close()
    except OSError:
        return b""


async def fork_server_answers(path: str, _: int) -> bool:
    """Return whether the fork server at the socket ``path`` serves its connections."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(fork_client.PING)
            return await reader.read(1) == b""
        finally:
            writer.close()
    except OSError:
        return False


class Endpoints:
    """Health endpoints of the services of one run. Each service writes its port to a file in ``directory``."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._executors: dict[str, int] = {}

    async def listen(self, bus: Bus) -> None:
        """Follow the process ids of executors: a forked one is not a child of the supervisor."""
        await follow_events(bus, {subjects.EXECUTOR: self._on_status})

    async def service_answers(self, pid: int) -> bool:
        """Return whether the service in process ``pid`` has started and responds. ``pid`` may be that of its proxy."""
        address = self._find_address(find_forked_pid(pid))
        return address is not None and await fetch_status(*address, "/readyz") == _READY

    async def executor_answers(self, id: str, _: int) -> bool:
        """Return whether executor ``id`` has started and responds."""
        pid = self._executors.get(id)
        return pid is not None and await self.service_answers(pid)

    def _on_status(self, executor: ExecutorStatus) -> None:
        self._executors[executor.id] = executor.pid

    def _find_address(self, pid: int) -> tuple[str, int] | None:
        """Return host and port of the endpoint of ``pid``, if any."""
        for file in self._directory.glob(f"*-{pid}.json"):
            try:
                host, _, port = json.loads(file.read_bytes())[0]["targets"][0].rpartition(":")
                return host, int(port)
            except (OSError, ValueError, LookupError, TypeError):  # the process has just ended
                continue
        return None


_RETRY_PAUSE_SECONDS = 0.02  # seconds between two attempts
_ANSWER_TIMEOUT_SECONDS = 2.0  # seconds


async def wait_for_port(port: int) -> None:
    """Wait until a server accepts connections on a loopback port."""
    while True:
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(_RETRY_PAUSE_SECONDS)


async def wait_for_socket(path: str) -> None:
    """Wait until a server accepts connections at a Unix socket."""
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(_RETRY_PAUSE_SECONDS)


def not_ready(url: str, tls_context: ssl.SSLContext | None = None) -> str:
    """Return the missing parts that ``/readyz`` of the gateway reports. Returns the error if the request to ``url``
    fails, and an empty text if the gateway is ready."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_ANSWER_TIMEOUT_SECONDS, context=tls_context):  # noqa: S310 our own
            return ""
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read()).get("missing"))
    except OSError as error:
        return f"the gateway does not answer ({error})"
