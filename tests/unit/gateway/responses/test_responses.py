"""``/v1/responses`` over two gateways with one store and one bus: made, streamed, retrieved, continued, ended."""

import base64
from pathlib import Path
from typing import Any

import pytest

from omnibus.store import Store
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from tests.unit.gateway.house import OMNI, PNG, TEXT, VL, ToyGateway, read_error_body, start_toy_gateway
from tests.unit.gateway.responses_house import (
    KEYS,
    PATH,
    events_of,
    post_response,
    read_response_body,
    text_of,
)


async def test_a_response_has_every_key_and_can_be_retrieved(home: ToyGateway):
    response = read_response_body(await post_response(home, instructions="be kind", metadata={"a": "b"}))

    assert set(KEYS) <= set(response)
    assert response["status"] == "completed"
    assert text_of(response) == "You said hello there [5] "
    assert response["instructions"] == "be kind"
    assert response["metadata"] == {"a": "b"}
    assert response["usage"]["output_tokens"] == 5
    assert read_response_body(await home.http.get(f"{PATH}/{response['id']}")) == response
    await home.emptied()


async def test_a_stream_has_the_events_in_their_order(home: ToyGateway):
    events = events_of((await post_response(home, stream=True)).text)

    kinds = [event["type"] for event in events]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [kind for kind in kinds if kind != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event["delta"] for event in deltas) == "You said hello there [5] "
    assert events[0]["sequence_number"] == 0
    response = events[-1]["response"]
    assert read_response_body(await home.http.get(f"{PATH}/{response['id']}")) == response


async def test_a_stored_stream_comes_again_from_any_event(home: ToyGateway):
    body = (await post_response(home, stream=True)).text
    events = events_of(body)
    id = events[0]["response"]["id"]

    for after in (-1, 0, 3, len(events) - 2):
        query = {"stream": "true"} | ({"starting_after": after} if after >= 0 else {})
        again = await home.http.get(f"{PATH}/{id}", params=query)
        assert again.text == body[len("".join(block + "\n\n" for block in body.split("\n\n")[: after + 1])) :]


async def test_one_that_is_not_stored_is_gone(home: ToyGateway):
    response = read_response_body(await post_response(home, store=False))

    assert response["store"] is False
    assert (await home.http.get(f"{PATH}/{response['id']}")).status_code == 404


async def test_a_deleted_response_is_gone(home: ToyGateway):
    id = read_response_body(await post_response(home))["id"]

    assert read_response_body(await home.http.delete(f"{PATH}/{id}")) == {
        "id": id,
        "object": "response",
        "deleted": True,
    }
    assert (await home.http.get(f"{PATH}/{id}")).status_code == 404
    assert (await home.http.delete(f"{PATH}/{id}")).status_code == 404


async def test_the_input_comes_back_as_items(home: ToyGateway):
    messages = [{"role": "user", "content": "one"}, {"type": "message", "role": "assistant", "content": "two"}]
    id = read_response_body(await post_response(home, [*messages, {"role": "user", "content": "three"}]))["id"]

    newest = read_response_body(await home.http.get(f"{PATH}/{id}/input_items", params={"limit": 2}))
    rest = read_response_body(await home.http.get(f"{PATH}/{id}/input_items", params={"after": newest["last_id"]}))

    assert [item["content"][0]["text"] for item in newest["data"]] == ["three", "two"]
    assert newest["has_more"]
    assert [item["content"] for item in rest["data"]] == [[{"type": "input_text", "text": "one"}]]
    assert not rest["has_more"]


async def test_a_response_goes_on_with_those_before_it(memory: ToyGateway):
    first = read_response_body(await post_response(memory, "one", instructions="be brief"))
    second = read_response_body(await post_response(memory, "two", previous_response_id=first["id"]))
    third = read_response_body(
        await post_response(memory, "three", previous_response_id=second["id"], instructions="be long")
    )

    assert text_of(first) == "system:be brief|user:one"
    assert text_of(second) == f"user:one|assistant:{text_of(first)}|user:two"  # instructions are not inherited
    assert text_of(third) == (
        f"system:be long|user:one|assistant:{text_of(first)}|user:two|assistant:{text_of(second)}|user:three"
    )
    assert third["previous_response_id"] == second["id"]


