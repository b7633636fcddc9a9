"""``/v1/responses`` over two gateways with one store and one bus: made, streamed, retrieved, continued, ended."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio as redis

from omnibus.executor.runner import Job
from omnibus.settings import GatewaySettings, StoreSettings
from omnibus.store import Store
from services.gateway.tenancy.tenant import Tenant, acting_as
from tests.unit.gateway.house import OMNI, PNG, TEXT, VL, House, error, house, think
from tests.unit.sidecar.node import until

PATH = "/v1/responses"
#: Keys that Open Responses wants in every response.
KEYS = (
    "id object created_at completed_at status incomplete_details model previous_response_id instructions output error "
    "tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs "
    "temperature reasoning user usage max_output_tokens max_tool_calls store background service_tier metadata "
    "safety_identifier prompt_cache_key"
).split()


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[Store]:
    client = redis.Redis.from_url(valkey_url)
    await client.flushall()
    await client.aclose()
    store = Store(StoreSettings(url=valkey_url, prefix="test"))
    yield store
    await store.close()


@pytest.fixture
async def home(tmp_path: Path, store: Store) -> AsyncIterator[House]:
    async with house(tmp_path, store) as made:
        await made.all_of(TEXT)
        yield made


async def create(home: House, input: Any = "hello there", **more: Any) -> httpx.Response:
    return await home.http.post(PATH, json={"model": TEXT, "input": input, "seed": 5, **more})


def whole(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return dict(response.json())


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    )


def events_of(body: str) -> list[dict[str, Any]]:
    """The events of a stream, which are named as they say themselves, and numbered without gaps."""
    blocks = [block for block in body.split("\n\n") if block]
    assert blocks.pop() == "data: [DONE]"
    found = []
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    numbers = [event["sequence_number"] for event in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(found)))
    return found


async def test_a_response_has_every_key_and_can_be_retrieved(home: House):
    made = whole(await create(home, instructions="be kind", metadata={"a": "b"}))

    assert set(KEYS) <= set(made)
    assert made["status"] == "completed"
    assert text_of(made) == "You said hello there [5] "
    assert made["instructions"] == "be kind"
    assert made["metadata"] == {"a": "b"}
    assert made["usage"]["output_tokens"] == 5
    assert whole(await home.http.get(f"{PATH}/{made['id']}")) == made
    await home.emptied()


async def test_a_stream_has_the_events_in_their_order(home: House):
    events = events_of((await create(home, stream=True)).text)

    kinds = [event["type"] for event in events]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [kind for kind in kinds if kind != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event["delta"] for event in deltas) == "You said hello there [5] "
    assert events[0]["sequence_number"] == 0
    made = events[-1]["response"]
    assert whole(await home.http.get(f"{PATH}/{made['id']}")) == made


async def test_a_stored_stream_comes_again_from_any_event(home: House):
    body = (await create(home, stream=True)).text
    events = events_of(body)
    id = events[0]["response"]["id"]

    for after in (-1, 0, 3, len(events) - 2):
        query = {"stream": "true"} | ({"starting_after": after} if after >= 0 else {})
        again = await home.http.get(f"{PATH}/{id}", params=query)
        assert again.text == body[len("".join(block + "\n\n" for block in body.split("\n\n")[: after + 1])) :]


async def test_one_that_is_not_stored_is_gone(home: House):
    made = whole(await create(home, store=False))

    assert made["store"] is False
    assert (await home.http.get(f"{PATH}/{made['id']}")).status_code == 404


async def test_a_deleted_response_is_gone(home: House):
    id = whole(await create(home))["id"]

    assert whole(await home.http.delete(f"{PATH}/{id}")) == {"id": id, "object": "response", "deleted": True}
    assert (await home.http.get(f"{PATH}/{id}")).status_code == 404
    assert (await home.http.delete(f"{PATH}/{id}")).status_code == 404


async def test_the_input_comes_back_as_items(home: House):
    given = [{"role": "user", "content": "one"}, {"type": "message", "role": "assistant", "content": "two"}]
    id = whole(await create(home, [*given, {"role": "user", "content": "three"}]))["id"]

    newest = whole(await home.http.get(f"{PATH}/{id}/input_items", params={"limit": 2}))
    rest = whole(await home.http.get(f"{PATH}/{id}/input_items", params={"after": newest["last_id"]}))

    assert [item["content"][0]["text"] for item in newest["data"]] == ["three", "two"]
    assert newest["has_more"]
    assert [item["content"] for item in rest["data"]] == [[{"type": "input_text", "text": "one"}]]
    assert not rest["has_more"]


async def remember(job: Job) -> None:
    """Say all roles and texts of the chat."""
    messages = await job.value("messages")
    said = "|".join(f"{message['role']}:{_plain(message['content'])}" for message in messages)
    await job.send("text", {"text": said, "ids": [1]})
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    job.close("text", {"finish_reason": "stop", "usage": usage})


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


@pytest.fixture
async def memory(tmp_path: Path, store: Store) -> AsyncIterator[House]:
    async with house(tmp_path, store) as made:
        made.serve(TEXT)
        assert made.router.plan is not None
        for option, spec in made.router.plan.models[TEXT].options.items():
            await made.executor(TEXT, option, *spec.components, thinker=remember)
        yield made


async def test_a_response_goes_on_with_those_before_it(memory: House):
    first = whole(await create(memory, "one", instructions="be brief"))
    second = whole(await create(memory, "two", previous_response_id=first["id"]))
    third = whole(await create(memory, "three", previous_response_id=second["id"], instructions="be long"))

    assert text_of(first) == "system:be brief|user:one"
    assert text_of(second) == f"user:one|assistant:{text_of(first)}|user:two"  # instructions are not inherited
    assert text_of(third) == (
        f"system:be long|user:one|assistant:{text_of(first)}|user:two|assistant:{text_of(second)}|user:three"
    )
    assert third["previous_response_id"] == second["id"]


async def test_a_conversation_grows_with_its_responses(memory: House):
    conversation = whole(await memory.http.post("/v1/conversations", json={"metadata": {"a": "b"}}))
    id = conversation["id"]

    one = whole(await create(memory, "one", conversation=id))
    two = whole(await create(memory, "two", conversation={"id": id}))

    assert one["conversation"] == {"id": id}
    assert text_of(two) == f"user:one|assistant:{text_of(one)}|user:two"
    listed = whole(await memory.http.get(f"/v1/conversations/{id}/items", params={"order": "asc"}))
    assert [(item["role"], item["content"][0]["text"]) for item in listed["data"]] == [
        ("user", "one"),
        ("assistant", text_of(one)),
        ("user", "two"),
        ("assistant", text_of(two)),
    ]


async def test_an_item_can_be_referred_to(memory: House):
    conversation = whole(
        await memory.http.post("/v1/conversations", json={"items": [{"role": "user", "content": "note"}]})
    )
    item = whole(await memory.http.get(f"/v1/conversations/{conversation['id']}/items"))["data"][0]

    again = [{"type": "item_reference", "id": item["id"]}, {"role": "user", "content": "now"}]
    made = whole(await create(memory, again, conversation=conversation["id"]))

    assert text_of(made) == "user:note|user:note|user:now"
    unknown = await create(memory, [{"type": "item_reference", "id": "msg_x"}])
    assert unknown.status_code == 400
    assert error(unknown)["param"] == "input[0].id"


async def test_items_of_a_conversation_come_and_go(memory: House):
    id = whole(await memory.http.post("/v1/conversations", json={}))["id"]
    added = whole(
        await memory.http.post(
            f"/v1/conversations/{id}/items",
            json={"items": [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]},
        )
    )
    first, second = (item["id"] for item in added["data"])

    one = whole(await memory.http.get(f"/v1/conversations/{id}/items/{first}"))
    assert one["content"] == [{"type": "input_text", "text": "one"}]
    whole(await memory.http.delete(f"/v1/conversations/{id}/items/{first}"))
    assert (await memory.http.get(f"/v1/conversations/{id}/items/{first}")).status_code == 404
    assert [item["id"] for item in whole(await memory.http.get(f"/v1/conversations/{id}/items"))["data"]] == [second]
    updated = whole(await memory.http.post(f"/v1/conversations/{id}", json={"metadata": {"x": "y"}}))
    assert updated["metadata"] == {"x": "y"}
    whole(await memory.http.delete(f"/v1/conversations/{id}"))
    assert (await memory.http.get(f"/v1/conversations/{id}")).status_code == 404
    assert (await create(memory, "now", conversation=id)).status_code == 400


# Two gateways


class Pair:
    """Two gateways over one store and one bus. ``leave`` ends the first one as a kill does: nothing is said."""

    def __init__(self, first: House, second: House) -> None:
        self.first = first
        self.second = second

    async def serve(self, model: str, **works: Any) -> None:
        for home in (self.first, self.second):
            home.serve(model)
        assert self.first.router.plan is not None
        for option, spec in self.first.router.plan.models[model].options.items():
            await self.first.executor(model, option, *spec.components, **works)
        there = {status.id for status in self.first.members.statuses()}
        await until(lambda: {status.id for status in self.second.members.statuses()} == there)


@pytest.fixture
async def pair(tmp_path: Path, store: Store) -> AsyncIterator[Pair]:
    async with house(tmp_path, store) as first:
        second = House(first.place, first.settings, store, "other")
        await second.open()
        yield Pair(first, second)
        await second.close()


class Slow:
    """A thinker that says a word each time that it is let go on; how its words are grouped depends on that."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.go = asyncio.Event()
        self.after = 1
        self.known: list[list[int]] = []

    async def __call__(self, job: Job) -> None:
        self.known.append(list(job.resume_state("text").get("ids", ())))
        first, rest = self.words[: self.after], self.words[self.after :]
        await job.send("text", {"text": "".join(first), "ids": list(range(len(first)))})
        await self.go.wait()
        for number, word in enumerate(rest, len(first)):
            await job.send("text", {"text": word, "ids": [number]})
        job.close("text", {"finish_reason": "stop", "usage": {"completion_tokens": len(self.words)}})


