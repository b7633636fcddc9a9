"""Events of a streamed response, built from a model's output. ``sequence`` numbers them.

Order of a text: created, in_progress, output_item.added, content_part.added, output_text.delta ..., output_text.done,
content_part.done, output_item.done, completed. Audio events have no item indices and appear between those of the text.
"""

import base64
from hashlib import blake2b
from typing import Any

import msgspec

from omnibus.errors import ProtocolError
from omnibus_gateway.openai.chat_response import Usage
from omnibus_gateway.openai.responses.items import (
    ImageGenerationCall,
    OutputAudio,
    OutputMessage,
    OutputText,
    Reasoning,
    ReasoningText,
    encode_reasoning,
)
from omnibus_gateway.openai.responses.response import IncompleteDetails, ResponseObject, response_usage
from omnibus_gateway.openai.responses.tools import (
    ID_PREFIXES,
    PLAIN_CALLS,
    ToolCallFormat,
    could_be_input,
    read_input,
    write_input,
)

#: An event: its ``type`` first, then its other fields.
Event = dict[str, Any]
#: The last event of each stream is one of these.
TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
#: Audio is sent in multiples of this many bytes, so that joining the base64 texts joins the files.
_ALIGNMENT_BYTES = 3


class AnswerEvents:
    """Builder of the events of ``response``. Each method returns the events that its arguments cause.

    ``encrypts``: whether reasoning also has the encoded form that clients without a store send back. ``calls``: the
    kinds of calls.
    """

    def __init__(
        self, response: ResponseObject, *, encrypts: bool = False, calls: ToolCallFormat = PLAIN_CALLS
    ) -> None:
        self.response = response
        self._calls = calls
        self._encrypts = encrypts
        self._open: _OpenItem | None = None
        self._items: list[Any] = []
        self._held = b""
        self._sound: list[bytes] = []
        self._transcript: list[str] = []

    def wait(self) -> list[Event]:
        """Return the events of a queued response, which precede ``begin``."""
        return [self._life_event("created"), self._life_event("queued")]

    def begin(self) -> list[Event]:
        """Return the events that precede all output."""
        opening_events = [] if self.response.status == "queued" else [self._life_event("created")]
        self.response = msgspec.structs.replace(self.response, status="in_progress")
        return [*opening_events, self._life_event("in_progress")]

    def add_reasoning(self, delta: str) -> list[Event]:
        """Add reasoning of the model."""
        events = self._switch_to("reasoning")
        item = self._item()
        item.text.append(delta)
        return [*events, self._delta("response.reasoning_text.delta", item, delta)]

    def add_text(self, delta: str) -> list[Event]:
        """Add text of the answer."""
        events = self._switch_to("message")
        item = self._item()
        if not item.has_part:
            item.has_part = True
            part = OutputText("")
            events.append({"type": "response.content_part.added", **item.place(), "content_index": 0, "part": part})
        item.text.append(delta)
        return [*events, {**self._delta("response.output_text.delta", item, delta), "logprobs": []}]

    def begin_call(self, name: str, call_id: str) -> list[Event]:
        """Begin a call of a tool."""
        events = self._close_item("completed")
        return [*events, *self._open_item(_OpenCall(self._calls, name, call_id, len(self._items)))]

    def add_arguments(self, delta: str) -> list[Event]:
        """Add arguments to the current call."""
        item = self._item()
        item.text.append(delta)
        return item.argument_events(delta)

    def begin_image(self) -> list[Event]:
        """Begin an image."""
        events = self._close_item("completed")
        events += self._open_item(_OpenItem("image_generation_call", "ig_", len(self._items)))
        return [*events, self._image_event("in_progress"), self._image_event("generating")]

    def add_partial_image(self, file: bytes, index: int, about: dict[str, Any]) -> list[Event]:
        """Send an unfinished version of the current image."""
        data = base64.b64encode(file).decode()
        return [
            {**self._image_event("partial_image"), "partial_image_b64": data, "partial_image_index": index, **about}
        ]

    def finish_image(self, image: ImageGenerationCall) -> list[Event]:
        """Complete the current image with ``image``."""
        self._item().image = image
        return [self._image_event("completed"), *self._close_item("completed")]

    def fail_image(self) -> list[Event]:
        """End the current image as failed."""
        return self._close_item("failed")

    def _image_event(self, state: str) -> Event:
        return {"type": f"response.image_generation_call.{state}", **self._item().place()}

    def add_transcript(self, delta: str) -> list[Event]:
        """Add to the transcript of the audio, which is sent without text."""
        events = self._switch_to("message")
        self._transcript.append(delta)
        return [*events, {"type": "response.audio.transcript.delta", "delta": delta}]

    def add_audio(self, data: bytes) -> list[Event]:
        """Add the next bytes of the audio file. Up to two bytes wait for the next call."""
        events = self._switch_to("message")
        sound = self._held + data
        ready = len(sound) - len(sound) % _ALIGNMENT_BYTES
        self._held = sound[ready:]
        return [*events, *self._audio_delta(sound[:ready])]

    def finish(self, reason: str, usage: Usage, ended_at: float, sound: OutputAudio | None = None) -> list[Event]:
        """Return the closing events. ``sound`` describes the file of the audio bytes."""
        cut = reason in ("length", "content_filter")
        events = self._switch_to("message") if not self._items and self._open is None else []
        if sound is not None:
            events += self._audio_delta(self._held)
            events.append({"type": "response.audio.done"})
            if self._transcript:
                events.append({"type": "response.audio.transcript.done"})
            data = base64.b64encode(b"".join(self._sound)).decode()
            self._item().sound = msgspec.structs.replace(sound, data=data)
        events += self._close_item("incomplete" if cut else "completed")
        details = IncompleteDetails("max_output_tokens" if reason == "length" else "content_filter") if cut else None
        self.response = msgspec.structs.replace(
            self.response,
            status="incomplete" if cut else "completed",
            incomplete_details=details,
            output=list(self._items),
            usage=response_usage(usage),
            completed_at=None if cut else int(ended_at),
        )
        return [*events, self._life_event(self.response.status)]

    # Items

    def _switch_to(self, kind: str) -> list[Event]:
        if self._open is not None and self._open.kind == kind:
            return []
        events = self._close_item("completed")
        prefix = "rs_" if kind == "reasoning" else "msg_"
        return [*events, *self._open_item(_OpenItem(kind, prefix, len(self._items)))]

    def _open_item(self, item: "_OpenItem") -> list[Event]:
        item.name_within(self.response.id)
        self._open = item
        output_item = item.build("in_progress", encrypts=False)
        events: list[Event] = [{"type": "response.output_item.added", "output_index": item.index, "item": output_item}]
        if item.kind == "reasoning":
            part = ReasoningText("")
            events.append({"type": "response.content_part.added", **item.place(), "content_index": 0, "part": part})
        return events

    def _close_item(self, status: str) -> list[Event]:
        item, self._open = self._open, None
        if item is None:
            return []
        output_item = item.build(status, encrypts=self._encrypts)
        self._items.append(output_item)
        done_event = {"type": "response.output_item.done", "output_index": item.index, "item": output_item}
        return [*item.closing_events(), done_event]

    def _item(self) -> "_OpenItem":
        if self._open is None:
            raise ProtocolError("the answer has arguments before the begin of their call")
        return self._open

    def _delta(self, type: str, item: "_OpenItem", delta: str) -> Event:
        return {"type": type, **item.place(), "content_index": 0, "delta": delta}

    def _audio_delta(self, data: bytes) -> list[Event]:
        self._sound.append(data)
        return [{"type": "response.audio.delta", "delta": base64.b64encode(data).decode()}] if data else []

    def _life_event(self, state: str) -> Event:
        return {"type": f"response.{state}", "response": self.response}


