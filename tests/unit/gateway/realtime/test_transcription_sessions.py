"""Transcription-only sessions, without responses."""

from pathlib import Path

import httpx
import numpy as np
import pytest

from omnibus.settings import StoreSettings
from omnibus.store import Store
from tests.unit.gateway.house import OMNI, TEXT, House, house
from tests.unit.gateway.realtime.test_connections import refused
from tests.unit.gateway.realtime.test_resumed import append, retrieve
from tests.unit.gateway.realtime_house import Caller, connected, joined, types
from tests.unit.gateway.wires import doorway

DONE = "conversation.item.input_audio_transcription.completed"
SPEECH = (np.random.default_rng(0).standard_normal(24000) * 8000).astype("<i2").tobytes()


async def test_each_turn_is_written_down_and_nothing_is_answered(home: House):
    async with doorway(home) as door, connected(f"ws://localhost:{door.port}", query=_query(OMNI)) as caller:
        created = caller.events[0]["session"]
        await append(caller, SPEECH + bytes(48000), 0, 96000)
        first = (await caller.until(DONE))[-1]
        second = await caller.speak(SPEECH[:4800])
        last = (await caller.until(DONE))[-1]
        kept = await retrieve(caller, second)
        refusal = await caller.refused("response.create", response={})
        await home.emptied()

    assert created["type"] == "transcription"
    assert created["object"] == "realtime.transcription_session"
    assert created["audio"]["input"]["transcription"]["model"] == OMNI
    assert "model" not in created
    assert "input_audio_buffer.speech_started" in types(caller.events)
    assert joined(caller.events, DONE.replace("completed", "delta")) == first["transcript"] + last["transcript"]
    assert "Transcribe" in first["transcript"]  # the toy repeats its prompt
    assert kept["content"] == [{"type": "input_audio", "transcript": last["transcript"], "audio": ""}]
    assert refusal["param"] == "type"
    assert "response.created" not in types(caller.events)


def _query(model: str) -> str:
    return f"intent=transcription&model={model}"


async def test_the_model_may_be_named_later(home: House):
    async with doorway(home) as door, connected(f"ws://localhost:{door.port}", query="intent=transcription") as caller:
        await caller.send("input_audio_buffer.append", audio="AAAA")
        assert "transcription.model" in (await caller.refused("input_audio_buffer.commit"))["param"]
        assert "transcription.model" in (await _update(caller, "whisper-1"))["param"]
        assert (await _update(caller, "nobody"))["code"] == "not_found"
        audio = {"input": {"transcription": {"model": OMNI}}}
        await caller.ask("session.update", "session.updated", session={"type": "transcription", "audio": audio})
        await caller.speak(SPEECH[:4800])
        assert (await caller.until(DONE))[-1]["transcript"]


async def _update(caller: Caller, model: str) -> dict[str, str]:
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
async def test_it_has_no_fields_of_responses(home: House, session: dict[str, object], param: str):
    async with doorway(home) as door, connected(f"ws://localhost:{door.port}", query=_query(OMNI)) as caller:
        assert (await caller.refused("session.update", session=session))["param"] == param


async def test_a_model_that_does_not_hear_writes_nothing_down(home: House):
    home.serve(OMNI, TEXT)
    async with doorway(home) as door:
        status, error = await refused(f"ws://localhost:{door.port}/v1/realtime?{_query(TEXT)}")
    assert (status, error["param"]) == (400, "model")


async def test_a_client_secret_opens_one(tmp_path: Path, valkey_url: str):
    store = Store(StoreSettings(url=valkey_url, prefix="secrets"))
    wanted = {"type": "transcription", "audio": {"input": {"transcription": {"model": OMNI}, "turn_detection": None}}}
    async with house(tmp_path, store) as home, doorway(home) as door:
        await home.all_of(OMNI)
        async with httpx.AsyncClient(base_url=f"http://localhost:{door.port}") as http:
            secret = (await http.post("/v1/realtime/client_secrets", json={"session": wanted})).json()
        keys = {"Authorization": f"Bearer {secret['value']}"}
        async with connected(f"ws://localhost:{door.port}", query="", additional_headers=keys) as caller:
            await caller.speak(SPEECH[:4800])
            assert (await caller.until(DONE))[-1]["transcript"]
        async with connected(f"ws://localhost:{door.port}", query="intent=transcription") as other:
            assert other.events[0]["session"]["audio"]["input"]["transcription"] is None
    await store.close()
    assert secret["session"]["type"] == "transcription"
