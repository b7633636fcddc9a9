"""Events of one response, in any order of text, calls and audio."""

from itertools import count

import pytest

from omnibus.errors import BadRequest, Overloaded
from omnibus_gateway.openai.realtime.session import SessionConfig
from omnibus_gateway.realtime import conversation as conversations
from omnibus_gateway.realtime.conversation import Conversation, Event, ResponseEvents


@pytest.fixture
def conversation() -> Conversation:
    return Conversation("conv_1")


def make_response(conversation: Conversation, modality: str = "audio") -> ResponseEvents:
    numbers = count(1)
    config = SessionConfig(model="toy.omni", modality=modality)
    return ResponseEvents("resp_1", config, conversation, lambda prefix: f"{prefix}{next(numbers)}")


def read_item_types(events: list[Event]) -> list[tuple[str, int]]:
    """Return the types of events about items, with the items' positions."""
    return [
        (event["type"].removeprefix("response."), event["output_index"]) for event in events if "output_index" in event
    ]


def test_audio_that_comes_after_a_call_has_begun_is_of_the_message_before_it(conversation: Conversation):
    response_events = make_response(conversation)
    response_events.add_text("The weather: ")
    response_events.add_audio(b"one ")

    events = [
        *response_events.begin_call("weather", "call_1"),
        *response_events.add_arguments("{"),
        *response_events.add_audio(b"two"),
    ]
    events += [*response_events.add_arguments("}"), *response_events.finish("completed")]

    assert read_item_types(events) == [
        ("output_item.added", 1),
        ("function_call_arguments.delta", 1),
        ("output_audio.delta", 0),
        ("function_call_arguments.delta", 1),
        ("output_audio.done", 0),
        ("output_audio_transcript.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("function_call_arguments.done", 1),
        ("output_item.done", 1),
    ]
    message, call = response_events.items
    assert (message.parts[0].text, bytes(message.parts[0].audio)) == ("The weather: ", b"one two")
    assert call.text == "{}"
    assert [item.status for item in conversation] == ["completed", "completed"]


def test_a_written_message_is_done_when_a_call_begins(conversation: Conversation):
    response_events = make_response(conversation, "text")
    response_events.add_text("Let me look.")

    events = response_events.begin_call("weather", "call_1")

    assert read_item_types(events) == [
        ("output_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
    ]


def test_an_item_that_finds_no_room_leaves_the_ends_of_those_before_it_to_come(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conversations, "MAX_ITEMS", 1)
    response_events = make_response(conversation, "text")
    response_events.add_text("Let me look.")

    with pytest.raises(BadRequest):
        response_events.begin_call("weather", "call_1")

    assert read_item_types(response_events.finish("failed")) == [
        ("output_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
    ]
    assert [item.status for item in conversation] == ["incomplete"]


@pytest.mark.parametrize("modality", ["audio", "text"])
def test_a_message_that_finds_no_room_for_its_first_piece_is_not_opened(modality: str):
    conversation = Conversation("conv_1", refuse_bytes)
    response_events = make_response(conversation, modality)

    with pytest.raises(Overloaded):
        response_events.add_text("Hello") if modality == "text" else response_events.add_audio(b"hello")

    assert not list(conversation)
    assert read_item_types(response_events.finish("failed")) == []


def test_bytes_of_a_message_that_cannot_be_opened_do_not_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversations, "MAX_ITEMS", 0)
    byte_counts: list[int] = []
    response_events = make_response(Conversation("conv_1", byte_counts.append))

    with pytest.raises(BadRequest):
        response_events.add_text("Hello")

    assert sum(byte_counts) == 0


def refuse_bytes(more: int) -> None:
    if more > 0:
        raise Overloaded("full")
