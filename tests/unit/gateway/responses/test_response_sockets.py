"""``/v1/responses`` over WebSockets, with the official client: lanes, connection state, limits, ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import websockets
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from omnibus.errors import BadRequest, TooLarge
from omnibus.store import Store
from omnibus_gateway.openai.responses.request import parse_response_request
from omnibus_gateway.openai.responses.socket_events import (
    SteerEvent,
    encode_error,
    encode_steer_failure,
    parse_socket_event,
    read_stream_id,
)
from omnibus_gateway.responses import connection
from tests.unit.gateway.house import TEXT, House, house
from tests.unit.gateway.realtime.test_connections import bearer, gated, refused
from tests.unit.gateway.responses_house import PATH, Pair, Slow, events_of, whole
from tests.unit.gateway.wires import PATIENCE, doorway
from tests.unit.sidecar.node import until


class Line:
    """A connection of a client that writes its own JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def create(self, input: Any = "hello there", **more: Any) -> None:
        await self.socket.send(
            json.dumps({"type": "response.create", "model": TEXT, "input": input, "seed": 5, **more})
        )

    async def next(self) -> dict[str, Any]:
        return dict(json.loads(await asyncio.wait_for(self.socket.recv(), PATIENCE)))

    async def response(self) -> list[dict[str, Any]]:
        """Return the events up to a response's end, or an error."""
        found = [await self.next()]
        while found[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
            found.append(await self.next())
        return found

    async def answer(self, input: Any, **more: Any) -> dict[str, Any]:
        await self.create(input, **more)
        last = (await self.response())[-1]
        return dict(last.get("response") or last)


@asynccontextmanager
async def line(home: House, **more: Any) -> AsyncIterator[Line]:
    async with (
        doorway(home) as door,
        websockets.connect(
            f"ws://localhost:{door.port}{PATH}", max_size=None, max_queue=None, **more
        ) as socket,  # a full queue would delay the closing handshake
    ):
        yield Line(socket)


def said(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


async def test_the_official_client_reads_the_same_events_as_those_of_a_stream(home: House):
    body = {"model": TEXT, "input": "hello there", "seed": 5, "stream": True}
    streamed = events_of((await home.http.post(PATH, json=body)).text)
    async with doorway(home) as door:
        client = openai.AsyncOpenAI(
            base_url=f"http://localhost:{door.port}/v1", api_key="none", _strict_response_validation=True
        )
        async with client.responses.connect() as socket:
            found: list[Any] = []
            for stream_id in ("a", ""):
                lane: Any = {"stream_id": stream_id} if stream_id else {}
                await socket.send(
                    {"type": "response.create", "model": TEXT, "input": "hello there", "seed": 5, **lane}  # type: ignore[typeddict-item]
                )
                async for event in socket:
                    found.append(event)
                    if event.type == "response.completed":
                        break
        await client.close()

    half = len(found) // 2
    lanes: list[tuple[str | None, list[Any]]] = [("a", found[:half]), (None, found[half:])]
    for lane_id, events in lanes:
        assert [event.type for event in events] == [event["type"] for event in streamed]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert {event.stream_id for event in events} == {lane_id}
        assert events[-1].response.output_text == "You said hello there [5] "
        kept = whole(await home.http.get(f"{PATH}/{events[-1].response.id}"))
        assert kept["output"] == events[-1].response.to_dict()["output"]
    await home.emptied()


async def test_lanes_go_side_by_side_and_each_in_its_order(pair: Pair):
    slow = Slow("one ", "two")
    await pair.serve(TEXT, thinker=slow)
    async with line(pair.first) as made:
        await made.create("first", stream_id="a")
        await made.create("second", stream_id="a")
        await made.create("third", stream_id="b")
        begun = [await made.next() for _ in range(2 * 5)]  # created ... the first word, in two lanes
        assert len(slow.known) == 2
        slow.go.set()
        ended = [(await made.response())[-1] for _ in range(3)]

    assert {event["stream_id"] for event in begun} == {"a", "b"}
    assert sorted(event["stream_id"] for event in ended) == ["a", "a", "b"]
    assert len(slow.known) == 3
    numbers = [event["sequence_number"] for event in begun if event["stream_id"] == "a"]
    assert numbers == list(range(len(numbers)))


async def test_what_is_not_stored_is_known_to_its_connection_alone(memory: House):
    async with line(memory) as made:
        first = await made.answer("one", store=False)
        second = await made.answer("two", store=False, previous_response_id=first["id"])
        third = await made.answer("three", store=False, previous_response_id=second["id"])
        forgotten = await made.answer("again", store=False, previous_response_id=first["id"])
        mixed = await made.answer("kept", previous_response_id=third["id"])
        other_lane = await made.answer("four", store=False, previous_response_id=third["id"], stream_id="b")
    async with line(memory) as elsewhere:
        unknown = await elsewhere.answer("five", store=False, previous_response_id=third["id"])

    assert said(third) == f"user:one|assistant:{said(first)}|user:two|assistant:{said(second)}|user:three"
    assert said(other_lane).endswith("|user:four")
    assert (forgotten["status"], forgotten["error"]["param"]) == (400, "previous_response_id")
    assert (mixed["status"], mixed["error"]["param"]) == (400, "store")
    assert (unknown["status"], unknown["error"]["param"]) == (400, "previous_response_id")
    assert (await memory.http.get(f"{PATH}/{third['id']}")).status_code == 404


@pytest.mark.parametrize("stored", [True, False])
async def test_a_request_can_be_prepared_without_an_answer(memory: House, stored: bool):
    async with line(memory) as made:
        await made.create("remember this", generate=False, store=stored)
        events = await made.response()
        prepared = events[-1]["response"]
        answered = await made.answer("and this", store=stored, previous_response_id=prepared["id"])

    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]
    assert (prepared["output"], prepared["usage"]["total_tokens"]) == ([], 0)
    assert said(answered) == "user:remember this|user:and this"
    assert (await memory.http.get(f"{PATH}/{prepared['id']}")).status_code == (200 if stored else 404)


async def test_mistakes_are_errors_of_their_lane_and_the_connection_goes_on(home: House):
    async with line(home) as made:
        wrong = [
            ({"background": True}, 400, "background"),
            ({"stream": False}, 400, "stream"),
            ({"temperature": 9}, 400, "temperature"),
            ({"colour": "red"}, 400, "colour"),
            ({"type": "response.sing"}, 400, "type"),
            ({"model": "nobody"}, 404, "model"),
        ]
        for more, status, param in wrong:
            error = await made.answer("hello", stream_id="a", **more)
            assert (error["type"], error["status"], error["stream_id"]) == ("error", status, "a"), error
            assert error["error"]["param"] == param, error
        for raw in ("{", "[]", '{"type": 5}', "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace")):
            await made.socket.send(raw)
            assert (await made.next())["status"] == 400
        await made.socket.send(b"bytes")
        assert (await made.next())["status"] == 400
        await made.socket.send(json.dumps({"type": "response.steer", "previous_response_id": "resp_x", "input": "no"}))
        steered = await made.next()
        answer = await made.answer("hello there")

    assert (steered["type"], steered["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
    assert steered["steer"] == {"previous_response_id": "resp_x", "input": "no"}
    assert said(answer) == "You said hello there [5] "


async def test_a_stored_response_goes_on_at_another_gateway_when_the_connection_breaks(pair: Pair):
    slow = Slow("one ", "two ", "three")
    await pair.serve(TEXT, thinker=slow)
    async with line(pair.first) as made:
        await made.create("hi")
        begun = [await made.next() for _ in range(5)]
    id = begun[0]["response"]["id"]
    await until(lambda: pair.first.dispatcher.inflight_count == 0)

    slow.go.set()
    rest = await pair.second.http.get(f"{PATH}/{id}", params={"stream": "true", "starting_after": 4})

    events = begun + events_of(rest.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert said(events[-1]["response"]) == "one two three"
    await pair.second.emptied()


async def test_one_lane_holds_so_many_requests_and_a_connection_so_many_lanes(pair: Pair):
    slow = Slow("one ", "two")
    await pair.serve(TEXT, thinker=slow)
    async with line(pair.first) as made:
        for _ in range(connection.MAX_WAITING + 2):  # one is answered, and one is rejected
            await made.create("hi", stream_id="a")
        for number in range(connection.MAX_LANES):  # the rejected one
            await made.create("hi", stream_id=f"lane {number}", generate=False)
        over: list[dict[str, Any]] = []
        while len(over) < 2:
            event = await made.next()
            over += [event] if event.get("status") == 429 else []

    assert [error["stream_id"] for error in over] == ["a", f"lane {connection.MAX_LANES - 1}"]
    assert over[0]["error"]["headers"] == {"x-should-retry": "true", "Retry-After": "1"}
    await pair.first.emptied()


_TEXTS = st.text(max_size=5) | st.sampled_from(["response.create", "response.steer", TEXT, "\ud800"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_FIELDS = ["type", "stream_id", "generate", "stream", "background", "model", "input", "tools", "store", "text"]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(_FIELDS), _VALUES | st.just("response.create")) | _VALUES)
def test_any_event_is_read_or_refused(found: Any):
    text, refusal = json.dumps(found), None
    try:
        event = parse_socket_event(text)
    except (BadRequest, TooLarge) as error:
        refusal = error
    if refusal is not None:
        assert json.loads(encode_error(refusal, read_stream_id(text)))["error"]["message"]
    elif isinstance(event, SteerEvent):
        assert json.loads(encode_steer_failure(event))["type"] == "response.steer.failed"
    else:
        assert parse_response_request(event.body) == event.wanted


async def closed(made: Line) -> tuple[int, list[str]]:
    """Return the gateway's close code, and the codes of errors before it."""
    codes: list[str] = []
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            event = await made.next()
            codes += [event["error"]["code"]] if event["type"] == "error" else []
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, codes


async def test_a_connection_ends_when_nothing_is_said_or_it_lasted_long_enough(tmp_path: Path, store: Store):
    async with house(tmp_path, store, realtime_idle=0.3) as home, line(home) as made:
        assert await closed(made) == (1000, ["websocket_idle_timeout"])
    async with house(tmp_path, store, realtime_seconds=0.3) as home, line(home) as made:
        assert await closed(made) == (1001, ["websocket_connection_limit_reached"])


async def test_a_gateway_that_stops_finishes_responses_and_sends_clients_elsewhere(pair: Pair):
    slow = Slow("one ", "two")
    await pair.serve(TEXT, thinker=slow)
    async with doorway(pair.first) as door:
        async with websockets.connect(f"ws://localhost:{door.port}{PATH}") as socket:
            made = Line(socket)
            await made.create("hi")
            assert (await made.next())["type"] == "response.created"
            pair.first.table.response_sockets.begin_stop()
            slow.go.set()
            assert said((await made.response())[-1]["response"]) == "one two"
            assert await closed(made) == (1012, [])
        assert (await refused(f"ws://localhost:{door.port}{PATH}"))[0] == 503
    await pair.first.table.response_sockets.wait_closed(PATIENCE)
    await pair.first.emptied()


async def test_no_more_connections_are_opened_than_there_may_be(tmp_path: Path, store: Store):
    async with house(tmp_path, store, realtime_sessions=1) as home, doorway(home) as door:
        url = f"ws://localhost:{door.port}{PATH}"
        async with websockets.connect(url):
            assert (await refused(url))[0] == 429


async def test_a_connection_needs_a_key_and_each_response_counts_against_it(tmp_path: Path, valkey_url: str):
    async with gated(tmp_path, valkey_url, a={"rate": 0.001, "burst": 4}) as (_, place):
        url = f"ws{place}{PATH}"
        async with httpx.AsyncClient() as http:
            secrets, session = f"http{place}/v1/realtime/client_secrets", {"type": "realtime", "model": TEXT}
            made = await http.post(secrets, json={"session": session}, headers={"authorization": "Bearer a"})
        assert (await refused(url))[0] == 401
        secret = await refused(url, **bearer(made.json()["value"]))  # which is for a browser's voice session
        async with websockets.connect(url, **bearer("a")) as socket:
            talk = Line(socket)
            first = await talk.answer("hello", store=False)
            over = await talk.answer("hello", store=False)

    assert secret[0] == 401
    assert first["status"] == "completed"
    assert (over["status"], over["error"]["code"]) == (429, "overloaded")
