"""HTTP server of every service for probes: ``/metrics``, ``/health`` and ``/readyz``.

It runs in the event loop of the service, so a response shows that the loop runs. Values do not change while metrics are
read.
"""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path

from omnibus import __version__
from omnibus.errors import Fatal
from omnibus.metrics import PROCESS, render_exposition

#: Seconds for a client to send a request and read its response, and most bytes of a request.
REQUEST_TIMEOUT_SECONDS, MAX_REQUEST_BYTES = 10.0, 8192
_TEXT, _METRICS = "text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class ScrapeServer:
    """Server of the metrics and the readiness of ``service``. It listens after ``start``."""

    def __init__(self, service: str) -> None:
        self.port = 0
        self._service = service
        self._ready = False
        self._server: asyncio.Server | None = None
        self._discovery_file: Path | None = None
        PROCESS.build.labels(service, __version__).set(1)
        self.set_ready(False)

    def set_ready(self, ready: bool) -> None:
        """Set whether the service is ready."""
        self._ready = ready
        PROCESS.ready.labels(self._service).set(ready)

    async def start(self, host: str, port: int) -> None:
        """Start listening. Port 0 takes a free one. Raises ``Fatal`` if it cannot listen at the address."""
        try:
            self._server = await asyncio.start_server(self._serve_client, host, port, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            raise Fatal(f"cannot serve metrics on {host}:{port} ({error.strerror}): choose another port") from error
        self.port = self._server.sockets[0].getsockname()[1]

    def write_discovery_file(self, directory: str, host: str) -> None:
        """Write the address for Prometheus in the format of ``file_sd_configs``. ``close`` removes the file."""
        self._discovery_file = Path(directory) / f"{self._service}-{os.getpid()}.json"
        self._discovery_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_stale_files(directory)
        targets = [{"targets": [f"{host}:{self.port}"], "labels": {"service": self._service}}]
        fresh = self._discovery_file.with_suffix(".new")
        fresh.write_text(json.dumps(targets))
        fresh.replace(self._discovery_file)

    async def close(self) -> None:
        """Stop listening. Closing twice is harmless."""
        if self._discovery_file is not None:
            self._discovery_file.unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(
                    _encode_response(*self._route_request(head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")))
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # an invalid request gets no response
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _route_request(self, words: list[str]) -> tuple[int, str, bytes]:
        if len(words) != 3 or words[0] != "GET":
            return 405, _TEXT, b"send a GET\n"
        path = words[1].partition("?")[0]
        if path == "/metrics":
            return 200, _METRICS, render_exposition()
        if path == "/health":
            return 200, _TEXT, b"ok\n"
        if path == "/readyz":
            return (200, _TEXT, b"ready\n") if self._ready else (503, _TEXT, b"not ready\n")
        return 404, _TEXT, b"there is /metrics, /health and /readyz\n"


def remove_stale_files(directory: str) -> None:
    """Remove files of ``ScrapeServer.write_discovery_file`` that killed processes left."""
    for file in Path(directory).glob("*-*.json"):
        try:
            os.kill(int(file.stem.rpartition("-")[2]), 0)
        except ProcessLookupError:
            file.unlink(missing_ok=True)
        except (OSError, ValueError):  # a file or process of another user
            continue


def _encode_response(status: int, kind: str, body: bytes) -> bytes:
    lines = (f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Type: {kind}", f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body