class Reading:
    """A client that reads a stream."""

    def __init__(self, home: House, method: str, path: str, **more: Any) -> None:
        self.text = ""
        self._home = home
        self.task = asyncio.create_task(self._read(method, path, more))

    async def _read(self, method: str, path: str, more: dict[str, Any]) -> None:
        from tests.unit.gateway.http.test_exchange import Client

        body = more.get("json")
        self.client = client = Client(body if body is not None else {})
        client.scope["path"], client.scope["method"] = path, method
        client.scope["raw_path"] = path.encode()
        client.scope["query_string"] = more.get("query", b"")
        try:
            await self._home.app(client.scope, client.receive, client.send)
        finally:
            self.text = client.text

    @property
    def events(self) -> list[dict[str, Any]]:
        return events_of(self.client.text + ("" if self.client.text.endswith("[DONE]\n\n") else "data: [DONE]\n\n"))

    async def until(self, said: str) -> None:
        await until(lambda: hasattr(self, "client") and said in self.client.text)


async def test_a_stream_goes_on_at_another_gateway_byte_by_byte(pair: Pair):
    slow = Slow("one ", "two ", "three ", "four")
    await pair.serve(TEXT, thinker=slow)
    reading = Reading(pair.first, "POST", PATH, json={"model": TEXT, "input": "hi", "stream": True})
    await reading.until("one ")
    had = reading.events
    id = had[0]["response"]["id"]

    reading.client.leave()
    await asyncio.wait_for(reading.task, 10)
    slow.go.set()
    slow.after = 3  # its words come otherwise grouped this time
    last = had[-1]["sequence_number"]
    rest = await pair.second.http.get(f"{PATH}/{id}", params={"stream": "true", "starting_after": last})
    every = await pair.first.http.get(f"{PATH}/{id}", params={"stream": "true"})

    assert had + events_of(rest.text) == events_of(every.text)
    assert text_of(events_of(every.text)[-1]["response"]) == "one two three four"
    assert slow.known == [[], [0]]
    await pair.second.emptied()


