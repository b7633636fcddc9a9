"""Sessions that move between gateways: no event is lost, repeated or sent to another client."""

import asyncio
import base64
import json
from typing import Any

import numpy as np

from omnibus.executor.runner import Job
from tests.unit.gateway.house import OMNI, TOYS
from tests.unit.gateway.realtime.test_connections import expect_rejection
from tests.unit.gateway.realtime_doors import Doors
from tests.unit.gateway.realtime_house import RealtimeCaller, connect_caller, join_deltas, list_types, sound_of
from tests.unit.sidecar.node import wait_until

WORDS = [f"word{number} " for number in range(8)]
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
CODE_BYTES = 480  # of the audio of a code
PUSH_TO_TALK = {"input": {"turn_detection": None}}


class PausingSpeaker:
    """A thinker that pauses after its first ``pause`` words until a signal."""

    def __init__(self, pause: int) -> None:
        self.pause = pause
        self.go = asyncio.Event()
        self.known: list[list[int]] = []
        self.seeds: list[int] = []

    async def __call__(self, job: Job) -> None:
        known_ids = list(job.resume_state("text").get("ids", ()))
        self.known.append(known_ids)
        self.seeds.append(job.seed)
        rows = None
        if job.has_consumer("rows"):
            await job.put("prompt", {}, np.zeros((3, 4), np.float32))
            await job.put("layout", {}, np.zeros((3, 1), np.int64))
            rows = await job.open_rows("rows", len(WORDS), 4, "float32")
        groups = [known_ids] if known_ids else []
        for ids in [*groups, *([number] for number in range(len(known_ids), len(WORDS)))]:
            if ids == [self.pause]:
                await self.go.wait()
            if rows is not None:
                rows.write(np.repeat(np.array(ids, np.float32)[:, None], 4, 1))
            await job.send("text", {"text": "".join(WORDS[id] for id in ids), "ids": ids})
        if rows is not None:
            job.close("rows")
        job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": len(WORDS)}})


async def test_a_response_continues_in_the_middle_of_a_word_at_another_gateway(doors: Doors):
    speaker = PausingSpeaker(4)
    await doors.serve(OMNI, thinker=speaker)
    async with doors.opened() as caller:
        await caller.update(audio=PUSH_TO_TALK)
        item = await caller.speak()
        await caller.send("response.create", response={"metadata": {"mine": "1"}})
        await until_said(caller, 4)
        caller.socket.transport.abort()
    had = caller.events

    async with doors.resumed(caller) as rest:
        speaker.go.set()
        events = await rest.until("response.done")
        resume_event = next(each for each in events if each["type"] == "session.resumed")
        whole = [*had, *events]
        again = await rest.respond(seed=speaker.seeds[0])
        item_event = await rest.ask("conversation.item.retrieve", "conversation.item.retrieved", item_id=item)

    assert resume_event["session"]["id"] == had[0]["session"]["id"]
    assert resume_event["active_responses"] == [events[-1]["response"]["id"]]
    assert resume_event["input_audio_bytes"] == len(base64.b64decode(item_event["item"]["content"][0]["audio"]))
    assert speaker.known[1] == [0, 1, 2, 3]
    assert speaker.seeds[0] == speaker.seeds[1]
    text = "response.output_audio_transcript.delta"
    assert join_deltas(whole, text) == join_deltas(again, text) == "".join(WORDS)
    assert sound_of(whole) == sound_of(again)
    order = [type for type in list_types(whole) if type.startswith("response.") and not type.endswith(".delta")]
    assert order == [type for type in list_types(again) if type.startswith("response.") and not type.endswith(".delta")]
    final_response = events[-1]["response"]
    assert (final_response["status"], final_response["metadata"]) == ("completed", {"mine": "1"})
    assert final_response["output"][0]["content"] == again[-1]["response"]["output"][0]["content"]
    assert len({each["event_id"] for each in whole}) == len(whole)
    await doors.first.emptied()


