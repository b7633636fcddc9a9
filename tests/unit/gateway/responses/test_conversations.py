"""``/v1/conversations``: items that responses read and extend."""

from tests.unit.gateway.house import ToyGateway, read_error_body
from tests.unit.gateway.responses_house import (
    post_response,
    read_response_body,
    text_of,
)


async def test_a_conversation_grows_with_its_responses(memory: ToyGateway):
    conversation = read_response_body(await memory.http.post("/v1/conversations", json={"metadata": {"a": "b"}}))
    id = conversation["id"]

    one = read_response_body(await post_response(memory, "one", conversation=id))
    two = read_response_body(await post_response(memory, "two", conversation={"id": id}))

    assert one["conversation"] == {"id": id}
    assert text_of(two) == f"user:one|assistant:{text_of(one)}|user:two"
    item_list = read_response_body(await memory.http.get(f"/v1/conversations/{id}/items", params={"order": "asc"}))
    assert [(item["role"], item["content"][0]["text"]) for item in item_list["data"]] == [
        ("user", "one"),
        ("assistant", text_of(one)),
        ("user", "two"),
        ("assistant", text_of(two)),
    ]


async def test_an_item_can_be_referred_to(memory: ToyGateway):
    conversation = read_response_body(
        await memory.http.post("/v1/conversations", json={"items": [{"role": "user", "content": "note"}]})
    )
    item = read_response_body(await memory.http.get(f"/v1/conversations/{conversation['id']}/items"))["data"][0]

    again = [{"type": "item_reference", "id": item["id"]}, {"role": "user", "content": "now"}]
    response = read_response_body(await post_response(memory, again, conversation=conversation["id"]))

    assert text_of(response) == "user:note|user:note|user:now"
    unknown = await post_response(memory, [{"type": "item_reference", "id": "msg_x"}])
    assert unknown.status_code == 400
    assert read_error_body(unknown)["param"] == "input[0].id"


async def test_items_of_a_conversation_come_and_go(memory: ToyGateway):
    id = read_response_body(await memory.http.post("/v1/conversations", json={}))["id"]
    created_items = read_response_body(
        await memory.http.post(
            f"/v1/conversations/{id}/items",
            json={"items": [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]},
        )
    )
    first, second = (item["id"] for item in created_items["data"])

    one = read_response_body(await memory.http.get(f"/v1/conversations/{id}/items/{first}"))
    assert one["content"] == [{"type": "input_text", "text": "one"}]
    read_response_body(await memory.http.delete(f"/v1/conversations/{id}/items/{first}"))
    assert (await memory.http.get(f"/v1/conversations/{id}/items/{first}")).status_code == 404
    assert [
        item["id"] for item in read_response_body(await memory.http.get(f"/v1/conversations/{id}/items"))["data"]
    ] == [second]
    changed_conversation = read_response_body(
        await memory.http.post(f"/v1/conversations/{id}", json={"metadata": {"x": "y"}})
    )
    assert changed_conversation["metadata"] == {"x": "y"}
    read_response_body(await memory.http.delete(f"/v1/conversations/{id}"))
    assert (await memory.http.get(f"/v1/conversations/{id}")).status_code == 404
    assert (await post_response(memory, "now", conversation=id)).status_code == 400
