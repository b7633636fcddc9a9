"""A new version of an app takes over if it repeats recorded answers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from omnibus.bus.subjects import INVOCATIONS
from omnibus.executor.runner import Job
from tests.unit.gateway.apps.estate import ECHO, LOUD, SHOUT, Estate, Gateway, estate, parts
from tests.unit.gateway.house import TOYS, VL, answered, error, image, question, text
from tests.unit.sidecar.node import until

#: Calls the toy model with words around the request, and returns the answer's length, too.
TELL = """
    from omnibus.task import ChatInput, MLLM, Think

    TASK = MLLM(encoders={}, thinker=Think(model="toy-vl", component="thinker"))


    async def serve(request: str) -> dict:
        answer = await TASK(ChatInput.of("{prompt}" + request, max_tokens=40))
        found = await answer.text
        {then}
        return {"said": found, "letters": len(found) * {factor}}
"""
SAME = {"prompt": "please ", "then": "pass", "factor": "1.0"}

#: The same in parts.
STREAM = """
    from collections.abc import AsyncIterator

    from omnibus.task import ChatInput, MLLM, Think

    TASK = MLLM(encoders={}, thinker=Think(model="toy-vl", component="thinker"))


    async def serve(request: str) -> AsyncIterator[str]:
        answer = await TASK(ChatInput.of("{prompt}" + request, max_tokens=40))
        async for chunk in answer.text:
            yield chunk.text
"""

#: An image of the app's own goes through the encoder.
PLACED = """
    import numpy as np
    from omnibus.task import ChatInput, Encode, MLLM, Media, Think

    encoders = {"image": Encode(model="toy-vl", component="vision")}
    TASK = MLLM(encoders=encoders, thinker=Think(model="toy-vl", component="thinker"))


    async def serve(request: str) -> str:
        image = await Media.of(np.full((4, 4, 3), {shade}, np.uint8))
        return await (await TASK(ChatInput.of(request, media=[image], max_tokens=40))).text