async def test_others_do_not_see_it(home: ToyGateway):
    with acting_as(Tenant("ann")):
        id = read_response_body(await post_response(home))["id"]
        conversation = read_response_body(await home.http.post("/v1/conversations", json={}))["id"]
        assert (await home.http.get(f"{PATH}/{id}")).status_code == 200
    with acting_as(Tenant("bob")):
        for path in (f"{PATH}/{id}", f"{PATH}/{id}/input_items", f"/v1/conversations/{conversation}"):
            assert (await home.http.get(path)).status_code == 404
        assert (await home.http.delete(f"{PATH}/{id}")).status_code == 404
        assert (await home.http.post(f"{PATH}/{id}/cancel")).status_code == 404
        assert (await post_response(home, previous_response_id=id)).status_code == 400
        assert (await post_response(home, conversation=conversation)).status_code == 400


# Inputs and outputs


async def test_pictures_are_seen(tmp_path: Path, store: Store):
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    parts = [{"type": "input_text", "text": "what"}, {"type": "input_image", "image_url": url, "detail": "low"}]
    async with start_toy_gateway(tmp_path, store) as home:
        await home.all_of(VL)
        response = read_response_body(await post_response(home, [{"role": "user", "content": parts}], model=VL))
        bad = await post_response(home, [{"role": "user", "content": [{**parts[1], "image_url": "data:,x"}]}], model=VL)

        assert "saw" in text_of(response)
        assert response["usage"]["input_tokens_details"]["image_tokens"] == 1
        assert read_error_body(bad)["param"] == "input[0].content[0].image_url"


@pytest.mark.parametrize("modalities", [["text", "audio"], ["audio"]])
async def test_answers_are_spoken(tmp_path: Path, store: Store, modalities: list[str]):
    async with start_toy_gateway(tmp_path, store) as home:
        await home.all_of(OMNI)
        body = await post_response(
            home, model=OMNI, modalities=modalities, audio={"voice": "Chelsie", "format": "wav"}, stream=True
        )
        events = events_of(body.text)

    sound = "".join(event["delta"] for event in events if event["type"] == "response.audio.delta")
    part = events[-1]["response"]["output"][0]["content"][-1]
    assert part["type"] == "output_audio"
    assert base64.b64decode(sound) == base64.b64decode(part["data"])
    assert part["transcript"] == "You said hello there [5] "
    kinds = {event["type"] for event in events}
    assert "response.audio.done" in kinds
    assert ("response.output_text.delta" in kinds) == ("text" in modalities)
    assert ("response.audio.transcript.delta" in kinds) == ("text" not in modalities)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "image_generation"}]}, "tools"),
        ({"tools": [{"type": "image_generation"}] * 2}, "tools[1]"),
        ({"tools": [{"type": "image_generation", "background": "transparent"}]}, "tools[0].background"),
        ({"tools": [{"type": "image_generation", "action": "edit"}]}, "tools[0].action"),
        (
            {"tools": [{"type": "function", "name": "image_generation"}, {"type": "image_generation"}]},
            "tools[0].name",
        ),
        ({"tool_choice": {"type": "image_generation"}}, "tool_choice"),
        ({"tools": [{"type": "function", "name": "f"}] * 2}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "1"}]}, "input[0].call_id"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"modalities": ["audio"]}, "audio"),
        ({"background": True, "store": False}, "store"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"previous_response_id": "a", "conversation": "b"}, "conversation"),
        ({"stream_options": {}}, "stream_options"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "x"}]}]},
            "input[0].content[0].file_url",
        ),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_file", "file_data": "data:text/plain;base64,AA=="}]}
                ]
            },
            "input[0].content[0].file_data",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"inputs": "x"}, "inputs"),
        ({"metadata": {"k": "v" * 600}}, "metadata[...]"),
    ],
)
async def test_what_cannot_be_obeyed_is_refused_by_name(home: ToyGateway, fields: dict[str, Any], param: str):
    response = await home.http.post(PATH, json={"model": TEXT, "input": "a", **fields})

    assert response.status_code == 400, response.text
    assert read_error_body(response)["param"] == param


@pytest.mark.parametrize(
    "query", [{"starting_after": "3"}, {"stream": "maybe"}, {"starting_after": "x", "stream": "true"}]
)
async def test_queries_are_checked(home: ToyGateway, query: dict[str, str]):
    id = read_response_body(await post_response(home))["id"]

    assert (await home.http.get(f"{PATH}/{id}", params=query)).status_code == 400


async def test_one_that_was_not_streamed_has_no_events(home: ToyGateway):
    id = read_response_body(await post_response(home))["id"]

    response = await home.http.get(f"{PATH}/{id}", params={"stream": "true"})

    assert response.status_code == 400
    assert read_error_body(response)["param"] == "stream"