async def test_its_talker_goes_on_behind_the_codes_that_were_heard(doors: Doors):
    speaker, code_lists = PausingSpeaker(4), list[list[int]]()

    async def record_codes(job: Job) -> None:
        code_lists.append(list(job.resume_state("codes").get("codes", ())))
        await TOYS["talker"](job)

    await doors.serve(OMNI, thinker=speaker, talker=record_codes)
    async with doors.opened() as caller:
        await caller.update(audio=PUSH_TO_TALK)
        await caller.say("hello")
        await caller.send("response.create", response={})
        while len(sound_of(caller.events)) < 4 * CODE_BYTES:
            await caller.next()
        caller.socket.transport.abort()
    had = caller.events

    async with doors.resumed(caller) as rest:
        speaker.go.set()
        whole = [*had, *await rest.until("response.done")]
        again = await rest.respond(seed=speaker.seeds[0])
    await doors.first.emptied()

    assert whole[-1]["response"]["status"] == "completed"
    assert code_lists[0] == code_lists[2] == []
    assert code_lists[1] == [0, 1, 2, 3]
    assert sound_of(whole) == sound_of(again)


async def until_said(caller: RealtimeCaller, words: int) -> None:
    while join_deltas(caller.events, "response.output_audio_transcript.delta").count(" ") < words:
        await caller.next()


async def test_all_that_the_client_has_not_seen_is_sent_again_from_any_event_on(doors: Doors):
    speaker = PausingSpeaker(4)
    speaker.go.set()
    await doors.serve(OMNI, thinker=speaker)
    async with doors.opened() as caller:
        await caller.update(tools=[TOOL], instructions="Be short.")
        await caller.say("one")
        await caller.respond()
        caller.socket.transport.abort()
    every = caller.events

    for place in (1, 5, len(every) // 2, len(every) - 2):
        async with doors.resumed(caller, every[place]["event_id"], place % 2) as rest:
            resume_events = await rest.until("session.resumed")
            assert resume_events[:-1][: len(every) - place - 1] == every[place + 1 :], place
            assert resume_events[-1]["session"]["instructions"] == "Be short."
            rest.socket.transport.abort()


async def test_the_conversation_is_whole_with_what_was_cut_and_removed(doors: Doors):
    await doors.serve(OMNI)
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}
    async with doors.opened() as caller:
        await caller.update(audio=PUSH_TO_TALK)
        first = await caller.say("one")
        spoken_id = await caller.speak(bytes(range(250)) * 40)
        await caller.ask(
            "conversation.item.create",
            "conversation.item.done",
            item={"id": "shown", "type": "message", "role": "user", "content": [image]},
            previous_item_id="root",
        )
        answer = (await caller.respond(input=[{"type": "item_reference", "id": first}]))[-1]["response"]["output"][0]
        await caller.ask(
            "conversation.item.truncate",
            "conversation.item.truncated",
            item_id=answer["id"],
            content_index=0,
            audio_end_ms=12,
        )
        await caller.ask("conversation.item.delete", "conversation.item.deleted", item_id=first)
        await caller.send("input_audio_buffer.append", audio=base64.b64encode(bytes(700)).decode())
        items = [await retrieve_item(caller, id) for id in ("shown", spoken_id, answer["id"])]
        await asyncio.sleep(0.3)  # audio alone is not sent back, so it is logged a little later
        caller.socket.transport.abort()

    async with doors.resumed(caller) as rest:
        resume_events = await rest.until("session.resumed")
        assert resume_events[-1]["input_audio_bytes"] == 250 * 40 + 700
        assert [await retrieve_item(rest, id) for id in ("shown", spoken_id, answer["id"])] == items
        missing_error = await rest.refused("conversation.item.retrieve", item_id=first)
        assert missing_error["code"] == "item_retrieve_invalid_item_id"
        await rest.send("input_audio_buffer.append", audio=base64.b64encode(bytes(300)).decode())
        turn = (await rest.ask("input_audio_buffer.commit", "conversation.item.done"))["item"]["id"]
        audio = (await retrieve_item(rest, turn))["content"][0]["audio"]
        before = next(each for each in rest.events if each["type"] == "input_audio_buffer.committed")

    assert len(base64.b64decode(audio)) == 1000
    assert before["previous_item_id"] == answer["id"]
    assert len(base64.b64decode(items[2]["content"][0]["audio"])) == 12 * 48


async def retrieve_item(caller: RealtimeCaller, id: str) -> dict[str, Any]:
    return dict((await caller.ask("conversation.item.retrieve", "conversation.item.retrieved", item_id=id))["item"])


