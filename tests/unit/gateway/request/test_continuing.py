"""Streamed chats that move between gateways: no event is lost, repeated or sent to another client."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from omnibus.executor.runner import Job
from omnibus.settings import GatewaySettings, StoreSettings
from omnibus.store import Store
from omnibus_gateway.routing.draining import DrainRate
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from tests.unit.gateway.event_streams import list_event_kinds, parse_events, sound_of, text_of
from tests.unit.gateway.house import (
    OMNI,
    TEXT,
    VL,
    ToyGateway,
    build_chat_body,
    make_image_part,
    make_text_part,
    read_error_body,
    start_toy_gateway,
    write_chat_words,
)
from tests.unit.gateway.http.test_exchange import ExchangeClient
from tests.unit.sidecar.node import wait_until

CONTINUE = {"x-omnibus-continue": "true"}
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "pcm16"}}
WORDS = "one two three four five six"


class ContinuingGateways:
    """Two gateways over one store, one bus and the same executors."""

    def __init__(self, first: ToyGateway, second: ToyGateway, store: Store) -> None:
        self.first = first
        self.second = second
        self.store = store

    async def serve(self, *models: str, **works: Any) -> None:
        for home in (self.first, self.second):
            home.serve(*models)
        assert self.first.router.plan is not None
        for model in models:
            for option, spec in self.first.router.plan.models[model].options.items():
                await self.first.executor(model, option, *spec.components, **works)
        there = {status.id for status in self.first.members.statuses()}
        await wait_until(lambda: {status.id for status in self.second.members.statuses()} == there)

    async def begin_answer(self, model: str, content: Any = WORDS, **more: Any) -> httpx.Response:
        body = build_chat_body(model, content, stream=True, **more)
        return await self.first.http.post("/v1/chat/completions", json=body, headers=CONTINUE)

    async def resume_answer(self, token: str, last: str = "", home: ToyGateway | None = None) -> httpx.Response:
        headers = {"last-event-id": last} if last else {}
        return await (home or self.second).http.get(f"/v1/chat/completions/{token}/events", headers=headers)


@pytest.fixture
async def pair(tmp_path: Path, store: Store) -> AsyncIterator[ContinuingGateways]:
    async with start_toy_gateway(tmp_path, store) as first:
        second = ToyGateway(first.place, first.settings, store, "other")
        await second.open()
        yield ContinuingGateways(first, second, store)
        await second.close()


# Continuing


@pytest.mark.parametrize(
    ("model", "content", "more"),
    [
        (TEXT, WORDS, {}),
        (TEXT, WORDS, {"seed": 5, "stream_options": {"include_usage": True}}),
        (VL, [make_text_part("what is"), make_image_part()], {}),
        (OMNI, WORDS, SPOKEN),
        (OMNI, WORDS, {"modalities": ["audio"], "audio": {"voice": "Chelsie", "format": "wav"}}),
        (OMNI, WORDS, {**SPOKEN, "audio": {"voice": "Chelsie", "format": "flac"}}),
    ],
    ids=["text", "seed and usage", "picture", "spoken", "sound alone", "flac"],
)
async def test_an_answer_continues_from_each_of_its_events(
    pair: ContinuingGateways, model: str, content: Any, more: dict[str, Any]
):
    await pair.serve(model)
    whole = await pair.begin_answer(model, content, **more)
    events, token = parse_events(whole.text), whole.headers["x-omnibus-continue"]
    places = [index for index, event in enumerate(events) if event.id]
    assert len(places) > 5
    assert text_of(events)

    for place in places:
        rest = parse_events((await pair.resume_answer(token, events[place].id)).text)

        had = events[: place + 1]
        assert text_of(had) + text_of(rest) == text_of(events), place
        assert sound_of(had) + sound_of(rest) == sound_of(events), place
        assert list_event_kinds(had) + list_event_kinds(rest) == list_event_kinds(events), place
        assert {each.data["id"] for each in rest if each.data != "[DONE]"} <= {events[0].data["id"]}
    await pair.first.emptied()


async def test_a_language_model_begins_behind_the_tokens_that_are_known(pair: ContinuingGateways):
    go, known_ids = asyncio.Event(), []

    async def write_and_wait(job: Job) -> None:
        known_ids.append(list(job.resume_state("text").get("ids", ())))
        await job.send("text", {"text": "one two ", "ids": [1, 2]})
        await go.wait()
        await job.send("text", {"text": "three", "ids": [3]})
        job.close("text", {"finish_reason": "stop", "usage": {}})

    await pair.serve(TEXT, thinker=write_and_wait)
    client = ExchangeClient(build_chat_body(TEXT, "hi", stream=True))
    client.scope["headers"].append((b"x-omnibus-continue", b"true"))
    first = asyncio.ensure_future(pair.first.app(client.scope, client.receive, client.send))
    await wait_until(lambda: "one two " in client.text)
    token = dict(client.messages[0]["headers"])[b"x-omnibus-continue"].decode()
    for _ in range(100):
        if await pair.store.stream_tokens(token):
            break
        await asyncio.sleep(0.05)

    resuming = asyncio.ensure_future(pair.resume_answer(token, parse_events(client.text)[-1].id))
    await asyncio.wait_for(first, 10)
    go.set()

    assert text_of(parse_events((await resuming).text)) == "three"
    assert known_ids == [[], [1, 2]]
    await pair.second.emptied()


@pytest.mark.parametrize("ids", [["a"], [-1], [2**32]])
async def test_tokens_without_ids_of_four_bytes_are_not_kept(pair: ContinuingGateways, ids: list[Any]):
    async def write_ids(job: Job) -> None:
        await job.send("text", {"text": "one ", "ids": [1]})
        await job.send("text", {"text": "two", "ids": ids})
        await asyncio.sleep(0.5)
        job.close("text", {"finish_reason": "stop", "usage": {}})

    await pair.serve(TEXT, thinker=write_ids)

    whole = await pair.begin_answer(TEXT)

    assert text_of(parse_events(whole.text)) == "one two"
    assert await pair.store.stream_tokens(whole.headers["x-omnibus-continue"]) in ((), (1,))


async def test_an_answer_of_which_nothing_came_is_sent_from_the_beginning(pair: ContinuingGateways):
    await pair.serve(OMNI)
    whole = await pair.begin_answer(OMNI, **SPOKEN)

    again = await pair.resume_answer(whole.headers["x-omnibus-continue"])

    assert (text_of(parse_events(again.text)), sound_of(parse_events(again.text))) == (
        text_of(parse_events(whole.text)),
        sound_of(parse_events(whole.text)),
    )
    assert list_event_kinds(parse_events(again.text))[0] == "role"


async def test_an_answer_that_is_still_being_sent_stops_where_another_gateway_continues_it(pair: ContinuingGateways):
    cancelled_ids: list[str] = []
    go = asyncio.Event()

    async def write_slowly(job: Job) -> None:
        await job.send("text", {"text": "one "})
        try:
            await go.wait()
        except asyncio.CancelledError:
            cancelled_ids.append(job.invocation)
            raise
        await job.send("text", {"text": "two"})
        job.close("text", {"finish_reason": "stop", "usage": {}})

    await pair.serve(TEXT, thinker=write_slowly)
    client = ExchangeClient(build_chat_body(TEXT, "hi", stream=True))
    client.scope["headers"].append((b"x-omnibus-continue", b"true"))
    first = asyncio.ensure_future(pair.first.app(client.scope, client.receive, client.send))
    await wait_until(lambda: "one " in client.text)
    token = dict(client.messages[0]["headers"])[b"x-omnibus-continue"].decode()
    last = parse_events(client.text)[-1]

    resuming = asyncio.ensure_future(pair.resume_answer(token, last.id))
    await asyncio.wait_for(first, 10)
    await wait_until(lambda: len(cancelled_ids) == 1)
    assert pair.second.dispatcher.inflight_count == 1
    go.set()

    assert text_of(parse_events((await resuming).text)) == "two"
    assert parse_events(client.text)[-1].data["error"]["code"] == "conflict"
    await pair.first.emptied()
    await pair.second.emptied()


async def test_of_several_that_continue_the_last_one_stays(pair: ContinuingGateways):
    go = asyncio.Event()

    async def wait_and_think(job: Job) -> None:
        await go.wait()
        await write_chat_words(job)

    await pair.serve(TEXT, thinker=wait_and_think)
    go.set()
    first = await pair.begin_answer(TEXT)
    go.clear()
    token, events = first.headers["x-omnibus-continue"], parse_events(first.text)
    resume_tasks = [
        asyncio.ensure_future(pair.resume_answer(token, events[2].id, home)) for home in (pair.first, pair.second) * 3
    ]
    await wait_until(lambda: sum(each.done() for each in resume_tasks) == len(resume_tasks) - 1)

    go.set()

    answers = [await asyncio.wait_for(each, 10) for each in resume_tasks]
    whole = [answer for answer in answers if answer.text.endswith("data: [DONE]\n\n")]
    assert len(whole) == 1
    assert text_of(events[:3]) + text_of(parse_events(whole[0].text)) == text_of(events)
    assert {read_error(answer)["code"] for answer in answers if answer not in whole} == {"conflict"}


# Rejections


def read_error(response: httpx.Response) -> dict[str, Any]:
    """Return the error of an answer, alone or as its last event."""
    if response.status_code != 200:
        return read_error_body(response)
    last: dict[str, Any] = parse_events(response.text)[-1].data["error"]
    return last


async def test_a_different_answer_is_no_continuation(pair: ContinuingGateways):
    words = ["same ", "first"]

    async def write_words(job: Job) -> None:
        for word in words:
            await job.send("text", {"text": word})
        job.close("text", {"finish_reason": "stop", "usage": {}})

    await pair.serve(TEXT, thinker=write_words)
    whole = await pair.begin_answer(TEXT)
    last = [event for event in parse_events(whole.text) if event.id and "content" in event.data["choices"][0]["delta"]][
        -1
    ]
    words[:] = ["same ", "other", " words"]

    rest = await pair.resume_answer(whole.headers["x-omnibus-continue"], last.id)

    assert "words" not in rest.text
    assert read_error(rest)["code"] == "cannot_continue"


async def test_an_answer_that_became_shorter_is_no_continuation(pair: ContinuingGateways):
    words = ["one ", "two ", "three "]

    async def write_words(job: Job) -> None:
        for word in words:
            await job.send("text", {"text": word})
        job.close("text", {"finish_reason": "stop", "usage": {}})

    await pair.serve(TEXT, thinker=write_words)
    whole = await pair.begin_answer(TEXT)
    last = [event for event in parse_events(whole.text) if event.id][-1]
    del words[2:]

    rest = await pair.resume_answer(whole.headers["x-omnibus-continue"], last.id)

    assert read_error(rest)["code"] == "cannot_continue"


async def test_another_tenants_answer_is_not_found(pair: ContinuingGateways):
    await pair.serve(TEXT)
    with acting_as(Tenant("ann")):
        whole = await pair.begin_answer(TEXT)
    token = whole.headers["x-omnibus-continue"]

    with acting_as(Tenant("bob")):
        other_response = await pair.resume_answer(token)
    with acting_as(Tenant("ann")):
        own = await pair.resume_answer(token)

    assert (other_response.status_code, read_error_body(other_response)["code"]) == (404, "not_found")
    assert own.status_code == 200


async def test_names_of_answers_cannot_be_guessed(pair: ContinuingGateways):
    await pair.serve(TEXT)

    tokens = {(await pair.begin_answer(TEXT)).headers["x-omnibus-continue"] for _ in range(5)}

    assert len(tokens) == 5
    assert all(len(token) >= 22 for token in tokens)  # of 64 letters each
    assert (await pair.resume_answer(f"{'a' * 24}")).status_code == 404


async def test_the_event_id_of_another_answer_is_refused(pair: ContinuingGateways):
    await pair.serve(TEXT)
    one, other = await pair.begin_answer(TEXT), await pair.begin_answer(TEXT)

    rest = await pair.resume_answer(one.headers["x-omnibus-continue"], parse_events(other.text)[2].id)

    assert (rest.status_code, read_error_body(rest)["param"]) == (400, "Last-Event-ID")


async def test_the_deadline_is_that_of_the_first_time(pair: ContinuingGateways):
    async def write_and_hang(job: Job) -> None:
        await job.send("text", {"text": "one "})
        await asyncio.Event().wait()

    pair.first.runs.settings = GatewaySettings(media_dir=pair.first.settings.media_dir, deadline=1.0)
    await pair.serve(TEXT, thinker=write_and_hang)
    start_time = asyncio.get_running_loop().time()
    whole = await pair.begin_answer(TEXT)
    token = whole.headers["x-omnibus-continue"]
    assert parse_events(whole.text)[-1].data["error"]["code"] == "deadline_exceeded"

    rest = await pair.resume_answer(token, parse_events(whole.text)[1].id)  # its own deadline would be 30 s

    assert (rest.status_code, read_error_body(rest)["code"]) == (504, "deadline_exceeded")
    assert asyncio.get_running_loop().time() - start_time < 20


async def test_an_answer_that_was_let_in_once_is_continued_however_many_wait(
    pair: ContinuingGateways, monkeypatch: pytest.MonkeyPatch
):
    await pair.serve(TEXT)
    whole = await pair.begin_answer(TEXT)
    events = parse_events(whole.text)
    for name, value in {"total": 1e6, "most_total": 1e6, "is_in_use": True}.items():  # seconds that one more would take
        monkeypatch.setattr(DrainRate, name, value)

    fresh = await pair.second.http.post("/v1/chat/completions", json=build_chat_body(TEXT, WORDS, stream=True))
    rest = await pair.resume_answer(whole.headers["x-omnibus-continue"], events[2].id)

    assert (fresh.status_code, read_error_body(fresh)["code"]) == (429, "overloaded")
    assert rest.status_code == 200
    assert text_of(events[:3]) + text_of(parse_events(rest.text)) == text_of(events)


# Opting in and out


async def test_a_stream_of_which_nobody_asks_it_has_no_ids_and_leaves_nothing_in_the_store(pair: ContinuingGateways):
    await pair.serve(TEXT)

    response = await pair.first.ask(TEXT, stream=True)

    assert "x-omnibus-continue" not in response.headers
    assert not any(event.id for event in parse_events(response.text))
    assert [key async for key in pair.store._redis.scan_iter("test:stream:*")] == []


async def test_what_is_kept_of_a_request_leaves_soon_after_its_answer(pair: ContinuingGateways):
    await pair.serve(TEXT)
    token = (await pair.begin_answer(TEXT)).headers["x-omnibus-continue"]

    async def expires_soon() -> bool:
        keys = [f"test:stream:{token}", f"test:stream:{token}:owner"]
        return all([0 < await pair.store._redis.pttl(key) <= 15_000 for key in keys])

    await wait_until(expires_soon)


@pytest.mark.parametrize(
    ("mode", "requested", "there"), [("always", False, True), ("off", True, False), ("requested", True, True)]
)
async def test_the_setting_says_for_whom_it_is(pair: ContinuingGateways, mode: str, requested: bool, there: bool):
    await pair.serve(TEXT)
    settings = GatewaySettings(media_dir=pair.first.settings.media_dir, continue_streams=mode)
    pair.first.continuations._settings = settings  # type: ignore[union-attr]
    body = build_chat_body(TEXT, "hi", stream=True)

    response = await pair.first.http.post("/v1/chat/completions", json=body, headers=CONTINUE if requested else {})

    assert ("x-omnibus-continue" in response.headers) is there


async def test_a_store_that_is_gone_costs_the_promise_and_not_the_answer(tmp_path: Path):
    async with start_toy_gateway(tmp_path, Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))) as home:
        await home.all_of(TEXT)
        body = build_chat_body(TEXT, WORDS, stream=True)

        response = await home.http.post("/v1/chat/completions", json=body, headers=CONTINUE)

        assert response.status_code == 200
        assert "x-omnibus-continue" not in response.headers
        assert response.text.endswith("data: [DONE]\n\n")


async def test_the_official_client_reads_a_numbered_stream(pair: ContinuingGateways):
    await pair.serve(OMNI)
    client = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="k", http_client=pair.first.http)

    stream = await client.chat.completions.create(
        model=OMNI, messages=[{"role": "user", "content": WORDS}], stream=True, extra_headers=CONTINUE,
        modalities=["text", "audio"], audio={"voice": "Chelsie", "format": "pcm16"},
    )  # type: ignore[call-overload]  # fmt: skip
    chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).startswith("You said one two")
    assert chunks[-1].choices[0].finish_reason == "stop"
