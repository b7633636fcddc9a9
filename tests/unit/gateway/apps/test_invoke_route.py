"""``POST /v1/apps/{name}/invoke``: answers, streams, errors and disconnects."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from omnibus_gateway.http.server import ON_LEFT
from tests.unit.gateway.apps.estate import COUNT, ECHO, AppCluster, AppGateway, read_stream_parts, start_app_cluster
from tests.unit.gateway.house import VL, read_error_body
from tests.unit.sidecar.node import wait_until

#: Writes its start and its end, of any kind, to files in the given directory.
ENDLESS = """
    import asyncio
    from pathlib import Path


    async def serve(request):
        Path(request, "begun").touch()
        try:
            {first}
            await asyncio.sleep(1000)
        finally:
            Path(request, "ended").touch()
"""

#: Asks the toy model, and counts.
TELL = """
    from collections.abc import AsyncIterator

    from omnibus.task import ChatInput, Encode, MLLM, Think

    TASK = MLLM(encoders={}, thinker=Think(model="toy-vl", component="thinker"))


    async def serve(request: str) -> AsyncIterator[str]:
        answer = await TASK(ChatInput.of(request, max_tokens=40))
        async for chunk in answer.text:
            yield chunk.text
"""


def read_count(name: str, code: str, text: str) -> float:
    """Return an app's request counter from a scrape; 0 if it is missing."""
    for line in text.splitlines():
        if line.startswith(f'omnibus_app_requests_total{{app="{name}",code="{code}"}}'):
            return float(line.split()[-1])
    return 0.0


async def test_a_stream_is_one_event_per_part(cluster: AppCluster, gate: AppGateway):
    cluster.write("count", COUNT)
    await gate.register("count")

    response = await gate.http.post("/v1/apps/count/invoke", json=3)

    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"]
    assert read_stream_parts(response) == [0, 1, 2, "[DONE]"]


async def test_an_empty_stream_is_whole(cluster: AppCluster, gate: AppGateway):
    cluster.write("count", COUNT)
    await gate.register("count")

    assert read_stream_parts(await gate.http.post("/v1/apps/count/invoke", json=0)) == ["[DONE]"]


async def test_a_stream_that_fails_ends_with_the_error_in_place_of_done(cluster: AppCluster, gate: AppGateway):
    cluster.write("count", COUNT)
    await gate.register("count")

    response = await gate.http.post("/v1/apps/count/invoke", json=6)

    *numbers, last = read_stream_parts(response)
    assert numbers == [0, 1, 2, 3, 4, 5]
    assert (last["error"]["code"], last["error"]["request_id"]) == ("app_failed", response.headers["x-request-id"])


@pytest.mark.parametrize(
    ("content", "status", "code"), [(b'"x"', 400, "bad_request"), (b"", 400, "bad_request"), (b"{", 400, "bad_request")]
)
async def test_what_fails_before_the_first_part_is_an_error_like_any_other(
    cluster: AppCluster, gate: AppGateway, content: bytes, status: int, code: str
):
    for name, text in (("count", COUNT), ("echo", ECHO)):
        cluster.write(name, text, by="one")
        await gate.register(name)

        response = await gate.http.post(f"/v1/apps/{name}/invoke", content=content)

        assert (response.status_code, read_error_body(response)["code"]) == (status, code)
        assert response.headers["x-request-id"] == read_error_body(response)["request_id"]


