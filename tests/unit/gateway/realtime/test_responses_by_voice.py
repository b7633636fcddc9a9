"""Responses of a realtime session: their events, order, memory and early ends."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from omnibus.executor.runner import Job
from omnibus.structured.calls import call_head
from tests.unit.gateway.house import OMNI, TEXT, ToyGateway, start_toy_gateway
from tests.unit.gateway.realtime_house import (
    SOUND,
    RealtimeCaller,
    join_deltas,
    list_types,
    open_realtime_call,
    sound_of,
)
from tests.unit.gateway.samples import make_sample_picture
from tests.unit.gateway.wires import PATIENCE
from tests.unit.sidecar.node import wait_until


async def test_a_spoken_turn_has_the_events_that_clients_rely_on_in_their_order(
    caller: RealtimeCaller, home: ToyGateway
):
    item = await caller.speak()
    events = await caller.respond()

    order = [type for type in list_types(events) if not type.endswith(".delta")]
    assert order == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    transcript = join_deltas(events, "response.output_audio_transcript.delta")
    response = events[-1]["response"]
    [output_item] = response["output"]
    assert transcript.startswith("You said")
    assert response["status"] == "completed"
    assert output_item["content"] == [{"type": "output_audio", "transcript": transcript}]
    assert events[2]["previous_item_id"] == item
    assert {each.get("response_id", response["id"]) for each in events} == {response["id"]}
    assert len({each["event_id"] for each in caller.events}) == len(caller.events)
    assert len(sound_of(events)) == 240 * 2 * (len(transcript.split()) - 1)  # 240 samples a word; "saw 1" is one
    assert response["usage"]["input_tokens"] == 6
    assert response["usage"]["output_token_details"]["audio_tokens"] > 0
    await home.emptied()


async def test_text_is_answered_in_text_where_that_is_asked_for(caller: RealtimeCaller):
    await caller.update(output_modalities=["text"], seed=3)
    await caller.say("hello there")
    events = await caller.respond(metadata={"topic": "greeting"})

    assert "response.output_audio.delta" not in list_types(events)
    assert join_deltas(events, "response.output_text.delta") == "You said hello there [3] "
    assert next(each for each in events if each["type"] == "response.content_part.added")["part"]["type"] == "text"
    assert events[-1]["response"]["metadata"] == {"topic": "greeting"}


class ListeningThinker:
    """A thinker that records its input, and calls a function if possible."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.items = 0

    async def __call__(self, job: Job) -> None:
        messages = await job.value("messages")
        self.messages = messages if isinstance(messages, list) else json.loads(bytes(messages.array))
        self.items = len(await job.value("items"))
        await job.send("text", {"text": "I look.", "ids": [1]})
        if job.inputs["params"].get("tools"):
            await job.send("text", {"calls": call_head("weather") + '{"city":', "ids": [2]})
            await job.send("text", {"calls": '"Rome"}', "ids": [3]})
        job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": 3}})


async def serve_thinker(home: ToyGateway, model: str, thinker: Any) -> None:
    home.serve(model)
    assert home.router.plan is not None
    for option, spec in home.router.plan.models[model].options.items():
        await home.executor(model, option, *spec.components, thinker=thinker)


