"""One request over ASGI ends exactly once."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.executor.runner import Job
from omnibus_gateway.http.server import ON_LEFT
from omnibus_gateway.media.fetcher import Fetcher, FetchRules
from tests.unit.gateway.house import VL, ToyGateway, build_chat_body, start_toy_gateway
from tests.unit.sidecar.node import wait_until


class ExchangeClient:
    """An ASGI client that can disconnect, with or without server callbacks."""

    def __init__(self, body: dict[str, Any], calls_back: bool = False) -> None:
        self._body = json.dumps(body).encode()
        self._asked = False
        self._gone = asyncio.Event()
        self.messages: list[dict[str, Any]] = []
        self.scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions",
            "query_string": b"", "http_version": "1.1", "scheme": "http", "server": ("gateway", 80), "client": ("c", 1),
            "root_path": "", "headers": [(b"content-length", b"%d" % len(self._body))],
        }  # fmt: skip
        if calls_back:
            self.scope[ON_LEFT] = None

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    def leave(self) -> None:
        self._gone.set()
        if self.scope.get(ON_LEFT):
            self.scope[ON_LEFT]()

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.messages).decode()


class ExchangeSpeaker:
    """A thinker that writes a word and continues on a signal."""

    def __init__(self) -> None:
        self.spoke = asyncio.Event()
        self.go_on = asyncio.Event()
        self.stopped = False

    async def __call__(self, job: Job) -> None:
        await job.send("text", {"text": "first "})
        self.spoke.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.stopped = True
            raise
        job.close("text", {"finish_reason": "stop", "usage": {}})


@pytest.fixture
def speaker() -> ExchangeSpeaker:
    return ExchangeSpeaker()


@pytest.fixture
async def streaming_gateway(tmp_path: Path, speaker: ExchangeSpeaker) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path) as gateway:
        gateway.serve(VL)
        await gateway.executor(VL, "EL", "vision", "thinker", thinker=speaker)
        yield gateway


async def read_statuses(home: ToyGateway) -> list[str]:
    records = [json.loads(record.data) for record in await home.bus.read_records("omnibus.inv.>")]
    return [record["status"] for record in records if record.get("kind") == "end"]


async def wait_statuses(home: ToyGateway) -> list[str]:
    """Wait for the statuses; executors first report their wasted work."""

    async def has_status() -> bool:
        return bool(await read_statuses(home))

    await wait_until(has_status)
    return await read_statuses(home)


@pytest.mark.parametrize("calls_back", [False, True], ids=["watched", "called back"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_stops_everything(
    streaming_gateway: ToyGateway, speaker: ExchangeSpeaker, stream: bool, calls_back: bool
):
    client = ExchangeClient(build_chat_body(VL, "hi", stream=stream), calls_back)
    serving = asyncio.ensure_future(streaming_gateway.app(client.scope, client.receive, client.send))
    await asyncio.wait_for(speaker.spoke.wait(), 10)

    client.leave()

    await asyncio.wait_for(serving, 10)
    await wait_until(lambda: speaker.stopped)
    assert await wait_statuses(streaming_gateway) == ["cancelled"]
    await streaming_gateway.emptied()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_after_its_answer_changes_nothing(
    streaming_gateway: ToyGateway, speaker: ExchangeSpeaker, stream: bool
):
    client = ExchangeClient(build_chat_body(VL, "hi", stream=stream), calls_back=True)
    speaker.go_on.set()

    await asyncio.wait_for(streaming_gateway.app(client.scope, client.receive, client.send), 10)
    client.leave()

    await streaming_gateway.emptied()
    assert await read_statuses(streaming_gateway) == ["done"]


async def test_a_server_that_gives_up_a_request_cancels_it(streaming_gateway: ToyGateway, speaker: ExchangeSpeaker):
    client = ExchangeClient(build_chat_body(VL, "hi"))
    serving = asyncio.ensure_future(streaming_gateway.app(client.scope, client.receive, client.send))
    await asyncio.wait_for(speaker.spoke.wait(), 10)

    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)

    await streaming_gateway.emptied()
    assert await read_statuses(streaming_gateway) == ["cancelled"]


async def test_a_client_that_leaves_before_it_has_asked_is_no_request(streaming_gateway: ToyGateway):
    client = ExchangeClient(build_chat_body(VL, "hi"))
    client._asked = True
    client.leave()

    await asyncio.wait_for(streaming_gateway.app(client.scope, client.receive, client.send), 10)

    assert client.messages == []
    assert streaming_gateway.dispatcher.inflight_count == 0
    assert await streaming_gateway.bus.read_records("omnibus.inv.>") == []


@pytest.mark.parametrize("calls_back", [False, True], ids=["watched", "called back"])
async def test_a_client_that_leaves_while_its_media_are_fetched_is_no_request(
    streaming_gateway: ToyGateway, calls_back: bool
):
    connect_event, close_event = asyncio.Event(), asyncio.Event()

    async def hold_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connect_event.set()
        await reader.read()  # until the fetch is cancelled
        close_event.set()
        writer.close()

    streaming_gateway.chat._fetcher = Fetcher(FetchRules(allow_http=True, allow_private=True, ports=None))
    async with await asyncio.start_server(hold_connection, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a.png"
        content = [{"type": "image_url", "image_url": {"url": url}}]
        client = ExchangeClient(build_chat_body(VL, content), calls_back)
        serving = asyncio.ensure_future(streaming_gateway.app(client.scope, client.receive, client.send))
        await asyncio.wait_for(connect_event.wait(), 10)

        client.leave()

        await asyncio.wait_for(serving, 10)
        await asyncio.wait_for(close_event.wait(), 10)
    assert client.messages == []
    assert await read_statuses(streaming_gateway) == []
    await streaming_gateway.emptied()


async def test_a_client_that_reads_nothing_holds_nothing_past_its_deadline(tmp_path: Path, speaker: ExchangeSpeaker):
    async with start_toy_gateway(tmp_path, deadline=0.3) as home:
        home.serve(VL)
        await home.executor(VL, "EL", "vision", "thinker", thinker=speaker)
        client, reads = ExchangeClient(build_chat_body(VL, "hi", stream=True)), asyncio.Event()

        async def send_slowly(message: dict[str, Any]) -> None:
            if client.messages:  # the head fits into its window
                await reads.wait()
            client.messages.append(message)

        serving = asyncio.ensure_future(home.app(client.scope, client.receive, send_slowly))
        await wait_until(lambda: speaker.stopped)

        await home.emptied()
        assert await read_statuses(home) == ["expired"]
        assert len(client.messages) == 1
        reads.set()
        await asyncio.wait_for(serving, 10)
        assert '"code":"deadline_exceeded"' in client.text


async def test_a_stream_that_runs_out_of_time_says_so_and_ends(tmp_path: Path, speaker: ExchangeSpeaker):
    async with start_toy_gateway(tmp_path, deadline=0.2) as home:
        home.serve(VL)
        await home.executor(VL, "EL", "vision", "thinker", thinker=speaker)
        client = ExchangeClient(build_chat_body(VL, "hi", stream=True))

        await asyncio.wait_for(home.app(client.scope, client.receive, client.send), 10)

        assert '"code":"deadline_exceeded"' in client.text
        assert client.messages[-1] == {"type": "http.response.body", "body": b""}
        assert await wait_statuses(home) == ["expired"]
        await home.emptied()


async def test_nothing_is_sent_after_the_end(streaming_gateway: ToyGateway, speaker: ExchangeSpeaker):
    speaker.go_on.set()
    client = ExchangeClient(build_chat_body(VL, "hi", stream=True))

    await asyncio.wait_for(streaming_gateway.app(client.scope, client.receive, client.send), 10)

    kinds = [message["type"] for message in client.messages]
    assert kinds.count("http.response.start") == 1
    assert [message.get("more_body", False) for message in client.messages[1:]][-1] is False
    assert client.text.endswith("data: [DONE]\n\n")


async def test_outcome_and_time_are_counted_once(streaming_gateway: ToyGateway, speaker: ExchangeSpeaker):
    async def count_requests() -> float:
        lines = (await streaming_gateway.http.get("/metrics")).text.splitlines()
        prefix = f'omnibus_requests_total{{code="ok",model="{VL}"}}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(prefix))

    speaker.go_on.set()
    before = await count_requests()

    await streaming_gateway.ask()

    assert await count_requests() == before + 1
