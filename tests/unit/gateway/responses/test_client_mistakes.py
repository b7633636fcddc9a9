"""Client mistakes in responses are a 4xx that names the parameter."""

from typing import Any

import pytest

from tests.unit.gateway.house import TEXT, House
from tests.unit.gateway.responses_house import PATH, Pair, Slow, create, whole
from tests.unit.sidecar.node import until

CONVERSATIONS = "/v1/conversations"


def said(role: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"type": "message", "role": role, "content": [part]}]}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (said("user", {"type": "input_image"}), "input[0].content[0].image_url", "Missing required parameter"),
        (
            said("user", {"type": "input_file", "file_url": "https://example.com/a.png"}),
            "input[0].content[0].file_url",
            "send input_image",
        ),
        (said("user", {"type": "refusal", "refusal": "no"}), "input[0].content[0]", "must be text, images"),
        (
            said("assistant", {"type": "input_image", "image_url": "data:,"}),
            "input[0].content[0]",
            "Parts of an assistant's message must be text",
        ),
    ],
    ids=["no image", "a file by its URL", "a user's refusal", "an assistant's image"],
)
async def test_an_item_that_is_wrong_is_named(home: House, body: dict[str, Any], param: str, words: str):
    response = await home.http.post(PATH, json={"model": TEXT, **body})

    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"]
    await home.emptied()


async def test_a_response_that_is_not_over_has_nothing_behind_it_yet(pair: Pair):
    slow = Slow("one ", "two")
    await pair.serve(TEXT, thinker=slow)
    id = whole(await create(pair.first, background=True))["id"]
    await until(lambda: bool(slow.known))

    refused = await create(pair.second, previous_response_id=id)
    slow.go.set()

    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "previous_response_id")
    assert "is still in progress" in error["message"]
    await pair.first.emptied()


async def test_items_that_a_conversation_has_not_are_not_found(home: House):
    at = f"{CONVERSATIONS}/{(await home.http.post(CONVERSATIONS, json={})).json()['id']}/items"

    answers = {
        "after": await home.http.get(at, params={"after": "msg_none"}),
        "item_id": await home.http.get(f"{at}/msg_none"),
        "conversation": await home.http.post(
            f"{CONVERSATIONS}/conv_none/items", json={"items": [{"role": "user", "content": "hello"}]}
        ),
    }
    deleted = await home.http.delete(f"{at}/msg_none")

    for param, answer in answers.items():
        assert answer.status_code == 404, answer.text
        assert param in answer.json()["error"]["param"]
    assert (deleted.status_code, deleted.json()["error"]["param"]) == (404, "item_id")
