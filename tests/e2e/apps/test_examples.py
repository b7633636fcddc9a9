"""Every example works on a real system with its named models."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import nats
import pytest

from omnibus.bus import subjects
from tests import models_oracle as oracle
from tests.e2e.apps.conftest import EXAMPLES, TWIN
from tests.e2e.apps.estate import AppSystem, read_error, read_events
from tests.e2e.questions import VL_QUESTIONS, Question, make_audio, make_image, make_question
from tests.e2e.system import ROOT, VL
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

TOKENS = 20
PICTURED = make_question(make_image(1), "what is in this picture?")
#: Their serve is given to `openai` clients under these names.
MODELS = {"mllm": "my-mllm", "router": "routed", "poet": "poet"}


def greedy_body(question: Question, **more: Any) -> dict[str, Any]:
    return {"messages": question.messages, "max_tokens": TOKENS, "temperature": 0, **more}


async def send_chat(estate: AppSystem, model: str, question: Question, path: str = "", **more: Any) -> tuple[str, str]:
    """Ask ``model`` through the official client; return the text and the invocation's id."""
    headers = {"x-omnibus-path": path} if path else {}
    async with estate.system.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=model, **greedy_body(question, **more), extra_headers=headers
        )
    return raw.parse().choices[0].message.content or "", raw.headers["x-request-id"]


async def stream_chat(estate: AppSystem, model: str, question: Question) -> list[str]:
    """The same, delta by delta."""
    async with estate.system.client() as client:
        stream = await client.chat.completions.create(model=model, stream=True, **greedy_body(question))
        return [
            chunk.choices[0].delta.content async for chunk in stream if chunk.choices and chunk.choices[0].delta.content
        ]


async def replay_invocation(estate: AppSystem, id: str) -> dict[str, Any]:
    """Return the outcome of replaying a recorded invocation."""
    async with estate.system.bus() as bus:
        body, _ = await estate.system.record(id)
        return [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, body, 30)][-1]


@pytest.mark.parametrize("name", [*EXAMPLES, "real/assistant", "real/receipt", "real/search"])
def test_every_example_passes_a_check_without_anything_running(twin_models: AppSystem, name: str):
    code, output = twin_models.run_cli("app", "check", f"examples/{name}.py")

    assert code == 0, output
    assert re.search(rf"^app +{Path(name).name}$", output, re.MULTILINE)
    assert re.search(r"^doc +\S", output, re.MULTILINE)


def test_the_list_of_examples_is_whole():
    names = re.findall(r"^\| .*\]\(\.\./examples/(\w+)\.py\)", (ROOT / "docs" / "apps.md").read_text(), re.MULTILINE)

    assert sorted(names) == sorted([*EXAMPLES, "drawing"])


def test_what_takes_a_chat_says_so(twin_models: AppSystem):
    code, output = twin_models.run_cli("app", "show", "arena")

    assert code == 0, output
    assert re.search(r"^request +a chat request$", output, re.MULTILINE)


# shout


async def test_shout_streams_from_components_of_its_own(twin_models: AppSystem):
    answer = await twin_models.invoke("shout", {"text": "hello out there"})

    assert read_events(answer) == ["HELLO ", "OUT ", "THERE! "] * 2 + ["[DONE]"]
    own_tasks = {task for task, about in (await twin_models.tasks()).items() if about["own"]}
    assert own_tasks == {"shout", "echo", "send", "receive", "count"}  # those of morse too


# mllm and poet


@pytest.mark.parametrize("name", VL_QUESTIONS)
async def test_mllm_says_what_its_model_says(twin_models: AppSystem, vl_checkpoint: Path, name: str):
    question = VL_QUESTIONS[name]
    _, text = oracle.vl_answer(vl_checkpoint, question.plain, question.media, TOKENS)

    reply, _ = await send_chat(twin_models, "my-mllm", question)
    deltas = await stream_chat(twin_models, "my-mllm", question)

    assert reply == "".join(deltas) == text
    assert len(deltas) > 1


