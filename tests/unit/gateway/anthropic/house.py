"""Requests of messages, and readers of their answers."""

import json
from typing import Any

import httpx

from tests.unit.gateway.house import TEXT, ToyGateway

PATH = "/v1/messages"


def build_message_body(content: Any = "hello there", **more: Any) -> dict[str, Any]:
    return {"model": TEXT, "max_tokens": 100, "messages": [{"role": "user", "content": content}], **more}


async def post_message(home: ToyGateway, content: Any = "hello there", **more: Any) -> httpx.Response:
    return await home.http.post(PATH, json=build_message_body(content, **more))


def read_message(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return dict(response.json())


def read_message_error(response: httpx.Response) -> dict[str, Any]:
    """Return the error of a response. Checks the shape of its body and its request id."""
    body = response.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    assert body["request_id"] == response.headers["request-id"]
    return dict(body["error"])


def read_message_events(body: str) -> list[dict[str, Any]]:
    """Return the events of a stream. Checks that names match types."""
    events = []
    for block in filter(None, body.split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def read_deltas(events: list[dict[str, Any]], field: str) -> str:
    """Return the joined values of ``field`` in the deltas of blocks."""
    return "".join(event["delta"].get(field, "") for event in events if event["type"] == "content_block_delta")