async def test_the_model_gets_the_conversation_with_calls_and_what_came_of_them(tmp_path: Path):
    thinker, tool = ListeningThinker(), {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    image = {
        "type": "input_image",
        "image_url": "data:image/png;base64," + base64.b64encode(make_sample_picture("PNG")).decode(),
    }
    async with start_toy_gateway(tmp_path) as home:
        await serve_thinker(home, OMNI, thinker)
        async with open_realtime_call(home) as caller:
            await caller.update(output_modalities=["text"], instructions="Be short.", tools=[tool])
            await caller.say("How is Rome?")
            events = await caller.respond()
            _, call = events[-1]["response"]["output"]
            await caller.ask(
                "conversation.item.create",
                "conversation.item.done",
                item={"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"},
            )
            item = {"type": "message", "role": "user", "content": [image, {"type": "input_text", "text": "And here?"}]}
            await caller.ask("conversation.item.create", "conversation.item.done", item=item)
            await caller.respond(tools=[])

    assert (call["name"], call["arguments"], call["status"]) == ("weather", '{"city":"Rome"}', "completed")
    assert join_deltas(events, "response.function_call_arguments.delta") == '{"city":"Rome"}'
    arguments_event = next(each for each in events if each["type"] == "response.function_call_arguments.done")
    assert (arguments_event["name"], arguments_event["item_id"], arguments_event["output_index"]) == (
        "weather",
        call["id"],
        1,
    )
    roles = [each["role"] for each in thinker.messages]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert thinker.messages[2]["tool_calls"][0]["function"]["name"] == "weather"
    assert thinker.items == 1


async def test_a_response_beside_the_conversation_leaves_it_as_it_is(caller: RealtimeCaller):
    first = await caller.say("one")
    await caller.say("two")
    beside = {"conversation": "none", "input": [{"type": "item_reference", "id": first}], "output_modalities": ["text"]}
    events = await caller.respond(**beside, seed=1)
    again = await caller.respond(output_modalities=["text"], seed=1)

    assert join_deltas(events, "response.output_text.delta") == "You said one [1] "
    assert events[-1]["response"]["conversation_id"] is None
    assert "conversation.item.added" not in list_types(events)
    assert join_deltas(again, "response.output_text.delta") == "You said two [1] "


class Endless:
    """A thinker that writes one word, then waits to be stopped."""

    def __init__(self) -> None:
        self.begun, self.stopped = asyncio.Event(), asyncio.Event()

    async def __call__(self, job: Job) -> None:
        await job.send("text", {"text": "Well, ", "ids": [1]})
        self.begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            self.stopped.set()


async def test_a_cancelled_response_stops_its_executors_and_closes_what_was_begun(tmp_path: Path):
    thinker = Endless()
    async with start_toy_gateway(tmp_path) as home:
        await serve_thinker(home, TEXT, thinker)
        async with open_realtime_call(home, TEXT) as caller:
            await caller.say("go on")
            await caller.send("response.create")
            await caller.until("response.output_text.delta")
            active_error = await caller.refused("response.create")
            await caller.send("response.cancel")
            events = await caller.until("response.done")
            await asyncio.wait_for(thinker.stopped.wait(), PATIENCE)
            inactive = await caller.refused("response.cancel")
        await home.emptied()

    assert active_error["code"] == "conversation_already_has_active_response"
    assert (inactive["code"], inactive["event_id"]) == ("response_cancel_not_active", "mine")
    assert list_types(events)[0] == "response.output_text.done"
    response = events[-1]["response"]
    assert (response["status"], response["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    assert response["output"][0]["status"] == "incomplete"
    assert response["output"][0]["content"] == [{"type": "output_text", "text": "Well, "}]


async def test_a_response_that_is_cancelled_at_once_ends_as_well(caller: RealtimeCaller, home: ToyGateway):
    await caller.say("hello")
    await caller.send("response.create")
    await caller.send("response.cancel")
    events = await caller.until("response.done")

    assert events[-1]["response"]["status"] == "cancelled"
    await home.emptied()


async def test_a_client_that_leaves_ends_its_response(tmp_path: Path):
    thinker = Endless()
    async with start_toy_gateway(tmp_path) as home:
        await serve_thinker(home, TEXT, thinker)
        async with open_realtime_call(home, TEXT) as caller:
            await caller.say("go on")
            await caller.send("response.create")
            await asyncio.wait_for(thinker.begun.wait(), PATIENCE)
        await asyncio.wait_for(thinker.stopped.wait(), PATIENCE)
        await wait_until(lambda: home.table.sessions.count == 0)
        await home.emptied()


async def test_what_was_not_heard_is_forgotten(caller: RealtimeCaller):
    await caller.say("one two three four")
    events = await caller.respond()
    [item] = events[-1]["response"]["output"]
    words, sound = item["content"][0]["transcript"].split(), sound_of(events)
    heard_ms = len(sound) // 2 // 24 // 2  # milliseconds
    range_error = await caller.refused(
        "conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=60_000
    )
    place = {"item_id": item["id"], "content_index": 0}
    truncation = await caller.ask(
        "conversation.item.truncate", "conversation.item.truncated", **place, audio_end_ms=heard_ms
    )
    left = (await caller.ask("conversation.item.retrieve", "conversation.item.retrieved", item_id=item["id"]))["item"]

    assert range_error["param"] == "audio_end_ms"
    assert truncation["audio_end_ms"] == heard_ms
    assert base64.b64decode(left["content"][0]["audio"]) == sound[: heard_ms * 48]
    assert 0 < len(left["content"][0]["transcript"].split()) < len(words)
    assert words[: len(left["content"][0]["transcript"].split())] == left["content"][0]["transcript"].split()


async def test_an_executor_that_fails_fails_the_response_and_not_the_session(tmp_path: Path):
    async def fail_job(job: Job) -> None:
        raise RuntimeError("broken")

    async with start_toy_gateway(tmp_path) as home:
        await serve_thinker(home, TEXT, fail_job)
        async with open_realtime_call(home, TEXT) as caller:
            await caller.say("hello")
            response = (await caller.respond())[-1]["response"]
            assert await caller.say("still here")

    assert response["status"] == "failed"
    assert response["status_details"]["error"]["code"]


async def test_telephones_get_and_give_their_own_formats(caller: RealtimeCaller):
    for kind in ("audio/pcmu", "audio/pcma"):
        format = {"type": kind}
        session = await caller.update(audio={"input": {"format": format}, "output": {"format": format}})
        assert session["audio"]["output"]["format"] == format
        await caller.speak(bytes(range(256)) * 8)
        events = await caller.respond()
        words = join_deltas(events, "response.output_audio_transcript.delta").split()
        assert len(sound_of(events)) == 80 * (len(words) - words.count("saw"))


async def test_audio_of_a_slower_speaker_lasts_longer(caller: RealtimeCaller):
    await caller.say("one two three four five six seven eight nine ten")
    plain = sound_of(await caller.respond(seed=1))
    slow = sound_of(await caller.respond(seed=1, audio={"output": {"speed": 0.5}}))

    assert len(slow) > 1.5 * len(plain)


async def test_what_is_heard_is_a_file_of_the_samples_that_were_sent(tmp_path: Path):
    arrays: list[np.ndarray] = []

    async def encode_audio(job: Job) -> None:
        media = await job.value("media")
        arrays.append(media.array.copy())
        await job.put("embedding", {"tokens": 1}, np.zeros((1, 4), np.float32))

    sound = np.arange(2400, dtype="<i2").tobytes()
    async with start_toy_gateway(tmp_path) as home:
        home.serve(OMNI)
        assert home.router.plan is not None
        for option, spec in home.router.plan.models[OMNI].options.items():
            await home.executor(OMNI, option, *spec.components, audio=encode_audio)
        async with open_realtime_call(home) as caller:
            item = await caller.speak(sound)
            await caller.respond()
            stored_item = (await caller.ask("conversation.item.retrieve", "conversation.item.retrieved", item_id=item))[
                "item"
            ]

    assert bytes(arrays[0]).endswith(sound)
    assert base64.b64decode(stored_item["content"][0]["audio"]) == sound
    assert sound != SOUND
