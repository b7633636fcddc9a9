"""Streamed chats as their clients read them: events, and their combined text and audio."""

import base64
import json
from typing import Any, NamedTuple


class StreamedEvent(NamedTuple):
    id: str
    data: Any  # JSON, or "[DONE]"


def parse_events(body: str) -> list[StreamedEvent]:
    events = []
    for block in filter(None, body.split("\n\n")):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        data = lines["data"]
        events.append(StreamedEvent(lines.get("id", ""), data if data == "[DONE]" else json.loads(data)))
    return events


def list_deltas(events: list[StreamedEvent]) -> list[dict[str, Any]]:
    return [each.data["choices"][0]["delta"] for each in events if each.data != "[DONE]" and each.data.get("choices")]


def text_of(events: list[StreamedEvent]) -> str:
    choice_deltas = list_deltas(events)
    return "".join(
        (each.get("content") or "") + (each.get("audio") or {}).get("transcript", "") for each in choice_deltas
    )


def sound_of(events: list[StreamedEvent]) -> bytes:
    return b"".join(base64.b64decode((each.get("audio") or {}).get("data", "")) for each in list_deltas(events))


def list_event_kinds(events: list[StreamedEvent]) -> list[Any]:
    """Return the events by name without content, each once."""
    names = []
    for each in events:
        if each.data == "[DONE]":
            names.append("done")
        elif not each.data["choices"]:
            names.append("usage")
        elif each.data["choices"][0]["finish_reason"]:
            names.append("finish")
        elif "expires_at" in (each.data["choices"][0]["delta"].get("audio") or {}):
            names.append("audio end")
        elif "role" in each.data["choices"][0]["delta"]:
            names.append("role")
    return names
