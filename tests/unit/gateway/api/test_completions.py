"""``/v1/completions``: prompts without a template, several at once, whole and streamed."""

from typing import Any

import httpx
import pytest

from omnibus.executor.runner import Job
from tests.unit.gateway.house import TEXT, ToyGateway, read_error_body, read_sse_events

PATH = "/v1/completions"


@pytest.fixture
async def text_gateway(home: ToyGateway) -> ToyGateway:
    await home.all_of(TEXT)
    return home


async def post_completion(home: ToyGateway, prompt: Any, **more: Any) -> httpx.Response:
    return await home.http.post(PATH, json={"model": TEXT, "prompt": prompt, "seed": 5, **more})


async def test_a_prompt_is_completed_without_a_template(text_gateway: ToyGateway):
    response = await post_completion(text_gateway, "once upon", max_tokens=9)

    assert response.status_code == 200, response.text
    body = response.json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    [choice] = body["choices"]
    assert choice == {"text": "You said once upon [5] ", "index": 0, "finish_reason": "stop", "logprobs": None}
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["completion_tokens"] == 5
    await text_gateway.emptied()


async def test_a_completion_has_sixteen_tokens_unless_more_are_wanted(text_gateway: ToyGateway):
    text = " ".join(["word"] * 40)

    assert (await post_completion(text_gateway, text)).json()["usage"]["completion_tokens"] == 16
    assert (await post_completion(text_gateway, text, max_tokens=30)).json()["usage"]["completion_tokens"] == 30


async def test_several_prompts_and_choices_come_in_order(text_gateway: ToyGateway):
    body = (await post_completion(text_gateway, ["one", "two"], n=2)).json()

    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in body["choices"]] == [
        "You said one [5] ",
        "You said one [6] ",
        "You said two [5] ",
        "You said two [6] ",
    ]
    # A prompt is counted once.
    assert body["usage"]["prompt_tokens"] == 10
    assert body["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(("prompt", "text"), [([7, 8], "7 8"), ([[7, 8]], "7 8")])
async def test_prompts_of_tokens_are_taken(text_gateway: ToyGateway, prompt: Any, text: str):
    body = (await post_completion(text_gateway, prompt)).json()

    assert [choice["text"] for choice in body["choices"]] == [f"You said {text} [5] "]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_prompt_is_echoed(text_gateway: ToyGateway, stream: bool):
    response = await post_completion(text_gateway, ["one", "two"], echo=True, stream=stream)

    if stream:
        texts = ["", ""]
        for event in read_sse_events(response)[:-1]:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
    else:
        texts = [choice["text"] for choice in response.json()["choices"]]
    assert texts == ["oneYou said one [5] ", "twoYou said two [5] "]


async def test_a_stream_has_the_texts_and_their_ends(text_gateway: ToyGateway):
    response = await post_completion(text_gateway, ["one", "two"], stream=True, stream_options={"include_usage": True})

    *chunks, usage, end_mark = read_sse_events(response)
    assert end_mark == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 10
    for index, word in enumerate(("one", "two")):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert "".join(choice["text"] for choice in choices) == f"You said {word} [5] "
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    await text_gateway.emptied()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, 2], "suffix": "end"}, "suffix"),
        ({"logprobs": 1, "echo": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, 2], "echo": True}, "echo"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stops": "x"}, "stops"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_cannot_be_obeyed_is_refused_by_name(text_gateway: ToyGateway, fields: dict[str, Any], param: str):
    response = await text_gateway.http.post(PATH, json={"model": TEXT, "prompt": "a", **fields})

    assert response.status_code == 400, response.text
    assert read_error_body(response)["param"] == param


async def test_too_many_completions_are_refused(text_gateway: ToyGateway):
    response = await post_completion(text_gateway, ["a"] * 65, n=2)

    assert response.status_code == 413
    assert read_error_body(response)["param"] == "prompt"


async def test_one_that_fails_fails_all_and_leaves_nothing(text_gateway: ToyGateway):
    response = await text_gateway.http.post(PATH, json={"model": "nobody", "prompt": ["a", "b"]})

    assert response.status_code == 404
    await text_gateway.emptied()


async def write_guesses(job: Job) -> None:
    """Write two tokens with their alternatives."""
    best = [["he", -0.5], ["she", -1.0]]
    await job.send("text", {"text": "he", "ids": [1], "logprobs": {"at": 0, "tokens": [["he", -0.5, best]]}})
    await job.send("text", {"text": " is", "ids": [2], "logprobs": {"at": 1, "tokens": [[" is", -0.1, []]]}})
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    job.close("text", {"finish_reason": "stop", "usage": usage})


@pytest.mark.parametrize("stream", [False, True])
async def test_probabilities_of_tokens_are_told(home: ToyGateway, stream: bool):
    home.serve(TEXT)
    assert home.router.plan is not None
    for option, spec in home.router.plan.models[TEXT].options.items():
        await home.executor(TEXT, option, *spec.components, thinker=write_guesses)

    response = await post_completion(home, "who", logprobs=2, stream=stream)

    choices = (
        [choice for event in read_sse_events(response)[:-1] for choice in event["choices"]]
        if stream
        else response.json()["choices"]
    )
    token_details = {
        name: [each for choice in choices for each in choice["logprobs"][name]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    assert token_details == {
        "tokens": ["he", " is"],
        "token_logprobs": [-0.5, -0.1],
        "top_logprobs": [{"he": -0.5, "she": -1.0}, {}],
        "text_offset": [0, 2],
    }