@pytest.mark.parametrize("question", [make_question("hello world"), PICTURED], ids=["text", "image"])
async def test_poet_says_it_in_capitals(twin_models: AppSystem, question: Question):
    plain, _ = await send_chat(twin_models, VL, question)

    reply, _ = await send_chat(twin_models, "poet", question)
    deltas = await stream_chat(twin_models, "poet", question)

    assert reply == "".join(deltas) == plain.upper()
    assert reply != plain
    assert len(deltas) > 1


async def test_an_update_of_an_app_that_is_a_model_fails_no_request(twin_models: AppSystem):
    before = await twin_models.show("poet")
    reply, _ = await send_chat(twin_models, "poet", PICTURED)
    answers: Counter[str] = Counter()
    update_task = asyncio.create_task(twin_models.update("poet"))

    async def ask_on() -> None:
        while not update_task.done() or answers.total() < 20:
            answers[(await send_chat(twin_models, "poet", PICTURED))[0]] += 1
            answers["".join(await stream_chat(twin_models, "poet", PICTURED))] += 1

    await asyncio.gather(*(ask_on() for _ in range(3)))

    assert set(answers) == {reply}
    assert before is not None
    assert (await update_task)["version"] == before["version"] + 1
    await twin_models.wait_for_version("poet", before["version"] + 1)


@pytest.mark.parametrize("name", MODELS)
async def test_an_app_that_is_a_model_answers_its_own_route_too(twin_models: AppSystem, name: str):
    reply, _ = await send_chat(twin_models, MODELS[name], PICTURED)

    assert await twin_models.invoke_json(name, greedy_body(PICTURED)) == {"text": reply, "audio": None}


async def test_apps_that_are_models_are_listed_with_their_owner(twin_models: AppSystem):
    async with twin_models.system.client() as client:
        owners = {model.id: model.owned_by for model in (await client.models.list()).data}

    assert owners == {
        VL: "omnibus",
        TWIN: "omnibus",
        "morse": "morse",
        **{model: name for name, model in MODELS.items()},
    }


async def test_mllm_refuses_what_it_cannot_hear(twin_models: AppSystem):
    async with twin_models.system.http() as http:
        answer = await http.post(
            "/v1/chat/completions", json={"model": "my-mllm", **greedy_body(make_question(make_audio(0.5), "what?"))}
        )

    assert (answer.status_code, read_error(answer)["param"]) == (400, "messages")
    assert read_error(answer)["message"] == "this model sees but does not hear"


async def test_a_model_that_does_not_speak_says_so(twin_models: AppSystem):
    audio_fields = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
    async with twin_models.system.http() as http:
        answer = await http.post(
            "/v1/chat/completions", json={"model": "poet", **greedy_body(make_question("hello"), **audio_fields)}
        )

    assert (answer.status_code, read_error(answer)["param"]) == (400, "modalities")
    await twin_models.system.ledger_is_empty()


# router


async def test_router_meets_its_shares_and_a_replay_repeats_its_choice(twin_models: AppSystem):
    requests = 40
    async with twin_models.system.http() as http:
        answers = [
            await http.post("/v1/chat/completions", json={"model": "routed", **greedy_body(PICTURED, max_tokens=4)})
            for _ in range(requests)
        ]
    plain, _ = await send_chat(twin_models, VL, PICTURED, max_tokens=4)

    paths = Counter(answer.headers["x-omnibus-path"] for answer in answers)
    assert paths.total() == requests
    for path, share in (("EL", 0.2), ("E>L", 0.5), ("E>EL", 0.3)):
        assert abs(paths[path] - share * requests) <= 2, paths
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {plain}
    for index in (0, 1, 2):
        id, path = answers[index].headers["x-request-id"], answers[index].headers["x-omnibus-path"]
        document = json.loads((await twin_models.system.record(id))[0])
        assert document["path"] == path
        assert ["EL", "E>L", "E>EL"][document["choices"][0]] == path
        async with twin_models.system.bus() as bus:
            body, _ = await twin_models.system.record(id)
            first, *_, last = [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, body, 30)]
        assert first["path"] == path
        assert last["identical"] is True


