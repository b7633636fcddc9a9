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
from omnibus_gateway.openai.responses.sequence import (
    SteerEvent,
    encode_error,
    encode_steer_failure,
    parse_socket_event,
    read_stream_id,
)
from omnibus_gateway.responses import sockets as connection
from tests.unit.gateway.house import TEXT, ToyGateway, start_toy_gateway
from tests.unit.gateway.realtime.test_connections import expect_rejection, make_bearer_options, start_gated_gateway
from tests.unit.gateway.responses_house import PATH, ResponsesPair, SlowResponseThinker, events_of, read_response_body
from tests.unit.gateway.wires import PATIENCE, open_doorway
from tests.unit.sidecar.node import wait_until


class JsonConnection:
    """A connection of a client that writes its own JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def create(self, input: Any = "hello there", **more: Any) -> None:
        await self.socket.send(
            json.dumps({"type": "response.create", "model": TEXT, "input": input, "seed": 5, **more})
        )

    async def read_event(self) -> dict[str, Any]:
        return dict(json.loads(await asyncio.wait_for(self.socket.recv(), PATIENCE)))

    async def response(self) -> list[dict[str, Any]]:
        """Return the events up to a response's end, or an error."""
        events = [await self.read_event()]
        while events[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
            events.append(await self.read_event())
        return events

    async def request_answer(self, input: Any, **more: Any) -> dict[str, Any]:
        await self.create(input, **more)
        last = (await self.response())[-1]
        return dict(last.get("response") or last)


@asynccontextmanager
async def open_connection(home: ToyGateway, **more: Any) -> AsyncIterator[JsonConnection]:
    async with (
        open_doorway(home) as door,
        websockets.connect(
            f"ws://localhost:{door.port}{PATH}", max_size=None, max_queue=None, **more
        ) as socket,  # a full queue would delay the closing handshake
    ):
        yield JsonConnection(socket)


def read_text(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


async def test_the_official_client_reads_the_same_events_as_those_of_a_stream(home: ToyGateway):
    body = {"model": TEXT, "input": "hello there", "seed": 5, "stream": True}
    stream_events = events_of((await home.http.post(PATH, json=body)).text)
    async with open_doorway(home) as door:
        client = openai.AsyncOpenAI(
            base_url=f"http://localhost:{door.port}/v1", api_key="none", _strict_response_validation=True
        )
        async with client.responses.connect() as socket:
            all_events: list[Any] = []
            for stream_id in ("a", ""):
                lane: Any = {"stream_id": stream_id} if stream_id else {}
                await socket.send(
                    {"type": "response.create", "model": TEXT, "input": "hello there", "seed": 5, **lane}  # type: ignore[typeddict-item]
                )
                async for event in socket:
                    all_events.append(event)
                    if event.type == "response.completed":
                        break
        await client.close()

    half = len(all_events) // 2
    lanes: list[tuple[str | None, list[Any]]] = [("a", all_events[:half]), (None, all_events[half:])]
    for lane_id, events in lanes:
        assert [event.type for event in events] == [event["type"] for event in stream_events]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert {event.stream_id for event in events} == {lane_id}
        assert events[-1].response.output_text == "You said hello there [5] "
        stored_response = read_response_body(await home.http.get(f"{PATH}/{events[-1].response.id}"))
        assert stored_response["output"] == events[-1].response.to_dict()["output"]
    await home.emptied()


async def test_lanes_go_side_by_side_and_each_in_its_order(pair: ResponsesPair):
    slow = SlowResponseThinker("one ", "two")
    await pair.serve(TEXT, thinker=slow)
    async with open_connection(pair.first) as connection:
        await connection.create("first", stream_id="a")
        await connection.create("second", stream_id="a")
        await connection.create("third", stream_id="b")
        begin_events = [await connection.read_event() for _ in range(2 * 5)]  # created ... the first word, in two lanes
        assert len(slow.known) == 2
        slow.go.set()
        end_events = [(await connection.response())[-1] for _ in range(3)]

    assert {event["stream_id"] for event in begin_events} == {"a", "b"}
    assert sorted(event["stream_id"] for event in end_events) == ["a", "a", "b"]
    assert len(slow.known) == 3
    numbers = [event["sequence_number"] for event in begin_events if event["stream_id"] == "a"]
    assert numbers == list(range(len(numbers)))


async def test_what_is_not_stored_is_known_to_its_connection_alone(memory: ToyGateway):
    async with open_connection(memory) as connection:
        first = await connection.request_answer("one", store=False)
        second = await connection.request_answer("two", store=False, previous_response_id=first["id"])
        third = await connection.request_answer("three", store=False, previous_response_id=second["id"])
        forgotten = await connection.request_answer("again", store=False, previous_response_id=first["id"])
        mixed_answer = await connection.request_answer("kept", previous_response_id=third["id"])
        other_lane = await connection.request_answer(
            "four", store=False, previous_response_id=third["id"], stream_id="b"
        )
    async with open_connection(memory) as elsewhere:
        unknown = await elsewhere.request_answer("five", store=False, previous_response_id=third["id"])

    assert (
        read_text(third) == f"user:one|assistant:{read_text(first)}|user:two|assistant:{read_text(second)}|user:three"
    )
    assert read_text(other_lane).endswith("|user:four")
    assert (forgotten["status"], forgotten["error"]["param"]) == (400, "previous_response_id")
    assert (mixed_answer["status"], mixed_answer["error"]["param"]) == (400, "store")
    assert (unknown["status"], unknown["error"]["param"]) == (400, "previous_response_id")
    assert (await memory.http.get(f"{PATH}/{third['id']}")).status_code == 404


@pytest.mark.parametrize("stored", [True, False])
async def test_a_request_can_be_prepared_without_an_answer(memory: ToyGateway, stored: bool):
    async with open_connection(memory) as connection:
        await connection.create("remember this", generate=False, store=stored)
        events = await connection.response()
        first_response = events[-1]["response"]
        second_response = await connection.request_answer(
            "and this", store=stored, previous_response_id=first_response["id"]
        )

    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]
    assert (first_response["output"], first_response["usage"]["total_tokens"]) == ([], 0)
    assert read_text(second_response) == "user:remember this|user:and this"
    assert (await memory.http.get(f"{PATH}/{first_response['id']}")).status_code == (200 if stored else 404)


async def test_mistakes_are_errors_of_their_lane_and_the_connection_goes_on(home: ToyGateway):
    async with open_connection(home) as connection:
        wrong = [
            ({"background": True}, 400, "background"),
            ({"stream": False}, 400, "stream"),
            ({"temperature": 9}, 400, "temperature"),
            ({"colour": "red"}, 400, "colour"),
            ({"type": "response.sing"}, 400, "type"),
            ({"model": "nobody"}, 404, "model"),
        ]
        for more, status, param in wrong:
            error = await connection.request_answer("hello", stream_id="a", **more)
            assert (error["type"], error["status"], error["stream_id"]) == ("error", status, "a"), error
            assert error["error"]["param"] == param, error
        for raw in ("{", "[]", '{"type": 5}', "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace")):
            await connection.socket.send(raw)
            assert (await connection.read_event())["status"] == 400
        await connection.socket.send(b"bytes")
        assert (await connection.read_event())["status"] == 400
        await connection.socket.send(
            json.dumps({"type": "response.steer", "previous_response_id": "resp_x", "input": "no"})
        )
        steer_event = await connection.read_event()
        answer = await connection.request_answer("hello there")

    assert (steer_event["type"], steer_event["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
    assert steer_event["steer"] == {"previous_response_id": "resp_x", "input": "no"}
    assert read_text(answer) == "You said hello there [5] "


async def test_a_stored_response_goes_on_at_another_gateway_when_the_connection_breaks(pair: ResponsesPair):
    slow = SlowResponseThinker("one ", "two ", "three")
    await pair.serve(TEXT, thinker=slow)
    async with open_connection(pair.first) as connection:
        await connection.create("hi")
        begin_events = [await connection.read_event() for _ in range(5)]
    id = begin_events[0]["response"]["id"]
    await wait_until(lambda: pair.first.dispatcher.inflight_count == 0)

    slow.go.set()
    rest = await pair.second.http.get(f"{PATH}/{id}", params={"stream": "true", "starting_after": 4})

    events = begin_events + events_of(rest.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert read_text(events[-1]["response"]) == "one two three"
    await pair.second.emptied()


async def test_one_lane_holds_so_many_requests_and_a_connection_so_many_lanes(pair: ResponsesPair):
    slow = SlowResponseThinker("one ", "two")
    await pair.serve(TEXT, thinker=slow)
    async with open_connection(pair.first) as client_connection:
        for _ in range(connection.MAX_WAITING + 2):  # one is answered, and one is rejected
            await client_connection.create("hi", stream_id="a")
        for number in range(connection.MAX_LANES):  # the rejected one
            await client_connection.create("hi", stream_id=f"lane {number}", generate=False)
        over: list[dict[str, Any]] = []
        while len(over) < 2:
            event = await client_connection.read_event()
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


async def read_close(connection: JsonConnection) -> tuple[int, list[str]]:
    """Return the gateway's close code, and the codes of errors before it."""
    codes: list[str] = []
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            event = await connection.read_event()
            codes += [event["error"]["code"]] if event["type"] == "error" else []
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, codes


async def test_a_connection_ends_when_nothing_is_said_or_it_lasted_long_enough(tmp_path: Path, store: Store):
    async with start_toy_gateway(tmp_path, store, realtime_idle=0.3) as home, open_connection(home) as connection:
        assert await read_close(connection) == (1000, ["websocket_idle_timeout"])
    async with start_toy_gateway(tmp_path, store, realtime_seconds=0.3) as home, open_connection(home) as connection:
        assert await read_close(connection) == (1001, ["websocket_connection_limit_reached"])


async def test_a_gateway_that_stops_finishes_responses_and_sends_clients_elsewhere(pair: ResponsesPair):
    slow = SlowResponseThinker("one ", "two")
    await pair.serve(TEXT, thinker=slow)
    async with open_doorway(pair.first) as door:
        async with websockets.connect(f"ws://localhost:{door.port}{PATH}") as socket:
            connection = JsonConnection(socket)
            await connection.create("hi")
            assert (await connection.read_event())["type"] == "response.created"
            pair.first.table.response_sockets.begin_stop()
            slow.go.set()
            assert read_text((await connection.response())[-1]["response"]) == "one two"
            assert await read_close(connection) == (1012, [])
        assert (await expect_rejection(f"ws://localhost:{door.port}{PATH}"))[0] == 503
    await pair.first.table.response_sockets.wait_closed(PATIENCE)
    await pair.first.emptied()


async def test_no_more_connections_are_opened_than_there_may_be(tmp_path: Path, store: Store):
    async with start_toy_gateway(tmp_path, store, realtime_sessions=1) as home, open_doorway(home) as door:
        url = f"ws://localhost:{door.port}{PATH}"
        async with websockets.connect(url):
            assert (await expect_rejection(url))[0] == 429


async def test_a_connection_needs_a_key_and_each_response_counts_against_it(tmp_path: Path, valkey_url: str):
    async with start_gated_gateway(tmp_path, valkey_url, a={"rate": 0.001, "burst": 4}) as (_, place):
        url = f"ws{place}{PATH}"
        async with httpx.AsyncClient() as http:
            secrets, session = f"http{place}/v1/realtime/client_secrets", {"type": "realtime", "model": TEXT}
            secret_response = await http.post(secrets, json={"session": session}, headers={"authorization": "Bearer a"})
        assert (await expect_rejection(url))[0] == 401
        secret = await expect_rejection(
            url, **make_bearer_options(secret_response.json()["value"])
        )  # which is for a browser's voice session
        async with websockets.connect(url, **make_bearer_options("a")) as socket:
            talk = JsonConnection(socket)
            first = await talk.request_answer("hello", store=False)
            over = await talk.request_answer("hello", store=False)

    assert secret[0] == 401
    assert first["status"] == "completed"
    assert (over["status"], over["error"]["code"]) == (429, "overloaded")
