"""Client mistakes in responses are a 4xx that names the parameter."""

from typing import Any

import pytest

from tests.unit.gateway.house import TEXT, ToyGateway
from tests.unit.gateway.responses_house import (
    PATH,
    ResponsesPair,
    SlowResponseThinker,
    post_response,
    read_response_body,
)
from tests.unit.sidecar.node import wait_until

CONVERSATIONS = "/v1/conversations"


def make_message(role: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"type": "message", "role": role, "content": [part]}]}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (make_message("user", {"type": "input_image"}), "input[0].content[0].image_url", "Missing required parameter"),
        (
            make_message("user", {"type": "input_file", "file_url": "https://example.com/a.png"}),
            "input[0].content[0].file_url",
            "send input_image",
        ),
        (make_message("user", {"type": "refusal", "refusal": "no"}), "input[0].content[0]", "must be text, images"),
        (
            make_message("assistant", {"type": "input_image", "image_url": "data:,"}),
            "input[0].content[0]",
            "Parts of an assistant's message must be text",
        ),
    ],
    ids=["no image", "a file by its URL", "a user's refusal", "an assistant's image"],
)
async def test_an_item_that_is_wrong_is_named(home: ToyGateway, body: dict[str, Any], param: str, words: str):
    response = await home.http.post(PATH, json={"model": TEXT, **body})

    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"]
    await home.emptied()


async def test_a_response_that_is_not_over_has_nothing_behind_it_yet(pair: ResponsesPair):
    slow = SlowResponseThinker("one ", "two")
    await pair.serve(TEXT, thinker=slow)
    id = read_response_body(await post_response(pair.first, background=True))["id"]
    await wait_until(lambda: bool(slow.known))

    response = await post_response(pair.second, previous_response_id=id)
    slow.go.set()

    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "previous_response_id")
    assert "is still in progress" in error["message"]
    await pair.first.emptied()


async def test_items_that_a_conversation_has_not_are_not_found(home: ToyGateway):
    at = f"{CONVERSATIONS}/{(await home.http.post(CONVERSATIONS, json={})).json()['id']}/items"

    answers = {
        "after": await home.http.get(at, params={"after": "msg_none"}),
        "item_id": await home.http.get(f"{at}/msg_none"),
        "conversation": await home.http.post(
            f"{CONVERSATIONS}/conv_none/items", json={"items": [{"role": "user", "content": "hello"}]}
        ),
    }
    deletion = await home.http.delete(f"{at}/msg_none")

    for param, answer in answers.items():
        assert answer.status_code == 404, answer.text
        assert param in answer.json()["error"]["param"]
    assert (deletion.status_code, deletion.json()["error"]["param"]) == (404, "item_id")
