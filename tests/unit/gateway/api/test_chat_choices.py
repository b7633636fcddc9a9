"""Several answers to one chat (``n``): one graph, with different random numbers for each answer."""

import json
from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import subjects
from omnibus.executor.runner import Job
from omnibus.structured.calls import call_head
from tests.unit.gateway.house import OMNI, TEXT, VL, House, error, events, image, text

PATIENCE = 20.0  # seconds


def texts(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["message"]["content"] for choice in choices]


def streamed(response: Any) -> tuple[list[str], list[str], list[Any]]:
    """Texts and finish reasons by index, and all events."""
    found = events(response)
    choices = [choice for event in found[:-1] for choice in event["choices"]]
    said = [""] * (1 + max(choice["index"] for choice in choices))
    ends = [""] * len(said)
    for choice in choices:
        said[choice["index"]] += choice["delta"].get("content") or ""
        ends[choice["index"]] += choice["finish_reason"] or ""
    return said, ends, found


async def test_answers_have_the_next_seeds_and_media_are_encoded_once(home: House):
    await home.all_of(VL)
    content = [text("look"), image()]
    single = [texts(await home.ask(content=content, seed=seed))[0] for seed in (5, 6, 7)]

    response = await home.ask(content=content, seed=5, n=3)

    assert texts(response) == single
    recorded, _ = await home.records.find(response.headers["x-request-id"])
    assert sorted(node.component for node in recorded.nodes) == ["thinker", "thinker", "thinker", "vision"]
    usage = response.json()["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["image_tokens"]) == (6, 1), "the prompt counts once"
    assert usage["completion_tokens"] == 3 * 5
    await home.emptied()


async def test_answers_without_a_seed_differ_and_can_be_had_again(home: House):
    await home.all_of(VL)

    response = await home.ask(content="hi " * 9000, n=4)  # so long that it travels by handle

    assert len(set(texts(response))) == 4
    ended = await home.ended(response.headers["x-request-id"])
    assert ended.answer.characters == sum(map(len, texts(response))) + 3 * 2
    found = await home.bus.read_records(f"{subjects.ROOT}.inv.*.{response.headers['x-request-id']}")
    *_, done = [json.loads(part) async for part in home.bus.request_stream(subjects.REPLAY, found[0].data, PATIENCE)]
    assert (done["status"], done["identical"]) == ("done", True)
    recorded = graph.decode_invocation((await home.bus.read_records(f"{subjects.ROOT}.inv.*.{done['id']}"))[0].data)
    assert [node.salt for node in recorded.nodes] == [0, 1, 2, 3]
    await home.emptied()


async def test_events_of_streamed_answers_are_mixed_and_say_whose_they_are(home: House):
    await home.all_of(VL)
    whole = await home.ask(seed=5, n=3)

    said, ends, found = streamed(await home.ask(seed=5, n=3, stream=True, stream_options={"include_usage": True}))

    assert said == texts(whole)
    assert ends == ["stop"] * 3
    assert found[-1] == "[DONE]"
    assert found[-2]["choices"] == []
    assert found[-2]["usage"] == whole.json()["usage"]
    assert all(event["id"] == found[0]["id"] for event in found[:-1])
    assert [event["choices"][0]["delta"].get("role") for event in found[:3]] == ["assistant"] * 3
    await home.emptied()


async def wise(job: Job) -> None:
    """Write a tool call with log probabilities; the answers of odd seeds have two calls."""
    seed = (await job.value("params"))["seed"]
    calls = "".join(f'{call_head("look")}{{"at":{number}}}' for number in range(1 + seed % 2))
    logprobs = {"at": 0, "tokens": [["x", -0.5, []]]}
    await job.send("text", {"text": "", "calls": calls, "reasoning": f"about {seed}", "logprobs": logprobs})
    job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 3, "completion_tokens": 2,
                                                         "reasoning_tokens": 1}})  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_each_answer_has_calls_thoughts_and_probabilities_of_its_own(home: House, stream: bool):
    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=wise)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

    response = await home.ask(model=TEXT, seed=4, n=2, tools=[tool], logprobs=True, stream=stream,
                              **({"stream_options": {"include_usage": True}} if stream else {}))  # fmt: skip

    if stream:
        found = events(response)[:-1]
        choices = [choice for event in found for choice in event["choices"]]
        calls: list[list[Any]] = [[], []]
        for choice in choices:
            calls[choice["index"]] += [each for each in choice["delta"].get("tool_calls", ()) if each.get("id")]
        logged = [
            sum(len((c["logprobs"] or {}).get("content", ())) for c in choices if c["index"] == i) for i in (0, 1)
        ]
        ends = [[c["finish_reason"] for c in choices if c["index"] == i and c["finish_reason"]] for i in (0, 1)]
        assert ends == [["tool_calls"], ["tool_calls"]]
        usage = found[-1]["usage"]
    else:
        messages = [choice["message"] for choice in response.json()["choices"]]
        calls = [message["tool_calls"] for message in messages]
        logged = [len(choice["logprobs"]["content"]) for choice in response.json()["choices"]]
        assert [message["reasoning_content"] for message in messages] == ["about 4", "about 5"]
        usage = response.json()["usage"]
    assert [len(each) for each in calls] == [1, 2]
    ids = [call["id"] for each in calls for call in each]
    assert len(set(ids)) == 3
    assert logged == [1, 1]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 4)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2


async def test_a_client_that_leaves_ends_all_answers(home: House):
    await home.all_of(VL)
    async with home.http.stream(
        "POST", "/v1/chat/completions",
        json={"model": VL, "messages": [{"role": "user", "content": "w " * 300}], "n": 8, "stream": True},
    ) as response:  # fmt: skip
        async for _ in response.aiter_bytes():
            break
    await home.emptied()


@pytest.mark.parametrize(
    ("more", "param", "says"),
    [
        ({"n": 0}, "n", ">= 1"),
        ({"n": 9}, "n", "<= 8"),
        ({"n": 2, "modalities": ["text", "audio"], "audio": {"voice": "Ethan", "format": "wav"}}, "n", "1 for audio"),
        ({"n": 2, "modalities": ["image"]}, "n", "image_config.n"),
    ],
)
async def test_what_has_no_several_answers_is_refused_by_name(home: House, more: Any, param: str, says: str):
    await home.all_of(OMNI)

    response = await home.ask(model=OMNI, **more)

    assert response.status_code == 400
    assert error(response)["param"] == param
    assert says in error(response)["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_price_is_that_of_all_answers(home: House, stream: bool):
    await home.all_of(VL)
    body = {"model": VL, "messages": [{"role": "user", "content": "hi"}], "n": 3, "stream": stream}

    response = await home.http.post("/v1/chat/completions", json=body, headers={"x-omnibus-usage": "1"})

    usage = events(response)[-2]["usage"] if stream else response.json()["usage"]
    assert [stage["component"] for stage in usage["omnibus"]["stages"]] == ["thinker"] * 3
