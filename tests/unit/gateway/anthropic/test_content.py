"""Blocks of a conversation: what the model receives of texts, images, documents, tools and reasoning."""

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gateway.anthropic.house import PATH, build_message_body, post_message, read_message, read_message_error
from tests.unit.gateway.anthropic.thinkers import RecordingThinker
from tests.unit.gateway.house import PNG, VL, ToyGateway, start_toy_gateway

CACHE = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
DATA = base64.b64encode(PNG).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
WEATHER = {"name": "weather", "description": "The weather.", "input_schema": {"type": "object"}, **CACHE}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


async def received(home: ToyGateway, caller: RecordingThinker, *turns: Any, **more: Any) -> list[Any]:
    """Return the messages that the model receives for ``turns``."""
    read_message(await home.http.post(PATH, json={**build_message_body(), "messages": list(turns), **more}))
    return caller.messages


@pytest.mark.parametrize("system", ["Be kind.", [text("Be kind.", **CACHE)]])
async def test_the_system_prompt_comes_first(tool_gateway: ToyGateway, caller: RecordingThinker, system: Any):
    messages = await received(tool_gateway, caller, {"role": "user", "content": "hi"}, system=system)

    assert [message["role"] for message in messages] == ["system", "user"]
    assert "Be kind." in str(messages[0]["content"])
    assert messages[1] == {"role": "user", "content": "hi"}


@pytest.mark.parametrize("content", ["Be short.", [text("Be short.")]])
async def test_a_system_turn_in_the_middle_belongs_to_the_user(
    tool_gateway: ToyGateway, caller: RecordingThinker, content: Any
):
    turn = {"role": "system", "content": content}
    messages = await received(tool_gateway, caller, turn, user(text("hi")), turn, assistant(text("ho")), turn)

    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[1]["content"] == [
        {"type": "text", "text": "hi"}, {"type": "text", "text": "<system>\nBe short.\n</system>"},
    ]  # fmt: skip
    assert messages[3]["content"] == "<system>\nBe short.\n</system>"


async def test_consecutive_turns_of_one_role_are_one_message(tool_gateway: ToyGateway, caller: RecordingThinker):
    messages = await received(
        tool_gateway, caller,
        user(text("a")), user(text("b"), text("c")), assistant(text("d")), assistant(text("e")), user(text("f")),
    )  # fmt: skip

    parts = [{"type": "text", "text": each} for each in "abc"]
    assert messages == [
        {"role": "user", "content": parts}, {"role": "assistant", "content": "de"}, {"role": "user", "content": "f"},
    ]  # fmt: skip


async def test_documents_and_search_results_are_texts(tool_gateway: ToyGateway, caller: RecordingThinker):
    plain = {"type": "text", "media_type": "text/plain", "data": "The sea is blue."}
    blocks = {"type": "content", "content": [text("first"), text("second")]}
    messages = await received(
        tool_gateway, caller,
        user(
            {"type": "document", "source": plain, "title": "Sea", "context": "A poem.", **CACHE},
            {"type": "document", "source": blocks, "citations": {"enabled": False}},
            {"type": "document", "source": {"type": "content", "content": "third"}},
            {"type": "search_result", "title": "T", "source": "https://x", "content": [text("found")]},
        ),
    )  # fmt: skip

    assert [part["text"] for part in messages[0]["content"]] == [
        "Sea\nA poem.\nThe sea is blue.", "first", "second", "third", "T\nhttps://x\nfound",
    ]  # fmt: skip