async def test_a_response_in_the_background_is_made_while_nobody_waits(pair: Pair):
    slow = Slow("one ", "two")
    await pair.serve(TEXT, thinker=slow)

    made = whole(await create(pair.first, background=True))
    assert made["status"] == "queued"
    id = made["id"]

    async def begun() -> bool:
        return bool(whole(await pair.second.http.get(f"{PATH}/{id}"))["status"] == "in_progress")

    await until(begun)
    slow.go.set()

    async def over() -> bool:
        return bool(whole(await pair.second.http.get(f"{PATH}/{id}"))["status"] == "completed")

    await until(over)
    assert text_of(whole(await pair.second.http.get(f"{PATH}/{id}"))) == "one two"
    events = events_of((await pair.second.http.get(f"{PATH}/{id}", params={"stream": "true"})).text)
    assert [event["type"] for event in events][:3] == ["response.created", "response.queued", "response.in_progress"]
    await pair.first.emptied()


@pytest.mark.parametrize("where", ["first", "second"])
async def test_a_response_in_the_background_is_cancelled_anywhere(pair: Pair, where: str):
    slow = Slow("one ", "two")
    await pair.serve(TEXT, thinker=slow)
    id = whole(await create(pair.first, background=True))["id"]
    await until(lambda: bool(slow.known))

    cancelled = whole(await getattr(pair, where).http.post(f"{PATH}/{id}/cancel"))

    assert cancelled["status"] == "cancelled"
    assert whole(await pair.second.http.get(f"{PATH}/{id}")) == cancelled
    events = events_of((await pair.second.http.get(f"{PATH}/{id}", params={"stream": "true"})).text)
    assert events[-1]["response"]["status"] == "cancelled"
    slow.go.set()
    await pair.first.emptied()


async def test_one_that_is_not_in_the_background_is_not_cancelled(home: House):
    id = whole(await create(home))["id"]

    response = await home.http.post(f"{PATH}/{id}/cancel")

    assert response.status_code == 400


