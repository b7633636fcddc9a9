"""``/tokenize`` and ``/detokenize``, with the shapes of vLLM; and the limits and suffixes that vLLM's clients send."""

from typing import Any

import httpx
import pytest

from omnibus_gateway.openai.chat_request import ChatRequest, UserMessage
from omnibus_gateway.openai.parse import parse_chat
from tests.unit.gateway.anthropic.conftest import Opener, open_gateway
from tests.unit.gateway.anthropic.thinkers import RecordingThinker
from tests.unit.gateway.house import TEXT, VL, ToyGateway, make_image_part

__all__ = ["open_gateway"]

CHAT = [{"role": "user", "content": "hello"}]
REPORTED = ({"text": "<s>hello", "tokens": ["<s>", "hel"]}, {"tokens": ["lo"]})


async def post_prompt(home: ToyGateway, path: str = "/tokenize", **body: Any) -> httpx.Response:
    return await home.http.post(path, json={"model": TEXT, **body})


def read_error(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    return dict(response.json()["error"])


async def test_a_text_is_tokenized(open_gateway: Opener):
    thinker = RecordingThinker(*REPORTED)
    async with open_gateway(thinker) as home:
        response = await post_prompt(home, prompt="hello")

    assert response.status_code == 200, response.text
    assert response.json() == {"count": 2, "max_model_len": None, "tokens": [0, 1], "token_strs": None}
    assert thinker.messages == [{"role": "prompt", "content": "hello"}]
    assert (thinker.params["count_only"], thinker.params["report_prompt"]) == (True, True)


async def test_the_strings_of_tokens_and_the_marks_are_options(open_gateway: Opener):
    thinker = RecordingThinker(*REPORTED)
    async with open_gateway(thinker) as home:
        response = await post_prompt(home, prompt="hello", return_token_strs=True, add_special_tokens=False)

    assert response.json()["token_strs"] == ["<s>", "hel", "lo"]
    assert thinker.messages == [{"role": "prompt", "content": "hello", "add_special_tokens": False}]


async def test_a_chat_is_tokenized_with_its_tools_and_template(open_gateway: Opener):
    thinker, tool = RecordingThinker(*REPORTED), {"type": "function", "function": {"name": "weather"}}
    async with open_gateway(thinker) as home:
        response = await post_prompt(
            home,
            messages=CHAT,
            tools=[tool],
            add_generation_prompt=False,
            chat_template_kwargs={"enable_thinking": True},
        )

    assert response.status_code == 200, response.text
    assert thinker.messages == CHAT
    assert thinker.params["tools"] == [tool]
    assert thinker.params["template"] == {"enable_thinking": True, "add_generation_prompt": False}


async def test_tokens_become_text(open_gateway: Opener):
    thinker = RecordingThinker(*REPORTED)
    async with open_gateway(thinker) as home:
        response = await post_prompt(home, "/detokenize", tokens=[7, 8])
        empty = await post_prompt(home, "/detokenize", tokens=[])

    assert response.json() == {"prompt": "<s>hello"}
    assert thinker.messages == [{"role": "prompt", "content": [7, 8]}]
    assert empty.json() == {"prompt": ""}


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_one_model_needs_no_name(open_gateway: Opener, path: str):
    async with open_gateway(RecordingThinker(*REPORTED)) as home:
        response = await home.http.post(path, json={"prompt": "a"} if path == "/tokenize" else {"tokens": [1]})

    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": CHAT}, "prompt"),
        ({"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"prompt": "a", "colour": "red"}, "colour"),
        ({"messages": []}, "messages"),
        ({"messages": CHAT, "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": CHAT, "chat_template": "{{ messages }}"}, "chat_template"),
        ({"messages": CHAT, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
async def test_what_has_no_tokens_is_refused_by_name(open_gateway: Opener, body: dict[str, Any], param: str):
    async with open_gateway(RecordingThinker(*REPORTED)) as home:
        error = read_error(await post_prompt(home, **body))

    assert error["param"] == param


async def test_media_are_refused_with_a_hint(home: ToyGateway):
    await home.all_of(VL)
    messages = [{"role": "user", "content": [make_image_part()]}]

    error = read_error(await post_prompt(home, messages=messages, model=VL))

    assert (error["param"], "/v1/responses/input_tokens" in error["message"]) == ("messages", True)


async def test_a_model_without_a_tokenizer_is_refused(open_gateway: Opener):
    class SilentThinker(RecordingThinker):
        async def __call__(self, job: Any) -> None:
            job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 3, "completion_tokens": 0}})

    async with open_gateway(SilentThinker()) as home:
        error = read_error(await post_prompt(home, prompt="a"))

    assert (error["param"], "no tokenizer" in error["message"]) == ("model", True)


def test_minus_one_is_the_rest_of_the_context():
    request = parse_chat(b'{"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":-1}')

    assert request.token_limit is None
    assert ChatRequest(model="m", messages=[UserMessage("a")], max_tokens=5).token_limit == 5


async def test_a_completion_of_minus_one_has_no_limit_and_a_suffix_reaches_the_model(open_gateway: Opener):
    thinker = RecordingThinker()
    async with open_gateway(thinker) as home:
        response = await post_prompt(home, "/v1/completions", prompt="one", suffix="three", max_tokens=-1)

    assert response.status_code == 200, response.text
    assert thinker.params["max_tokens"] is None
    assert thinker.messages == [{"role": "prompt", "content": "one", "suffix": "three"}]