"""


async def update(gate: Gateway, name: str, last: int = 5, **more: Any) -> Any:
    response = await gate.ask("PUT", f"/v1/apps/{name}", {"canary": {"last": last, **more}})
    return response.json() if response.status_code == 200 else error(response)


async def recorded(land: Estate) -> int:
    """Return the number of the last record, once all answers are recorded."""
    await land.home.emptied()
    land.home.records.close()
    return (await land.home.bus.read_latest(INVOCATIONS, 1))[-1].number


@pytest.fixture
async def tell(land: Estate, gate: Gateway) -> Gateway:
    """A gateway whose app ``tell`` has answered twice."""
    await land.home.all_of(VL)
    land.write("tell", TELL, **SAME)
    await gate.register("tell")
    for words in ("one", "two three"):
        await gate.invoke("tell", words)
    return gate


async def test_a_version_that_does_the_same_takes_over_and_nothing_of_it_is_recorded(land: Estate, tell: Gateway):
    before, kept = await recorded(land), sorted(Path(land.settings.media_dir).rglob("*"))
    land.write("tell", TELL.replace("found =", "words = 1\n        found ="), **SAME)

    made = await update(tell, "tell")

    assert (made["version"], made["canary"]["compared"]) == (2, 2)
    assert [each["outcome"] for each in made["canary"]["calls"]] == ["same", "same"]
    assert await recorded(land) == before
    assert sorted(Path(land.settings.media_dir).rglob("*")) == kept
    await tell.serves("tell", 2)


async def test_versions_that_do_not_are_stopped(land: Estate, tell: Gateway):
    before = await recorded(land)
    worse = {
        "differed  thinker.text: text is similar by": {"prompt": "kindly "},
        "failed    app_failed:": {"then": "raise ValueError('no')"},
        "differed  answer.letters: relative error 0.5": {"factor": "1.5"},
    }

    refusals = {}
    for what, changes in worse.items():
        land.write("tell", TELL, **{**SAME, **changes})
        refusals[what] = await update(tell, "tell")

    assert {each["code"] for each in refusals.values()} == {"canary_conflict"}
    for what, refused in refusals.items():
        assert "2 of 2 recorded calls were not answered as before" in refused["message"]
        assert what in refused["message"]
    assert await recorded(land) == before
    shown = (await tell.ask("GET", "/v1/apps/tell")).json()
    assert (shown["version"], shown["worker"]["state"]) == (1, "ready")
    assert (await tell.invoke("tell", "hi"))["said"].startswith("You said please hi")


async def test_what_may_differ_is_asked_for(land: Estate, tell: Gateway):
    land.write("tell", TELL, **{**SAME, "prompt": "kindly ", "factor": "1.01"})

    made = await update(tell, "tell", last=1, score=0.5, tolerance=0.2)

    assert (made["version"], made["canary"]["compared"]) == (2, 1)


async def test_registering_another_version_with_a_canary_is_an_update(land: Estate, tell: Gateway):
    source = {"source": {"module": "tell", "directory": "."}, "canary": {"last": 9}}
    land.write("tell", TELL, **{**SAME, "prompt": "kindly "})
    refused = await tell.ask("POST", "/v1/apps", source)
    land.write("tell", TELL, **{**SAME, "then": "assert found"})

    made = await tell.ask("POST", "/v1/apps", source)

    assert (refused.status_code, error(refused)["code"]) == (409, "canary_conflict")
    assert (made.status_code, made.json()["version"]) == (200, 2)


async def test_without_a_recorded_call_nothing_takes_over(land: Estate, gate: Gateway):
    land.write("echo", ECHO, by="one")
    await gate.register("echo")
    await gate.invoke("echo", {"text": "hi"})  # it calls no task, so there is no record
    land.write("echo", ECHO, by="two")

    refused = await update(gate, "echo")

    assert refused["code"] == "canary_conflict"
    assert "recorded calls could be compared" in refused["message"]
    assert (await gate.invoke("echo", {"text": "hi"}))["by"] == "one"


async def test_a_canary_that_makes_no_sense_is_refused_before_anything_is_loaded(land: Estate, tell: Gateway):
    refused = await update(tell, "tell", last=0)

    assert (refused["code"], refused["param"]) == ("bad_request", "canary")


async def test_parts_are_compared_however_they_are_cut(land: Estate, gate: Gateway):
    await land.home.all_of(VL)
    land.write("stream", STREAM, prompt="please ")
    await gate.register("stream")
    assert parts(await gate.http.post("/v1/apps/stream/invoke", json="one"))[-1] == "[DONE]"
    halves = STREAM.replace("yield chunk.text", "yield chunk.text[:1]; yield chunk.text[1:]")

    land.write("stream", halves, prompt="kindly ")
    refused = await update(gate, "stream")
    land.write("stream", halves, prompt="please ")
    made = await update(gate, "stream")

    assert refused["code"] == "canary_conflict"
    assert made["canary"]["compared"] == 1


async def test_chats_and_their_media_are_given_again(land: Estate, gate: Gateway):
    await land.home.all_of(VL)
    land.write("loud", LOUD, model="toy-loud")
    await gate.register("loud")
    asked = question("toy-loud", [text("what is it"), image()])
    assert answered(await gate.http.post("/v1/chat/completions", json=asked)).startswith("YOU SAID WHAT IS IT SAW")
    await gate.invoke("loud", {"messages": asked["messages"]})
    before = await recorded(land)

    land.write("loud", LOUD.replace("upper", "title"), model="toy-loud")
    refused = await update(gate, "loud")
    land.write("loud", LOUD.replace("upper", "swapcase().upper"), model="toy-loud")
    made = await update(gate, "loud")

    assert "answer.text: text is similar by" in refused["message"]
    assert "2 of 2" in refused["message"]
    assert made["canary"]["compared"] == 2
    assert await recorded(land) == before


async def test_media_that_an_app_places_are_kept_nowhere(land: Estate, gate: Gateway):
    await land.home.all_of(VL)
    land.write("placed", PLACED, shade="3")
    await gate.register("placed")
    await gate.invoke("placed", "what is it")
    await recorded(land)
    kept = sorted(Path(land.settings.media_dir).rglob("*"))

    land.write("placed", PLACED, shade="200")
    refused = await update(gate, "placed")
    land.write("placed", PLACED, shade="2 + 1")
    made = await update(gate, "placed")

    assert "vision.embedding" in refused["message"]
    assert made["canary"]["compared"] == 1
    assert sorted(Path(land.settings.media_dir).rglob("*")) == kept


async def test_own_unit_tasks_of_the_new_version_run_for_it_alone(land: Estate, gate: Gateway):
    await land.home.all_of(VL)
    land.plan_apps()
    land.write("shouting", SHOUT, cls="Shouting", fields="")
    await gate.register("shouting")
    assert await gate.invoke("shouting", "hi") == "HI!"
    await recorded(land)
    land.write("shouting", SHOUT.replace("upper", "title"), cls="Shouting", fields="mark='?'")

    refused = await update(gate, "shouting")

    assert "1 of 1 recorded calls" in refused["message"]
    assert await gate.invoke("shouting", "hi") == "HI!"


async def test_a_long_request_is_kept_beside_its_record_and_given_again(land: Estate, tell: Gateway):
    await tell.invoke("tell", "word " * 8000)

    made = await update(tell, "tell", last=1)

    assert made["canary"]["compared"] == 1


async def test_it_runs_only_while_users_leave_room(land: Estate, gate: Gateway):
    begun, go = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    async def think(job: Job) -> None:
        runs.append((await job.value("messages"))[-1]["content"])
        if runs[-1] == "wait":
            begun.set()
            await go.wait()
        await TOYS["thinker"](job)

    land.home.serve(VL)
    await land.home.executor(VL, "EL", "vision", "thinker", thinker=think)
    land.write("tell", TELL, **SAME)
    await gate.register("tell")
    await gate.invoke("tell", "one")
    await recorded(land)
    runs.clear()
    user = asyncio.ensure_future(land.home.ask(content="wait", path="EL"))
    await begun.wait()

    refused = await update(gate, "tell", within=0.5)
    crowded = list(runs)
    waiting = asyncio.ensure_future(update(gate, "tell"))
    await asyncio.sleep(0.2)
    go.set()

    assert "no spare room" in refused["message"]
    assert crowded == ["wait"]
    assert (await waiting)["canary"]["compared"] == 1
    assert answered(await user).startswith("You said wait")
    await until(lambda: land.home.dispatcher.inflight_count == 0)


async def test_records_of_digests_cannot_be_given_again(tmp_path: Path, valkey_url: str):
    async with estate(tmp_path, valkey_url, record="digest") as land:
        gate = land.gateway()
        await until(lambda: not gate.apps.registry.starting_apps)
        await land.home.all_of(VL)
        land.write("secret", TELL, **SAME)
        await gate.register("secret")
        await gate.invoke("secret", "one")

        refused = await update(gate, "secret")

    assert "OMNIBUS_GATEWAY_RECORD=full" in refused["message"]