def ending_event(response: ResponseObject) -> Event:
    """Return the last event of ``response``. A cancelled response ends as incomplete."""
    state = "incomplete" if response.status == "cancelled" else response.status
    return {"type": f"response.{state}", "response": response}


class _OpenItem:
    """An item of the output that is not complete. Its id is derived from its response and index."""

    def __init__(self, kind: str, prefix: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.id = prefix
        self.text: list[str] = []
        self.has_part = False
        self.sound: OutputAudio | None = None
        self.image = ImageGenerationCall(result=None)

    def name_within(self, response: str) -> None:
        self.id += blake2b(f"{response}/{self.index}".encode(), digest_size=24).hexdigest()

    def place(self) -> Event:
        return {"item_id": self.id, "output_index": self.index}

    def build(self, status: Any, *, encrypts: bool) -> Any:
        text = "".join(self.text)
        if self.kind == "image_generation_call":
            return msgspec.structs.replace(self.image, id=self.id, status=status)
        if self.kind == "reasoning":
            encrypted_content = encode_reasoning(text) if encrypts else msgspec.UNSET
            return Reasoning(self.id, [], [ReasoningText(text)] if text else [], encrypted_content, status)
        parts: list[Any] = [OutputText(text)] if self.has_part else []
        return OutputMessage(self.id, status, [*parts, self.sound] if self.sound is not None else parts)

    def argument_events(self, delta: str) -> list[Event]:
        raise ProtocolError("the answer has arguments before the begin of their call")

    def closing_events(self) -> list[Event]:
        text, place = "".join(self.text), self.place()
        if self.kind == "reasoning":
            return [
                {"type": "response.reasoning_text.done", **place, "content_index": 0, "text": text},
                {"type": "response.content_part.done", **place, "content_index": 0, "part": ReasoningText(text)},
            ]
        if not self.has_part:
            return []
        return [
            {"type": "response.output_text.done", **place, "content_index": 0, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **place, "content_index": 0, "part": OutputText(text)},
        ]


class _OpenCall(_OpenItem):
    """A call whose arguments are not complete. ``calls`` has the kinds of calls."""

    def __init__(self, calls: ToolCallFormat, name: str, call_id: str, index: int) -> None:
        kind = calls.find_kind(name)
        super().__init__(kind, ID_PREFIXES[kind], index)
        self._calls = calls
        self._name = name
        self._call_id = call_id
        self._sent = 0  # characters of free text that were sent

    def build(self, status: Any, *, encrypts: bool) -> Any:
        text = "".join(self.text)
        if not text and self.kind == "custom_tool_call":
            text = write_input("")
        return self._calls.build_call(self._name, text, self._call_id, self.id, status)

    def argument_events(self, delta: str) -> list[Event]:
        """Return the events of more arguments."""
        if self.kind == "function_call":
            return [{"type": "response.function_call_arguments.delta", **self.place(), "delta": delta}]
        if self.kind == "custom_tool_call" and could_be_input(arguments := "".join(self.text)):
            return self._input_events(read_input(arguments))
        return []

    def _input_events(self, text: str) -> list[Event]:
        fresh, self._sent = text[self._sent :], max(self._sent, len(text))
        return [{"type": "response.custom_tool_call_input.delta", **self.place(), "delta": fresh}] if fresh else []

    def closing_events(self) -> list[Event]:
        arguments, place = "".join(self.text), self.place()
        if self.kind == "function_call":
            return [{"type": "response.function_call_arguments.done", **place, "arguments": arguments}]
        if self.kind != "custom_tool_call":
            return []
        text = read_input(arguments)
        return [*self._input_events(text), {"type": "response.custom_tool_call_input.done", **place, "input": text}]
