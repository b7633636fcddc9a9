"""``/v1/responses/input_tokens`` and ``/compact``: the context of an answer, counted and compacted."""

from typing import Any

import openai
import pytest

from omnibus_gateway.openai.responses.items import decode_reasoning
from omnibus_gateway.responses.context import SUMMARIZE
from tests.unit.gateway.house import TEXT, ToyGateway, read_error_body
from tests.unit.gateway.responses_house import PATH, post_response, read_response_body, text_of


def client_of(home: ToyGateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="none", base_url="http://localhost/v1", http_client=home.http, max_retries=0,
        _strict_response_validation=True,
    )  # fmt: skip


async def test_tokens_are_counted_and_no_answer_is_made(home: ToyGateway):
    client = client_of(home)

    token_count = await client.responses.input_tokens.count(model=TEXT, input="one two three")

    assert (token_count.object, token_count.input_tokens) == ("response.input_tokens", 8)
    await home.emptied()
    first = read_response_body(await post_response(home, "one"))
    behind = await client.responses.input_tokens.count(
        model=TEXT, input=[{"role": "user", "content": "two three"}], previous_response_id=first["id"]
    )
    assert behind.input_tokens == 7


async def test_a_conversation_becomes_the_users_messages_and_one_item(home: ToyGateway):
    client = client_of(home)
    first = read_response_body(await post_response(home, [
        {"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"},
    ]))  # fmt: skip

    compaction = await client.with_options(max_retries=0).post(
        "/responses/compact", cast_to=dict[str, Any],
        body={"model": TEXT, "previous_response_id": first["id"], "input": "and then?", "seed": 5},
    )  # fmt: skip

    assert compaction["object"] == "response.compaction"
    *user_items, last = compaction["output"]
    assert [item["content"][0]["text"] for item in user_items] == ["hello", "and then?"]
    assert all(item["role"] == "user" and item["id"].startswith("msg_") for item in user_items)
    assert (last["type"], last["id"][:4]) == ("compaction", "cmp_")
    assert decode_reasoning(last["encrypted_content"]) == f"You said {SUMMARIZE} [5]"
    assert compaction["usage"]["output_tokens"] == len(SUMMARIZE.split()) + 3
    going_on = read_response_body(
        await post_response(home, [*compaction["output"], {"role": "user", "content": "go on"}])
    )
    assert text_of(going_on) == "You said go on [5] "
    input_items = (await home.http.get(f"{PATH}/{going_on['id']}/input_items")).json()["data"]
    assert [item["type"] for item in input_items] == ["message", "compaction", "message", "message"]
    await home.emptied()


@pytest.mark.parametrize("path", ["input_tokens", "compact"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a"}, "model"),
        ({"model": TEXT}, "input"),
        ({"model": TEXT, "input": "a", "stream": True}, "stream"),
        ({"model": TEXT, "input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"model": TEXT, "input": [{"type": "compaction", "encrypted_content": "?"}]}, "input[0].encrypted_content"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_name(home: ToyGateway, path: str, body: dict[str, Any], param: str):
    response = await home.http.post(f"{PATH}/{path}", json=body)

    assert response.status_code == 400
    assert read_error_body(response)["param"] == param