async def test_an_app_calls_tasks_and_its_parts_leave_as_they_come(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(VL)
    cluster.write("tell", TELL)
    await gate.register("tell")

    response = await gate.http.post("/v1/apps/tell/invoke", json="hello there")

    *chunks, end_mark = read_stream_parts(response)
    assert end_mark == "[DONE]"
    assert "".join(chunks).startswith("You said hello there [")
    assert len(chunks) > 3
    assert response.headers["x-omnibus-path"] in ("L", "EL")
    end_record = await cluster.home.ended(response.headers["x-request-id"])
    assert end_record.status == "done"
    await cluster.home.emptied()


async def test_an_app_that_nobody_knows_is_404_before_its_body_is_read(gate: AppGateway):
    response = await gate.http.post("/v1/apps/none/invoke", content=b"{")

    assert (response.status_code, read_error_body(response)["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/v1/apps//invoke", "/v1/apps/a/b/invoke", "/v1/apps/invoke", "/v1/apps/a/invoked"])
async def test_other_paths_are_none(gate: AppGateway, path: str):
    assert (await gate.http.post(path, json={})).status_code in (404, 405)


async def test_a_body_over_the_limit_is_413(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    await gate.register("echo")

    response = await gate.http.post(
        "/v1/apps/echo/invoke", content=b"{}", headers={"content-length": str(cluster.settings.max_body + 1)}
    )

    assert (response.status_code, read_error_body(response)["code"]) == (413, "too_large")


async def test_requests_are_counted_by_app_and_never_by_what_a_client_invents(cluster: AppCluster, gate: AppGateway):
    cluster.write("counted", COUNT)
    await gate.register("counted")

    for body in (1, 6, "x"):
        await gate.http.post("/v1/apps/counted/invoke", json=body)
    await gate.http.post("/v1/apps/invented/invoke", json=1)

    text = (await gate.http.get("/metrics")).text
    assert [read_count("counted", code, text) for code in ("ok", "app_failed", "bad_request")] == [1, 1, 1]
    assert "invented" not in text
    assert read_count("", "not_found", text) >= 1


# Disconnects


class InvokeClient:
    """A client that sends a request to ``name`` and disconnects on demand."""

    def __init__(self, gate: AppGateway, name: str, body: Any, with_word: bool) -> None:
        self.got: list[dict[str, Any]] = []
        self._gone = asyncio.Event()
        self._sent = False
        self._body = json.dumps(body).encode()
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": f"/v1/apps/{name}/invoke",
            "raw_path": b"",
            "query_string": b"",
            "headers": [],
        }
        if with_word:
            self.scope[ON_LEFT] = None
        self.task = asyncio.ensure_future(gate.app(self.scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.got.append(message)

    def leave(self) -> None:
        self._gone.set()
        if self.scope.get(ON_LEFT) is not None:
            self.scope[ON_LEFT]()


@pytest.mark.parametrize("first", ["pass", "yield 1"], ids=["whole", "stream"])
@pytest.mark.parametrize("with_word", [True, False], ids=["told", "watching"])
async def test_a_client_that_leaves_cancels_what_still_runs(
    cluster: AppCluster, gate: AppGateway, tmp_path: Path, first: str, with_word: bool
):
    cluster.write("endless", ENDLESS, first=first)
    await gate.register("endless")
    client = InvokeClient(gate, "endless", str(tmp_path), with_word)
    await wait_until(lambda: len(client.got) > 1 if "yield" in first else (tmp_path / "begun").exists())
    assert not (tmp_path / "ended").exists()

    client.leave()

    await wait_until((tmp_path / "ended").exists)
    await client.task
    bodies = b"".join(message.get("body", b"") for message in client.got)
    assert bodies == (b"data: 1\n\n" if "yield" in first else b"")
    text = (await gate.http.get("/metrics")).text
    assert read_count("endless", "cancelled", text) >= 1


async def test_a_request_past_its_deadline_is_504(tmp_path: Path, valkey_url: str):
    async with start_app_cluster(tmp_path, valkey_url, deadline=0.5) as cluster:
        gate = cluster.gateway()
        cluster.write("late", ENDLESS, first="pass")
        await gate.register("late")

        response = await gate.http.post("/v1/apps/late/invoke", json=str(tmp_path))

        assert (response.status_code, read_error_body(response)["code"]) == (504, "deadline_exceeded")
        await wait_until((tmp_path / "ended").exists)
        await gate.ask("DELETE", "/v1/apps/late")


async def test_json_of_too_many_values_does_not_reach_the_app(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    await gate.register("echo")

    rejection = await gate.http.post("/v1/apps/echo/invoke", content=b"[" + b"[],".join([b""] * 300_000) + b"[]]")

    assert (rejection.status_code, read_error_body(rejection)["code"]) == (413, "too_large")
