"""Transcription-only sessions, without responses."""

from pathlib import Path

import httpx
import numpy as np
import pytest

from omnibus.settings import StoreSettings
from omnibus.store import Store
from tests.unit.gateway.house import OMNI, TEXT, ToyGateway, start_toy_gateway
from tests.unit.gateway.realtime.test_connections import expect_rejection
from tests.unit.gateway.realtime.test_resumed import retrieve_item, send_audio
from tests.unit.gateway.realtime_house import RealtimeCaller, connect_caller, join_deltas, list_types
from tests.unit.gateway.wires import open_doorway

DONE = "conversation.item.input_audio_transcription.completed"
SPEECH = (np.random.default_rng(0).standard_normal(24000) * 8000).astype("<i2").tobytes()


async def test_each_turn_is_written_down_and_nothing_is_answered(home: ToyGateway):
    async with (
        open_doorway(home) as door,
        connect_caller(f"ws://localhost:{door.port}", query=_build_query(OMNI)) as caller,
    ):
        session = caller.events[0]["session"]
        await send_audio(caller, SPEECH + bytes(48000), 0, 96000)
        first = (await caller.until(DONE))[-1]
        second = await caller.speak(SPEECH[:4800])
        last = (await caller.until(DONE))[-1]
        item = await retrieve_item(caller, second)
        refusal = await caller.refused("response.create", response={})
        await home.emptied()

    assert session["type"] == "transcription"
    assert session["object"] == "realtime.transcription_session"
    assert session["audio"]["input"]["transcription"]["model"] == OMNI
    assert "model" not in session
    assert "input_audio_buffer.speech_started" in list_types(caller.events)
    assert join_deltas(caller.events, DONE.replace("completed", "delta")) == first["transcript"] + last["transcript"]
    assert "Transcribe" in first["transcript"]  # the toy repeats its prompt
    assert item["content"] == [{"type": "input_audio", "transcript": last["transcript"], "audio": ""}]
    assert refusal["param"] == "type"
    assert "response.created" not in list_types(caller.events)


def _build_query(model: str) -> str:
    return f"intent=transcription&model={model}"


async def test_the_model_may_be_named_later(home: ToyGateway):
    async with (
        open_doorway(home) as door,
        connect_caller(f"ws://localhost:{door.port}", query="intent=transcription") as caller,
    ):
        await caller.send("input_audio_buffer.append", audio="AAAA")
        assert "transcription.model" in (await caller.refused("input_audio_buffer.commit"))["param"]
        assert "transcription.model" in (await _update_model(caller, "whisper-1"))["param"]
        assert (await _update_model(caller, "nobody"))["code"] == "not_found"
        audio = {"input": {"transcription": {"model": OMNI}}}
        await caller.ask("session.update", "session.updated", session={"type": "transcription", "audio": audio})
        await caller.speak(SPEECH[:4800])
        assert (await caller.until(DONE))[-1]["transcript"]


async def _update_model(caller: RealtimeCaller, model: str) -> dict[str, str]:
    audio = {"input": {"transcription": {"model": model}}}
    return await caller.refused("session.update", session={"type": "transcription", "audio": audio})


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"type": "realtime"}, "session.type"),
        ({"type": "transcription", "instructions": "Be short."}, "session.instructions"),
        ({"type": "transcription", "audio": {"output": {"voice": "Chelsie"}}}, "session.audio.output"),
    ],
)
async def test_it_has_no_fields_of_responses(home: ToyGateway, session: dict[str, object], param: str):
    async with (
        open_doorway(home) as door,
        connect_caller(f"ws://localhost:{door.port}", query=_build_query(OMNI)) as caller,
    ):
        assert (await caller.refused("session.update", session=session))["param"] == param


async def test_a_model_that_does_not_hear_writes_nothing_down(home: ToyGateway):
    home.serve(OMNI, TEXT)
    async with open_doorway(home) as door:
        status, error = await expect_rejection(f"ws://localhost:{door.port}/v1/realtime?{_build_query(TEXT)}")
    assert (status, error["param"]) == (400, "model")


async def test_a_client_secret_opens_one(tmp_path: Path, valkey_url: str):
    store = Store(StoreSettings(url=valkey_url, prefix="secrets"))
    config = {"type": "transcription", "audio": {"input": {"transcription": {"model": OMNI}, "turn_detection": None}}}
    async with start_toy_gateway(tmp_path, store) as home, open_doorway(home) as door:
        await home.all_of(OMNI)
        async with httpx.AsyncClient(base_url=f"http://localhost:{door.port}") as http:
            secret = (await http.post("/v1/realtime/client_secrets", json={"session": config})).json()
        keys = {"Authorization": f"Bearer {secret['value']}"}
        async with connect_caller(f"ws://localhost:{door.port}", query="", additional_headers=keys) as caller:
            await caller.speak(SPEECH[:4800])
            assert (await caller.until(DONE))[-1]["transcript"]
        async with connect_caller(f"ws://localhost:{door.port}", query="intent=transcription") as other:
            assert other.events[0]["session"]["audio"]["input"]["transcription"] is None
    await store.close()
    assert secret["session"]["type"] == "transcription"