async def test_results_of_tools_come_before_the_users_words(tool_gateway: ToyGateway, caller: RecordingThinker):
    second = {**CALL, "id": "toolu_2"}
    third = {**CALL, "id": "toolu_3"}
    messages = await received(
        tool_gateway, caller,
        user(text("how is it?")),
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "redacted_thinking", "data": "x"},
            text("I look."), CALL, second, third,
        ),
        user(
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny", **CACHE},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": [text("rain"), text("wind")]},
            {"type": "tool_result", "tool_use_id": "toolu_3", "content": "no station", "is_error": True},
            text("and now?"),
        ),
        tools=[WEATHER],
    )  # fmt: skip

    _, answer, *results, question = messages
    assert (answer["content"], answer["reasoning_content"]) == ("I look.", "hm")
    assert [call["function"]["arguments"] for call in answer["tool_calls"]] == [{"city": "Rome"}] * 3
    assert [result["content"] for result in results] == ["sunny", "rain\nwind", "Error: no station"]
    assert [result["name"] for result in results] == ["weather"] * 3
    assert question == {"role": "user", "content": "and now?"}


async def test_a_result_may_be_empty_and_the_last(tool_gateway: ToyGateway, caller: RecordingThinker):
    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    messages = await received(tool_gateway, caller, user(text("go")), assistant(CALL), user(result), tools=[WEATHER])

    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[-1]["content"] == ""


async def test_hidden_reasoning_comes_back_in_its_signature(tool_gateway: ToyGateway, caller: RecordingThinker):
    thinking = {"type": "adaptive", "display": "omitted"}
    first = read_message(await post_message(tool_gateway, thinking=thinking))["content"][0]

    assert (first["type"], first["thinking"]) == ("thinking", "")
    messages = await received(tool_gateway, caller, user(text("a")), assistant(first, text("b")), user(text("c")))
    assert messages[1]["reasoning_content"] == "let me see"


async def test_the_answer_continues_a_final_turn_of_the_assistant(tool_gateway: ToyGateway, caller: RecordingThinker):
    await received(tool_gateway, caller, user(text("a poem")), assistant(text("Roses are")))

    assert caller.params["template"] == {"add_generation_prompt": False, "continue_final_message": True}


@pytest.fixture
async def seeing_gateway(tmp_path: Path) -> Any:
    async with start_toy_gateway(tmp_path) as gateway:
        await gateway.all_of(VL)
        yield gateway


@pytest.mark.parametrize("source", [IMAGE["source"], {"type": "url", "url": f"data:image/png;base64,{DATA}"}])
async def test_images_are_seen(seeing_gateway: ToyGateway, source: Any):
    response = await post_message(
        seeing_gateway, [text("what?"), {"type": "image", "source": source, **CACHE}], model=VL
    )

    message = read_message(response)
    assert " saw " in message["content"][0]["text"]
    assert message["usage"]["input_tokens"] == 6
    await seeing_gateway.emptied()


async def test_images_of_results_are_seen(seeing_gateway: ToyGateway):
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("here:"), IMAGE]}
    turns = [user(text("go")), assistant(CALL), user(result, text("what?"))]
    response = await seeing_gateway.http.post(PATH, json=build_message_body(messages=turns, model=VL, tools=[WEATHER]))

    assert " saw " in read_message(response)["content"][0]["text"]


async def test_a_broken_image_of_a_result_is_refused_by_its_place(seeing_gateway: ToyGateway):
    broken = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("here:"), broken]}
    turns = [user(text("go")), assistant(CALL), user(result)]
    response = await seeing_gateway.http.post(PATH, json=build_message_body(messages=turns, model=VL, tools=[WEATHER]))

    assert read_message_error(response)["message"].startswith("messages[2].content[0].content[1].source: ")


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "image/png", "data": "AAAA"},
        {"type": "url", "url": "http://127.0.0.1:1/x.png"},
        {"type": "file", "file_id": "file-unknown"},
    ],
)
async def test_an_image_that_cannot_be_read_is_refused_by_its_place(seeing_gateway: ToyGateway, source: Any):
    response = await post_message(seeing_gateway, [text("what?"), {"type": "image", "source": source}], model=VL)

    error = read_message_error(response)
    assert response.status_code in (400, 404)
    assert error["message"].startswith("messages[0].content[1].source: ")
