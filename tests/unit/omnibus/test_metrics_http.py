"""The HTTP endpoint of every service: metrics, health, readiness, and its discovery file."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from omnibus import __version__
from omnibus.errors import Fatal
from omnibus.metrics.http import MAX_REQUEST_BYTES, ScrapeServer, remove_stale_files

HOST = "127.0.0.1"


@pytest.fixture
async def scrape() -> AsyncIterator[ScrapeServer]:
    server = ScrapeServer("tester")
    await server.start(HOST, 0)
    yield server
    await server.close()


async def send_request(scrape: ScrapeServer, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{scrape.port}") as http:
        return await http.request(method, path)


async def test_metrics_are_in_the_text_format_of_prometheus(scrape: ScrapeServer):
    answer = await send_request(scrape, "/metrics?name[]=x")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert f'omnibus_build_info{{service="tester",version="{__version__}"}} 1.0' in answer.text
    assert "process_resident_memory_bytes" in answer.text


async def test_a_service_is_alive_before_it_is_ready(scrape: ScrapeServer):
    before = [(await send_request(scrape, path)).status_code for path in ("/health", "/readyz")]
    scrape.set_ready(True)
    then = await send_request(scrape, "/readyz")
    metrics = (await send_request(scrape, "/metrics")).text
    scrape.set_ready(False)

    assert before == [200, 503]
    assert then.status_code == 200
    assert 'omnibus_ready{service="tester"} 1.0' in metrics
    assert (await send_request(scrape, "/readyz")).status_code == 503


@pytest.mark.parametrize(("path", "method", "status"), [("/", "GET", 404), ("/metrics", "POST", 405)])
async def test_nothing_else_is_there(scrape: ScrapeServer, path: str, method: str, status: int):
    answer = await send_request(scrape, path, method)

    assert answer.status_code == status


@pytest.mark.parametrize(
    "request_bytes", [b"", b"\r\n\r\n", b"GET /metrics", b"\x16\x03\x01", b"GET /" + b"x" * 2 * MAX_REQUEST_BYTES]
)
async def test_whoever_does_not_speak_http_is_sent_away(scrape: ScrapeServer, request_bytes: bytes):
    reader, writer = await asyncio.open_connection(HOST, scrape.port)
    writer.write(request_bytes)
    writer.write_eof()
    async with asyncio.timeout(10):
        response = await reader.read()
    writer.close()

    assert not response or response.startswith(b"HTTP/1.1 405")
    assert (await send_request(scrape, "/health")).status_code == 200


async def test_a_taken_port_is_said(scrape: ScrapeServer):
    with pytest.raises(Fatal, match=f"{HOST}:{scrape.port}"):
        await ScrapeServer("other").start(HOST, scrape.port)


async def test_prometheus_finds_it_by_a_file_as_long_as_it_lives(scrape: ScrapeServer, tmp_path: Path):
    scrape.write_discovery_file(str(tmp_path / "metrics"), HOST)
    [file] = (tmp_path / "metrics").iterdir()
    targets = json.loads(file.read_text())
    await scrape.close()

    assert targets == [{"targets": [f"{HOST}:{scrape.port}"], "labels": {"service": "tester"}}]
    assert file.name == f"tester-{os.getpid()}.json"
    assert not file.exists()


async def test_what_killed_processes_left_is_swept_away(tmp_path: Path):
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    for name in (f"llm-{process.pid}.json", f"llm-{os.getpid()}.json", "mine.json", "a-b.json"):
        (tmp_path / name).write_text("[]")

    remove_stale_files(str(tmp_path))

    assert {file.name for file in tmp_path.iterdir()} == {f"llm-{os.getpid()}.json", "mine.json", "a-b.json"}
