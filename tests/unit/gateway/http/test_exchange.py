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
from tests.unit.gateway.house import VL, House, house, question
from tests.unit.sidecar.node import until


class Client:
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


class Speaker:
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
def speaker() -> Speaker:
    return Speaker()


@pytest.fixture
async def talking(tmp_path: Path, speaker: Speaker) -> AsyncIterator[House]:
    async with house(tmp_path) as made:
        made.serve(VL)
        await made.executor(VL, "EL", "vision", "thinker", thinker=speaker)
        yield made


async def statuses(home: House) -> list[str]:
    found = [json.loads(record.data) for record in await home.bus.read_records("omnibus.inv.>")]
    return [record["status"] for record in found if record.get("kind") == "end"]


async def wait_statuses(home: House) -> list[str]:
    """Wait for the statuses; executors first report their wasted work."""

    async def has_status() -> bool:
        return bool(await statuses(home))

    await until(has_status)
    return await statuses(home)


@pytest.mark.parametrize("calls_back", [False, True], ids=["watched", "called back"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_stops_everything(talking: House, speaker: Speaker, stream: bool, calls_back: bool):
    client = Client(question(VL, "hi", stream=stream), calls_back)
    serving = asyncio.ensure_future(talking.app(client.scope, client.receive, client.send))
    await asyncio.wait_for(speaker.spoke.wait(), 10)

    client.leave()

    await asyncio.wait_for(serving, 10)
    await until(lambda: speaker.stopped)
    assert await wait_statuses(talking) == ["cancelled"]
    await talking.emptied()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_after_its_answer_changes_nothing(talking: House, speaker: Speaker, stream: bool):
    client = Client(question(VL, "hi", stream=stream), calls_back=True)
    speaker.go_on.set()

    await asyncio.wait_for(talking.app(client.scope, client.receive, client.send), 10)
    client.leave()

    await talking.emptied()
    assert await statuses(talking) == ["done"]


async def test_a_server_that_gives_up_a_request_cancels_it(talking: House, speaker: Speaker):
    client = Client(question(VL, "hi"))
    serving = asyncio.ensure_future(talking.app(client.scope, client.receive, client.send))
    await asyncio.wait_for(speaker.spoke.wait(), 10)

    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)

    await talking.emptied()
    assert await statuses(talking) == ["cancelled"]


async def test_a_client_that_leaves_before_it_has_asked_is_no_request(talking: House):
    client = Client(question(VL, "hi"))
    client._asked = True
    client.leave()

    await asyncio.wait_for(talking.app(client.scope, client.receive, client.send), 10)

    assert client.messages == []
    assert talking.dispatcher.inflight_count == 0
    assert await talking.bus.read_records("omnibus.inv.>") == []


@pytest.mark.parametrize("calls_back", [False, True], ids=["watched", "called back"])
async def test_a_client_that_leaves_while_its_media_are_fetched_is_no_request(talking: House, calls_back: bool):
    connected, closed = asyncio.Event(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()  # until the fetch is cancelled
        closed.set()
        writer.close()

    talking.chat._fetcher = Fetcher(FetchRules(allow_http=True, allow_private=True, ports=None))
    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a.png"
        seen = [{"type": "image_url", "image_url": {"url": url}}]
        client = Client(question(VL, seen), calls_back)
        serving = asyncio.ensure_future(talking.app(client.scope, client.receive, client.send))
        await asyncio.wait_for(connected.wait(), 10)

        client.leave()

        await asyncio.wait_for(serving, 10)
        await asyncio.wait_for(closed.wait(), 10)
    assert client.messages == []
    assert await statuses(talking) == []
    await talking.emptied()


async def test_a_client_that_reads_nothing_holds_nothing_past_its_deadline(tmp_path: Path, speaker: Speaker):
    async with house(tmp_path, deadline=0.3) as home:
        home.serve(VL)
        await home.executor(VL, "EL", "vision", "thinker", thinker=speaker)
        client, reads = Client(question(VL, "hi", stream=True)), asyncio.Event()

        async def send(message: dict[str, Any]) -> None:
            if client.messages:  # the head fits into its window
                await reads.wait()
            client.messages.append(message)

        serving = asyncio.ensure_future(home.app(client.scope, client.receive, send))
        await until(lambda: speaker.stopped)

        await home.emptied()
        assert await statuses(home) == ["expired"]
        assert len(client.messages) == 1
        reads.set()
        await asyncio.wait_for(serving, 10)
        assert '"code":"deadline_exceeded"' in client.text


async def test_a_stream_that_runs_out_of_time_says_so_and_ends(tmp_path: Path, speaker: Speaker):
    async with house(tmp_path, deadline=0.2) as home:
        home.serve(VL)
        await home.executor(VL, "EL", "vision", "thinker", thinker=speaker)
        client = Client(question(VL, "hi", stream=True))

        await asyncio.wait_for(home.app(client.scope, client.receive, client.send), 10)

        assert '"code":"deadline_exceeded"' in client.text
        assert client.messages[-1] == {"type": "http.response.body", "body": b""}
        assert await wait_statuses(home) == ["expired"]
        await home.emptied()


async def test_nothing_is_sent_after_the_end(talking: House, speaker: Speaker):
    speaker.go_on.set()
    client = Client(question(VL, "hi", stream=True))

    await asyncio.wait_for(talking.app(client.scope, client.receive, client.send), 10)

    kinds = [message["type"] for message in client.messages]
    assert kinds.count("http.response.start") == 1
    assert [message.get("more_body", False) for message in client.messages[1:]][-1] is False
    assert client.text.endswith("data: [DONE]\n\n")


async def test_outcome_and_time_are_counted_once(talking: House, speaker: Speaker):
    async def count() -> float:
        lines = (await talking.http.get("/metrics")).text.splitlines()
        wanted = f'omnibus_requests_total{{code="ok",model="{VL}"}}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(wanted))

    speaker.go_on.set()
    before = await count()

    await talking.ask()

    assert await count() == before + 1