async def test_what_another_gateway_left_in_the_background_is_made_on(pair: Pair):
    slow = Slow("one ", "two ", "three")
    await pair.serve(TEXT, thinker=slow)
    id = whole(await create(pair.first, background=True))["id"]
    await until(lambda: bool(slow.known))
    reading = Reading(pair.second, "GET", f"{PATH}/{id}", query=b"stream=true")
    await reading.until("one ")

    await pair.first.responses.leave_background()
    slow.go.set()

    await asyncio.wait_for(reading.task, 20)
    assert reading.events[-1]["type"] == "response.completed"
    assert text_of(reading.events[-1]["response"]) == "one two three"
    assert slow.known == [[], [0]]


async def test_others_do_not_see_it(home: House):
    with acting_as(Tenant("ann")):
        id = whole(await create(home))["id"]
        conversation = whole(await home.http.post("/v1/conversations", json={}))["id"]
        assert (await home.http.get(f"{PATH}/{id}")).status_code == 200
    with acting_as(Tenant("bob")):
        for path in (f"{PATH}/{id}", f"{PATH}/{id}/input_items", f"/v1/conversations/{conversation}"):
            assert (await home.http.get(path)).status_code == 404
        assert (await home.http.delete(f"{PATH}/{id}")).status_code == 404
        assert (await home.http.post(f"{PATH}/{id}/cancel")).status_code == 404
        assert (await create(home, previous_response_id=id)).status_code == 400
        assert (await create(home, conversation=conversation)).status_code == 400


# What goes in and comes out


async def test_pictures_are_seen(tmp_path: Path, store: Store):
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    parts = [{"type": "input_text", "text": "what"}, {"type": "input_image", "image_url": url, "detail": "low"}]
    async with house(tmp_path, store) as home:
        await home.all_of(VL)
        made = whole(await create(home, [{"role": "user", "content": parts}], model=VL))
        bad = await create(home, [{"role": "user", "content": [{**parts[1], "image_url": "data:,x"}]}], model=VL)

        assert "saw" in text_of(made)
        assert made["usage"]["input_tokens_details"]["image_tokens"] == 1
        assert error(bad)["param"] == "input[0].content[0].image_url"


@pytest.mark.parametrize("modalities", [["text", "audio"], ["audio"]])
async def test_answers_are_spoken(tmp_path: Path, store: Store, modalities: list[str]):
    async with house(tmp_path, store) as home:
        await home.all_of(OMNI)
        body = await create(
            home, model=OMNI, modalities=modalities, audio={"voice": "Chelsie", "format": "wav"}, stream=True
        )
        events = events_of(body.text)

    sound = "".join(event["delta"] for event in events if event["type"] == "response.audio.delta")
    part = events[-1]["response"]["output"][0]["content"][-1]
    assert part["type"] == "output_audio"
    assert base64.b64decode(sound) == base64.b64decode(part["data"])
    assert part["transcript"] == "You said hello there [5] "
    kinds = {event["type"] for event in events}
    assert "response.audio.done" in kinds
    assert ("response.output_text.delta" in kinds) == ("text" in modalities)
    assert ("response.audio.transcript.delta" in kinds) == ("text" not in modalities)


async def test_a_failure_after_the_first_event_ends_the_response(pair: Pair):
    async def breaks(job: Job) -> None:
        await job.send("text", {"text": "one ", "ids": [0]})
        await asyncio.sleep(0.05)
        raise ValueError("broken")

    await pair.serve(TEXT, thinker=breaks)
    events = events_of((await create(pair.first, stream=True)).text)

    last = events[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
    stored = whole(await pair.second.http.get(f"{PATH}/{last['response']['id']}"))
    assert stored["status"] == "failed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"modalities": ["audio"]}, "audio"),
        ({"background": True, "store": False}, "store"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"previous_response_id": "a", "conversation": "b"}, "conversation"),
        ({"stream_options": {}}, "stream_options"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "x"}]}]}, "input[0].content[0]"),
        ({"inputs": "x"}, "inputs"),
        ({"metadata": {"k": "v" * 600}}, "metadata[...]"),
    ],
)
async def test_what_cannot_be_obeyed_is_refused_by_name(home: House, fields: dict[str, Any], param: str):
    response = await home.http.post(PATH, json={"model": TEXT, "input": "a", **fields})

    assert response.status_code == 400, response.text
    assert error(response)["param"] == param


@pytest.mark.parametrize(
    "query", [{"starting_after": "3"}, {"stream": "maybe"}, {"starting_after": "x", "stream": "true"}]
)
async def test_queries_are_checked(home: House, query: dict[str, str]):
    id = whole(await create(home))["id"]

    assert (await home.http.get(f"{PATH}/{id}", params=query)).status_code == 400


async def test_one_that_was_not_streamed_has_no_events(home: House):
    id = whole(await create(home))["id"]

    response = await home.http.get(f"{PATH}/{id}", params={"stream": "true"})

    assert response.status_code == 400
    assert error(response)["param"] == "stream"
