"""``/v1/conversations``: items that responses read and extend."""

from tests.unit.gateway.house import House, error
from tests.unit.gateway.responses_house import (
    create,
    text_of,
    whole,
)


async def test_a_conversation_grows_with_its_responses(memory: House):
    conversation = whole(await memory.http.post("/v1/conversations", json={"metadata": {"a": "b"}}))
    id = conversation["id"]

    one = whole(await create(memory, "one", conversation=id))
    two = whole(await create(memory, "two", conversation={"id": id}))

    assert one["conversation"] == {"id": id}
    assert text_of(two) == f"user:one|assistant:{text_of(one)}|user:two"
    listed = whole(await memory.http.get(f"/v1/conversations/{id}/items", params={"order": "asc"}))
    assert [(item["role"], item["content"][0]["text"]) for item in listed["data"]] == [
        ("user", "one"),
        ("assistant", text_of(one)),
        ("user", "two"),
        ("assistant", text_of(two)),
    ]


async def test_an_item_can_be_referred_to(memory: House):
    conversation = whole(
        await memory.http.post("/v1/conversations", json={"items": [{"role": "user", "content": "note"}]})
    )
    item = whole(await memory.http.get(f"/v1/conversations/{conversation['id']}/items"))["data"][0]

    again = [{"type": "item_reference", "id": item["id"]}, {"role": "user", "content": "now"}]
    made = whole(await create(memory, again, conversation=conversation["id"]))

    assert text_of(made) == "user:note|user:note|user:now"
    unknown = await create(memory, [{"type": "item_reference", "id": "msg_x"}])
    assert unknown.status_code == 400
    assert error(unknown)["param"] == "input[0].id"


async def test_items_of_a_conversation_come_and_go(memory: House):
    id = whole(await memory.http.post("/v1/conversations", json={}))["id"]
    added = whole(
        await memory.http.post(
            f"/v1/conversations/{id}/items",
            json={"items": [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]},
        )
    )
    first, second = (item["id"] for item in added["data"])

    one = whole(await memory.http.get(f"/v1/conversations/{id}/items/{first}"))
    assert one["content"] == [{"type": "input_text", "text": "one"}]
    whole(await memory.http.delete(f"/v1/conversations/{id}/items/{first}"))
    assert (await memory.http.get(f"/v1/conversations/{id}/items/{first}")).status_code == 404
    assert [item["id"] for item in whole(await memory.http.get(f"/v1/conversations/{id}/items"))["data"]] == [second]
    updated = whole(await memory.http.post(f"/v1/conversations/{id}", json={"metadata": {"x": "y"}}))
    assert updated["metadata"] == {"x": "y"}
    whole(await memory.http.delete(f"/v1/conversations/{id}"))
    assert (await memory.http.get(f"/v1/conversations/{id}")).status_code == 404
    assert (await create(memory, "now", conversation=id)).status_code == 400