async def test_a_turn_that_was_being_spoken_goes_on_without_a_sample_lost(doors: Doors):
    await doors.serve(OMNI)
    random = np.random.default_rng(0)
    speech = (random.standard_normal(24000) * 8000).astype("<i2").tobytes()
    sound = bytes(48000) + speech + bytes(48000)
    async with doors.opened() as caller:
        at = await send_audio(caller, sound, 0, 48000 + 24000)
        await caller.until("input_audio_buffer.speech_started")
        await asyncio.sleep(0.3)
        caller.socket.transport.abort()

    async with doors.resumed(caller) as rest:
        resume_event = (await rest.until("session.resumed"))[-1]
        assert resume_event["input_audio_bytes"] == at
        await send_audio(rest, sound, resume_event["input_audio_bytes"], len(sound))
        stop_event = (await rest.until("input_audio_buffer.speech_stopped"))[-1]
        await rest.until("response.done")
        audio = (await retrieve_item(rest, stop_event["item_id"]))["content"][0]["audio"]

    start_event = next(each for each in caller.events if each["type"] == "input_audio_buffer.speech_started")
    assert stop_event["item_id"] == start_event["item_id"]
    begin = start_event["audio_start_ms"] * 48
    assert base64.b64decode(audio) == sound[begin : stop_event["audio_end_ms"] * 48]
    assert stop_event["audio_end_ms"] == 1000 + 500 + 500 or stop_event["audio_end_ms"] == 1000 + 1000 + 500


async def send_audio(caller: RealtimeCaller, audio: bytes, begin: int, end: int) -> int:
    for at in range(begin, end, 4800):
        part = audio[at : min(at + 4800, end)]
        await caller.send("input_audio_buffer.append", audio=base64.b64encode(part).decode())
    return end


async def test_silence_is_not_kept_but_counted(doors: Doors):
    await doors.serve(OMNI)
    async with doors.opened() as caller:
        await send_audio(caller, bytes(48000 * 4), 0, 48000 * 4)
        await caller.say("all of it has come")
        caller.socket.transport.abort()

    async with doors.resumed(caller) as rest:
        position = (await rest.until("session.resumed"))[-1]["input_audio_bytes"]
    assert 48000 * 2 < position <= 48000 * 4 - 300 * 48  # the client must resend a possible turn


async def test_what_cannot_be_resumed_is_refused(doors: Doors):
    await doors.serve(OMNI)
    base = f"ws://localhost:{doors.ports[1]}/v1/realtime"
    async with doors.opened() as caller:
        token, last = caller.events[0]["session"]["resume_token"], caller.events[-1]["event_id"]
        assert (await expect_rejection(f"{base}?resume={token}x&last_event_id={last}"))[0] == 404
        assert (await expect_rejection(f"{base}?resume=sess_nobody.x&last_event_id={last}"))[0] == 404
        for wrong in ("", "event_1", last.replace("_2", "_3"), last.replace("_2", "_0")):
            assert (await expect_rejection(f"{base}?resume={token}&last_event_id={wrong}"))[1][
                "param"
            ] == "last_event_id"
        assert (await expect_rejection(f"{base}?model={OMNI}&resumable=perhaps"))[1]["param"] == "resumable"
        assert (await expect_rejection(f"{base}?model={OMNI}&last_event_id={last}"))[1]["param"] == "last_event_id"
    await wait_until(lambda: not doors.first.table.sessions.count)
    status, error = await expect_rejection(f"{base}?resume={token}&last_event_id={last}")
    assert (status, "closed" in error["message"]) == (404, True)
    async with connect_caller(f"ws://localhost:{doors.ports[0]}") as plain:
        assert "resume_token" not in plain.events[0]["session"]


async def test_an_answer_that_comes_out_otherwise_is_not_continued(doors: Doors):
    speaker = PausingSpeaker(4)
    await doors.serve(OMNI, thinker=speaker)
    async with doors.opened() as caller:
        await caller.update(output_modalities=["text"])
        await caller.say("one")
        await caller.send("response.create", response={})
        while join_deltas(caller.events, "response.output_text.delta").count(" ") < 4:
            await caller.next()
        caller.socket.transport.abort()
    await wait_until(lambda: not doors.first.table.sessions.count)
    speaker.go.set()

    WORDS[0] = "other0 "
    try:
        async with doors.resumed(caller) as rest:
            final_response = (await rest.until("response.done"))[-1]["response"]
    finally:
        WORDS[0] = "word0 "
    assert (final_response["status"], final_response["status_details"]["error"]["code"]) == (
        "failed",
        "cannot_continue",
    )
    assert json.dumps(final_response).count("word0") == 1
