"""A new version of an app takes over if it repeats recorded answers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from omnibus.bus.subjects import INVOCATIONS
from omnibus.executor.runner import Job
from tests.unit.gateway.apps.estate import (
    ECHO,
    LOUD,
    SHOUT,
    AppCluster,
    AppGateway,
    read_stream_parts,
    start_app_cluster,
)
from tests.unit.gateway.house import (
    TOYS,
    VL,
    build_chat_body,
    make_image_part,
    make_text_part,
    read_chat_answer,
    read_error_body,
)
from tests.unit.sidecar.node import wait_until

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


async def update_app(gate: AppGateway, name: str, last: int = 5, **more: Any) -> Any:
    response = await gate.ask("PUT", f"/v1/apps/{name}", {"canary": {"last": last, **more}})
    return response.json() if response.status_code == 200 else read_error_body(response)


async def last_record_number(cluster: AppCluster) -> int:
    """Return the number of the last record, once all answers are recorded."""
    await cluster.home.emptied()
    cluster.home.records.close()
    return (await cluster.home.bus.read_latest(INVOCATIONS, 1))[-1].number


@pytest.fixture
async def tell_gateway(cluster: AppCluster, gate: AppGateway) -> AppGateway:
    """A gateway whose app ``tell`` has answered twice."""
    await cluster.home.all_of(VL)
    cluster.write("tell", TELL, **SAME)
    await gate.register("tell")
    for words in ("one", "two three"):
        await gate.invoke("tell", words)
    return gate


async def test_a_version_that_does_the_same_takes_over_and_nothing_of_it_is_recorded(
    cluster: AppCluster, tell_gateway: AppGateway
):
    before, media_files = await last_record_number(cluster), sorted(Path(cluster.settings.media_dir).rglob("*"))
    cluster.write("tell", TELL.replace("found =", "words = 1\n        found ="), **SAME)

    update_response = await update_app(tell_gateway, "tell")

    assert (update_response["version"], update_response["canary"]["compared"]) == (2, 2)
    assert [each["outcome"] for each in update_response["canary"]["calls"]] == ["same", "same"]
    assert await last_record_number(cluster) == before
    assert sorted(Path(cluster.settings.media_dir).rglob("*")) == media_files
    await tell_gateway.serves("tell", 2)


async def test_versions_that_do_not_are_stopped(cluster: AppCluster, tell_gateway: AppGateway):
    before = await last_record_number(cluster)
    worse = {
        "differed  thinker.text: text is similar by": {"prompt": "kindly "},
        "failed    app_failed:": {"then": "raise ValueError('no')"},
        "differed  answer.letters: relative error 0.5": {"factor": "1.5"},
    }

    refusals = {}
    for fault, changes in worse.items():
        cluster.write("tell", TELL, **{**SAME, **changes})
        refusals[fault] = await update_app(tell_gateway, "tell")

    assert {each["code"] for each in refusals.values()} == {"canary_conflict"}
    for fault, refusal in refusals.items():
        assert "2 of 2 recorded calls were not answered as before" in refusal["message"]
        assert fault in refusal["message"]
    assert await last_record_number(cluster) == before
    view = (await tell_gateway.ask("GET", "/v1/apps/tell")).json()
    assert (view["version"], view["worker"]["state"]) == (1, "ready")
    assert (await tell_gateway.invoke("tell", "hi"))["said"].startswith("You said please hi")


async def test_what_may_differ_is_asked_for(cluster: AppCluster, tell_gateway: AppGateway):
    cluster.write("tell", TELL, **{**SAME, "prompt": "kindly ", "factor": "1.01"})

    update_response = await update_app(tell_gateway, "tell", last=1, score=0.5, tolerance=0.2)

    assert (update_response["version"], update_response["canary"]["compared"]) == (2, 1)


async def test_registering_another_version_with_a_canary_is_an_update(cluster: AppCluster, tell_gateway: AppGateway):
    source = {"source": {"module": "tell", "directory": "."}, "canary": {"last": 9}}
    cluster.write("tell", TELL, **{**SAME, "prompt": "kindly "})
    rejection = await tell_gateway.ask("POST", "/v1/apps", source)
    cluster.write("tell", TELL, **{**SAME, "then": "assert found"})

    update_response = await tell_gateway.ask("POST", "/v1/apps", source)

    assert (rejection.status_code, read_error_body(rejection)["code"]) == (409, "canary_conflict")
    assert (update_response.status_code, update_response.json()["version"]) == (200, 2)


async def test_without_a_recorded_call_nothing_takes_over(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    await gate.register("echo")
    await gate.invoke("echo", {"text": "hi"})  # it calls no task, so there is no record
    cluster.write("echo", ECHO, by="two")

    rejection = await update_app(gate, "echo")

    assert rejection["code"] == "canary_conflict"
    assert "recorded calls could be compared" in rejection["message"]
    assert (await gate.invoke("echo", {"text": "hi"}))["by"] == "one"


async def test_a_canary_that_makes_no_sense_is_refused_before_anything_is_loaded(
    cluster: AppCluster, tell_gateway: AppGateway
):
    rejection = await update_app(tell_gateway, "tell", last=0)

    assert (rejection["code"], rejection["param"]) == ("bad_request", "canary")


async def test_parts_are_compared_however_they_are_cut(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(VL)
    cluster.write("stream", STREAM, prompt="please ")
    await gate.register("stream")
    assert read_stream_parts(await gate.http.post("/v1/apps/stream/invoke", json="one"))[-1] == "[DONE]"
    halves = STREAM.replace("yield chunk.text", "yield chunk.text[:1]; yield chunk.text[1:]")

    cluster.write("stream", halves, prompt="kindly ")
    rejection = await update_app(gate, "stream")
    cluster.write("stream", halves, prompt="please ")
    update_response = await update_app(gate, "stream")

    assert rejection["code"] == "canary_conflict"
    assert update_response["canary"]["compared"] == 1


async def test_chats_and_their_media_are_given_again(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(VL)
    cluster.write("loud", LOUD, model="toy-loud")
    await gate.register("loud")
    chat_body = build_chat_body("toy-loud", [make_text_part("what is it"), make_image_part()])
    assert read_chat_answer(await gate.http.post("/v1/chat/completions", json=chat_body)).startswith(
        "YOU SAID WHAT IS IT SAW"
    )
    await gate.invoke("loud", {"messages": chat_body["messages"]})
    before = await last_record_number(cluster)

    cluster.write("loud", LOUD.replace("upper", "title"), model="toy-loud")
    rejection = await update_app(gate, "loud")
    cluster.write("loud", LOUD.replace("upper", "swapcase().upper"), model="toy-loud")
    update_response = await update_app(gate, "loud")

    assert "answer.text: text is similar by" in rejection["message"]
    assert "2 of 2" in rejection["message"]
    assert update_response["canary"]["compared"] == 2
    assert await last_record_number(cluster) == before


async def test_media_that_an_app_places_are_kept_nowhere(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(VL)
    cluster.write("placed", PLACED, shade="3")
    await gate.register("placed")
    await gate.invoke("placed", "what is it")
    await last_record_number(cluster)
    media_files = sorted(Path(cluster.settings.media_dir).rglob("*"))

    cluster.write("placed", PLACED, shade="200")
    rejection = await update_app(gate, "placed")
    cluster.write("placed", PLACED, shade="2 + 1")
    update_response = await update_app(gate, "placed")

    assert "vision.embedding" in rejection["message"]
    assert update_response["canary"]["compared"] == 1
    assert sorted(Path(cluster.settings.media_dir).rglob("*")) == media_files


async def test_own_unit_tasks_of_the_new_version_run_for_it_alone(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(VL)
    cluster.plan_apps()
    cluster.write("shouting", SHOUT, cls="Shouting", fields="")
    await gate.register("shouting")
    assert await gate.invoke("shouting", "hi") == "HI!"
    await last_record_number(cluster)
    cluster.write("shouting", SHOUT.replace("upper", "title"), cls="Shouting", fields="mark='?'")

    rejection = await update_app(gate, "shouting")

    assert "1 of 1 recorded calls" in rejection["message"]
    assert await gate.invoke("shouting", "hi") == "HI!"


async def test_a_long_request_is_kept_beside_its_record_and_given_again(cluster: AppCluster, tell_gateway: AppGateway):
    await tell_gateway.invoke("tell", "word " * 8000)

    update_response = await update_app(tell_gateway, "tell", last=1)

    assert update_response["canary"]["compared"] == 1


async def test_it_runs_only_while_users_leave_room(cluster: AppCluster, gate: AppGateway):
    begin_event, go = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    async def think_or_wait(job: Job) -> None:
        runs.append((await job.value("messages"))[-1]["content"])
        if runs[-1] == "wait":
            begin_event.set()
            await go.wait()
        await TOYS["thinker"](job)

    cluster.home.serve(VL)
    await cluster.home.executor(VL, "EL", "vision", "thinker", thinker=think_or_wait)
    cluster.write("tell", TELL, **SAME)
    await gate.register("tell")
    await gate.invoke("tell", "one")
    await last_record_number(cluster)
    runs.clear()
    user = asyncio.ensure_future(cluster.home.ask(content="wait", path="EL"))
    await begin_event.wait()

    rejection = await update_app(gate, "tell", within=0.5)
    early_runs = list(runs)
    waiting = asyncio.ensure_future(update_app(gate, "tell"))
    await asyncio.sleep(0.2)
    go.set()

    assert "no spare room" in rejection["message"]
    assert early_runs == ["wait"]
    assert (await waiting)["canary"]["compared"] == 1
    assert read_chat_answer(await user).startswith("You said wait")
    await wait_until(lambda: cluster.home.dispatcher.inflight_count == 0)


async def test_records_of_digests_cannot_be_given_again(tmp_path: Path, valkey_url: str):
    async with start_app_cluster(tmp_path, valkey_url, record="digest") as cluster:
        gate = cluster.gateway()
        await wait_until(lambda: not gate.apps.registry.starting_apps)
        await cluster.home.all_of(VL)
        cluster.write("secret", TELL, **SAME)
        await gate.register("secret")
        await gate.invoke("secret", "one")

        rejection = await update_app(gate, "secret")

    assert "OMNIBUS_GATEWAY_RECORD=full" in rejection["message"]
