"""Several answers to one chat (``n``): one graph, with different random numbers for each answer."""

import json
from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import subjects
from omnibus.executor.runner import Job
from omnibus.structured.calls import call_head
from tests.unit.gateway.house import (
    OMNI,
    TEXT,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_error_body,
    read_sse_events,
)

PATIENCE = 20.0  # seconds


def read_texts(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["message"]["content"] for choice in choices]


def read_stream(response: Any) -> tuple[list[str], list[str], list[Any]]:
    """Texts and finish reasons by index, and all events."""
    all_events = read_sse_events(response)
    choices = [choice for event in all_events[:-1] for choice in event["choices"]]
    contents = [""] * (1 + max(choice["index"] for choice in choices))
    ends = [""] * len(contents)
    for choice in choices:
        contents[choice["index"]] += choice["delta"].get("content") or ""
        ends[choice["index"]] += choice["finish_reason"] or ""
    return contents, ends, all_events


async def test_answers_have_the_next_seeds_and_media_are_encoded_once(home: ToyGateway):
    await home.all_of(VL)
    content = [make_text_part("look"), make_image_part()]
    single = [read_texts(await home.ask(content=content, seed=seed))[0] for seed in (5, 6, 7)]

    response = await home.ask(content=content, seed=5, n=3)

    assert read_texts(response) == single
    invocation, _ = await home.records.find(response.headers["x-request-id"])
    assert sorted(node.component for node in invocation.nodes) == ["thinker", "thinker", "thinker", "vision"]
    usage = response.json()["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["image_tokens"]) == (6, 1), "the prompt counts once"
    assert usage["completion_tokens"] == 3 * 5
    await home.emptied()


async def test_answers_without_a_seed_differ_and_can_be_had_again(home: ToyGateway):
    await home.all_of(VL)

    response = await home.ask(content="hi " * 9000, n=4)  # so long that it travels by handle

    assert len(set(read_texts(response))) == 4
    end_record = await home.ended(response.headers["x-request-id"])
    assert end_record.answer.characters == sum(map(len, read_texts(response))) + 3 * 2
    records = await home.bus.read_records(f"{subjects.ROOT}.inv.*.{response.headers['x-request-id']}")
    *_, outcome = [
        json.loads(part) async for part in home.bus.request_stream(subjects.REPLAY, records[0].data, PATIENCE)
    ]
    assert (outcome["status"], outcome["identical"]) == ("done", True)
    invocation = graph.decode_invocation(
        (await home.bus.read_records(f"{subjects.ROOT}.inv.*.{outcome['id']}"))[0].data
    )
    assert [node.salt for node in invocation.nodes] == [0, 1, 2, 3]
    await home.emptied()


async def test_events_of_streamed_answers_are_mixed_and_say_whose_they_are(home: ToyGateway):
    await home.all_of(VL)
    whole = await home.ask(seed=5, n=3)

    contents, ends, all_events = read_stream(
        await home.ask(seed=5, n=3, stream=True, stream_options={"include_usage": True})
    )

    assert contents == read_texts(whole)
    assert ends == ["stop"] * 3
    assert all_events[-1] == "[DONE]"
    assert all_events[-2]["choices"] == []
    assert all_events[-2]["usage"] == whole.json()["usage"]
    assert all(event["id"] == all_events[0]["id"] for event in all_events[:-1])
    assert [event["choices"][0]["delta"].get("role") for event in all_events[:3]] == ["assistant"] * 3
    await home.emptied()


async def write_calls(job: Job) -> None:
    """Write a tool call with log probabilities; the answers of odd seeds have two calls."""
    seed = (await job.value("params"))["seed"]
    calls = "".join(f'{call_head("look")}{{"at":{number}}}' for number in range(1 + seed % 2))
    logprobs = {"at": 0, "tokens": [["x", -0.5, []]]}
    await job.send("text", {"text": "", "calls": calls, "reasoning": f"about {seed}", "logprobs": logprobs})
    job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 3, "completion_tokens": 2,
                                                         "reasoning_tokens": 1}})  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_each_answer_has_calls_thoughts_and_probabilities_of_its_own(home: ToyGateway, stream: bool):
    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=write_calls)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

    response = await home.ask(model=TEXT, seed=4, n=2, tools=[tool], logprobs=True, stream=stream,
                              **({"stream_options": {"include_usage": True}} if stream else {}))  # fmt: skip

    if stream:
        chunks = read_sse_events(response)[:-1]
        choices = [choice for event in chunks for choice in event["choices"]]
        calls: list[list[Any]] = [[], []]
        for choice in choices:
            calls[choice["index"]] += [each for each in choice["delta"].get("tool_calls", ()) if each.get("id")]
        logprob_counts = [
            sum(len((c["logprobs"] or {}).get("content", ())) for c in choices if c["index"] == i) for i in (0, 1)
        ]
        ends = [[c["finish_reason"] for c in choices if c["index"] == i and c["finish_reason"]] for i in (0, 1)]
        assert ends == [["tool_calls"], ["tool_calls"]]
        usage = chunks[-1]["usage"]
    else:
        messages = [choice["message"] for choice in response.json()["choices"]]
        calls = [message["tool_calls"] for message in messages]
        logprob_counts = [len(choice["logprobs"]["content"]) for choice in response.json()["choices"]]
        assert [message["reasoning_content"] for message in messages] == ["about 4", "about 5"]
        usage = response.json()["usage"]
    assert [len(each) for each in calls] == [1, 2]
    ids = [call["id"] for each in calls for call in each]
    assert len(set(ids)) == 3
    assert logprob_counts == [1, 1]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 4)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2


async def test_a_client_that_leaves_ends_all_answers(home: ToyGateway):
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
async def test_what_has_no_several_answers_is_refused_by_name(home: ToyGateway, more: Any, param: str, says: str):
    await home.all_of(OMNI)

    response = await home.ask(model=OMNI, **more)

    assert response.status_code == 400
    assert read_error_body(response)["param"] == param
    assert says in read_error_body(response)["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_price_is_that_of_all_answers(home: ToyGateway, stream: bool):
    await home.all_of(VL)
    body = {"model": VL, "messages": [{"role": "user", "content": "hi"}], "n": 3, "stream": stream}

    response = await home.http.post("/v1/chat/completions", json=body, headers={"x-omnibus-usage": "1"})

    usage = read_sse_events(response)[-2]["usage"] if stream else response.json()["usage"]
    assert [stage["component"] for stage in usage["omnibus"]["stages"]] == ["thinker"] * 3