async def test_router_sends_text_alone_one_way(twin_models: AppSystem):
    async with twin_models.system.http() as http:
        answers = [
            await http.post(
                "/v1/chat/completions", json={"model": "routed", **greedy_body(make_question("hello"), max_tokens=1)}
            )
            for _ in range(10)
        ]

    assert {answer.headers["x-omnibus-path"] for answer in answers} == {"L"}


# arena


async def test_arena_lets_both_models_answer_and_encodes_the_picture_once(
    twin_models: AppSystem, vl_checkpoint: Path, twin_checkpoint: Path
):
    unseen = make_question(make_image(71), "what is in this picture?")  # encoders keep those that they have seen
    alone = {
        model: oracle.vl_answer(checkpoint, unseen.plain, unseen.media, TOKENS)[1]
        for model, checkpoint in ((VL, vl_checkpoint), (TWIN, twin_checkpoint))
    }
    before = await count_encoded_images(twin_models)
    async with Watch.on(twin_models.system) as watch:
        answer = await twin_models.invoke("arena", greedy_body(unseen))
        id = answer.headers["x-request-id"]
        await watch.end(id)

    *deltas, last_event = read_events(answer)
    replies = {model: "".join(part.get(model, "") for part in deltas) for model in alone}
    assert (replies, last_event) == (alone, "[DONE]")
    assert alone[VL] != alone[TWIN]
    document = json.loads((await twin_models.system.record(id))[0])
    assert sorted(node["task"] for node in document["nodes"]) == [
        "encode-qwen2_5-vl-tiny-vision",
        "think-qwen2_5-vl-tiny-b-thinker",
        "think-qwen2_5-vl-tiny-thinker",
    ]
    assert await count_encoded_images(twin_models) == before + 1
    await twin_models.system.ledger_is_empty()


async def count_encoded_images(estate: AppSystem) -> int:
    """Number of images that executors have encoded, from `nats service stats`."""
    async with asyncio.timeout(10):
        nc = await nats.connect(estate.system.state.nats_url)
        inbox = nc.new_inbox()
        answers = await nc.subscribe(inbox)
        await nc.publish("$SRV.STATS", b"", reply=inbox)
        statistics = [json.loads((await answers.next_msg(timeout=10)).data) for _ in estate.executors()]
        await nc.close()
    ends = [end for one in statistics for end in one["endpoints"] if end["name"].startswith("encode-")]
    assert {end["name"] for end in ends} == {"encode-qwen2_5-vl-tiny-vision"}
    return sum(int(size) * count for end in ends for size, count in end["data"]["batches"].items())


# best_of


async def test_best_of_grows_by_rounds_that_are_recorded_and_replayed_one_by_one(twin_models: AppSystem):
    question = {"text": "tell me a story", "drafts": 2, "at_least": 100_000, "rounds": 3}

    answer = await twin_models.invoke("best_of", question)

    assert answer.status_code == 200, answer.text
    assert answer.json()["rounds"] == 3
    first = answer.headers["x-request-id"]
    ids = [first, f"{first}_1", f"{first}_2"]
    records = [json.loads((await twin_models.system.record(id))[0]) for id in ids]
    assert [(record.get("parent", ""), record.get("step", 0)) for record in records] == [
        ("", 0),
        (first, 1),
        (first, 2),
    ]
    assert [len(record["nodes"]) for record in records] == [2, 2, 2]
    for id in ids:
        last = await replay_invocation(twin_models, id)
        assert (last["status"], last["identical"]) == ("done", True)
    code, output = await asyncio.to_thread(twin_models.run_cli, "show", first)
    assert code == 0
    assert f"then    {ids[1]}, {ids[2]}" in output
    code, output = await asyncio.to_thread(twin_models.run_cli, "show", ids[2])
    assert f"step 2 of {first}" in output


async def test_best_of_stops_when_a_draft_is_long_enough(twin_models: AppSystem):
    answer = await twin_models.invoke("best_of", {"text": "tell me a story", "at_least": 1, "rounds": 5})

    assert answer.json()["rounds"] == 1
    assert answer.json()["answer"]
