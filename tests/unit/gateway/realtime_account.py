"""An independent model of a session, to check both sides' events.

It holds audio by bytes and positions, items by ids, order and content, and responses by progress.
"""

import base64
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]

#: Bytes of a millisecond, by format.
BYTES_PER_MS = {"audio/pcm": 48, "audio/pcmu": 8, "audio/pcma": 8}
#: Tolerance of the start and end of speech, in milliseconds; frames are 20 ms.
_FRAMES_MS = 60
#: Milliseconds of padding before speech.
PREFIX_MS = 300
#: Silent samples, by format.
SILENCE = {"audio/pcm": b"\0", "audio/pcmu": b"\xff", "audio/pcma": b"\xd5"}


@dataclass
class AccountItem:
    """An item: its text or arguments, its audio, and whether it is in progress."""

    text: str = ""
    audio: bytes = b""
    other_bytes: int = 0
    format: str = "audio/pcm"
    role: str = ""
    open: bool = False
    speaks: bool = False

    @property
    def nbytes(self) -> int:
        return len(self.text) + len(self.audio) + self.other_bytes


@dataclass
class AccountResponse:
    """A response in progress, with the ids of its items."""

    beside: bool
    format: str
    items: dict[str, AccountItem] = field(default_factory=dict)


class Account:
    """A model fed with every posted event in order; contradictions raise ``AssertionError``."""

    def __init__(self) -> None:
        self.count = 0  # events
        self.order: list[str] = []
        self.items: dict[str, AccountItem] = {}
        self.answers: dict[str, AccountResponse] = {}
        self.active = ""
        self.finished: set[str] = set()
        self.session: Event = {}
        self.waits = False  # a spoken message will be answered
        self.speech = ""  # the item that is being spoken
        self.stopped = ""  # the item whose speech has just stopped
        self.has_spoken = False
        self.rest = b""  # audio to resend
        self._pending_audio, self._committing, self._end_ms = b"", "", 0
        self.transcribing: set[str] = set()
        self._stream, self._stream_begin_ms, self._stream_begin = bytearray(), 0.0, 0
        self._held_from = 0  # of the stream

    # The client's side

    @property
    def format(self) -> str:
        return str(self.session["audio"]["input"]["format"]["type"])

    @property
    def sample_bytes(self) -> int:
        return 2 if self.format == "audio/pcm" else 1

    @property
    def detects(self) -> bool:
        return self.session["audio"]["input"]["turn_detection"] is not None

    @property
    def held(self) -> bytes:
        """Uncommitted audio."""
        return bytes(self._stream[self._held_from :])

    @property
    def nbytes(self) -> int:
        return len(self.held) + sum(each.nbytes for each in self.items.values())

    def append(self, data: bytes) -> None:
        self._stream += data

    # The gateway's side

    def take(self, event: Event) -> None:
        self.count += 1
        assert event["event_id"].rpartition("_")[2] == str(self.count), "events are numbered without a gap"
        name = event["type"].replace(".", "_")
        stopped_item, self.stopped = self.stopped, ""
        if event["type"] == "input_audio_buffer.committed":
            self._committed(event, by_itself=stopped_item == event["item_id"])
        elif (handle := getattr(self, f"_on_{name}", None)) is not None:
            handle(event)

    def _on_session_created(self, event: Event) -> None:
        self.session = event["session"]

    def _on_session_updated(self, event: Event) -> None:
        before = self.format
        self.session = event["session"]
        if before != self.format:
            self._stream_begin_ms += len(self._stream) / BYTES_PER_MS[before]
            self._stream_begin += len(self._stream)
            self._stream, self._held_from = bytearray(), 0

    def _on_session_resumed(self, event: Event) -> None:
        """Apply a resume: the gateway has audio up to a position, and the client must resend the rest."""
        assert sorted(event["active_responses"]) == sorted(self.answers)
        place = event["input_audio_bytes"] - self._stream_begin
        assert 0 <= place <= len(self._stream), (place, len(self._stream))
        if self.detects and not self.speech:
            self._held_from = place  # of silence only its length is kept
        assert self._held_from <= place
        self.rest = bytes(self._stream[place:])
        del self._stream[place:]

    # Input

    def _on_input_audio_buffer_cleared(self, _: Event) -> None:
        self._held_from, self.speech = len(self._stream), ""

    def _on_input_audio_buffer_speech_started(self, event: Event) -> None:
        assert event["item_id"] not in self.order
        assert event["item_id"] != self.speech
        place = self._place(event["audio_start_ms"])
        sound = self._stream[place:]
        late = (len(sound) - len(sound.lstrip(SILENCE[self.format]))) / BYTES_PER_MS[self.format]
        assert late <= PREFIX_MS + _FRAMES_MS, f"speech begins {late} ms before the sound"
        self.speech, self._held_from = event["item_id"], max(self._held_from, place)

    def _on_input_audio_buffer_speech_stopped(self, event: Event) -> None:
        assert event["item_id"] == self.speech
        assert self.speech
        self.stopped, self._end_ms = event["item_id"], event["audio_end_ms"]

    def _place(self, ms: int) -> int:
        """Return the position in the stream at ``ms`` of the session."""
        size = BYTES_PER_MS[self.format]  # audio is cut at whole milliseconds after earlier cuts
        place = self._held_from + round(ms - self._stream_begin_ms - self._held_from / size) * size
        assert self._held_from - size <= place <= len(self._stream) + size, (ms, self._stream_begin_ms)
        return max(self._held_from, min(place, len(self._stream)))

    def _committed(self, event: Event, *, by_itself: bool) -> None:
        assert by_itself or not self.speech or event["item_id"] == self.speech
        assert event["previous_item_id"] == (self.order[-1] if self.order else None)
        whole = len(self.held) // self.sample_bytes * self.sample_bytes
        end = min(self._place(self._end_ms) if by_itself else len(self._stream), self._held_from + whole)
        self._pending_audio = bytes(self._stream[self._held_from : end])
        self._held_from = end
        self.speech, self._committing = "", event["item_id"]
        creates = by_itself and self.session["audio"]["input"]["turn_detection"]["create_response"]
        self.waits = self.waits or bool(creates)

    # Items

    def _on_conversation_item_added(self, event: Event) -> None:
        item, before = event["item"], event["previous_item_id"]
        id = item["id"]
        assert id not in self.items, f"{id} was added twice"
        place = self.order.index(before) + 1 if before is not None else 0
        self.order.insert(place, id)
        owner = next((each for each in self.answers.values() if id in each.items), None)
        if owner is not None:
            self.items[id] = owner.items[id]
            return
        self.items[id] = entry = AccountItem(role=item.get("role", ""), format=self.format)
        if id == self._committing:
            entry.audio, self._committing = self._pending_audio, ""
            if self.session["audio"]["input"]["transcription"] is not None:
                self.transcribing.add(id)
            return
        entry.text = item.get("arguments", "") + item.get("output", "")
        for part in item.get("content", ()):
            entry.text += part.get("text") or part.get("transcript") or ""
            entry.other_bytes += len(part.get("image_url", ""))

    def give_audio(self, id: str, audio: bytes) -> None:
        """Set the client's audio of the item ``id``, which events lack."""
        self.items[id].audio = audio

    def _on_conversation_item_deleted(self, event: Event) -> None:
        self.order.remove(event["item_id"])
        assert not self.items.pop(event["item_id"]).open

    def _on_conversation_item_truncated(self, event: Event) -> None:
        entry = self.items[event["item_id"]]
        size = event["audio_end_ms"] * BYTES_PER_MS[entry.format]
        assert size <= len(entry.audio)
        if size < len(entry.audio):
            end = int(len(entry.text) * size / len(entry.audio))
            whole = end == len(entry.text) or entry.text[end].isspace()
            entry.text = (entry.text[:end] if whole else entry.text[: max(entry.text.rfind(" ", 0, end), 0)]).rstrip()
            entry.audio = entry.audio[:size]

    def _on_conversation_item_retrieved(self, event: Event) -> None:
        item = event["item"]
        entry = self.items[item["id"]]
        parts = item.get("content", ())
        text = item.get("arguments", "") + item.get("output", "")
        text += "".join(part.get("text") or part.get("transcript") or "" for part in parts)
        audio = b"".join(base64.b64decode(part.get("audio", "")) for part in parts)
        assert text == entry.text
        assert len(audio) == len(entry.audio), (len(audio), len(entry.audio))
        assert audio == entry.audio
        assert (item["status"] == "in_progress") == entry.open

    def _on_conversation_item_input_audio_transcription_completed(self, event: Event) -> None:
        self.transcribing.remove(event["item_id"])
        if event["item_id"] in self.items:
            self.items[event["item_id"]].text = event["transcript"]

    def _on_conversation_item_input_audio_transcription_failed(self, event: Event) -> None:
        self.transcribing.remove(event["item_id"])

    # Responses

    def _on_response_created(self, event: Event) -> None:
        response = event["response"]
        beside = response["conversation_id"] is None
        assert response["id"] not in self.answers
        assert response["id"] not in self.finished
        assert beside or not self.active, "two responses write to the conversation"
        self.answers[response["id"]] = AccountResponse(beside, response["audio"]["output"]["format"]["type"])
        self.has_spoken = self.has_spoken or response["output_modalities"] == ["audio"]
        if not beside:
            self.active, self.waits = response["id"], False

    def _on_response_content_part_added(self, event: Event) -> None:
        self._grown(event).speaks = event["part"]["type"] == "audio"

    def _on_response_output_item_added(self, event: Event) -> None:
        answer = self.answers[event["response_id"]]
        assert event["output_index"] == len(answer.items)
        role = event["item"].get("role", "")
        still_open = [each for each in answer.items.values() if each.open]
        # The audio of a message may be longer than what the model writes: calls begin before its end.
        assert not still_open or (not role and all(each.speaks for each in still_open))
        answer.items[event["item"]["id"]] = AccountItem(role=role, format=answer.format, open=True)

    def _grown(self, event: Event) -> AccountItem:
        entry = self.answers[event["response_id"]].items[event["item_id"]]
        assert entry.open, "a closed item grows"
        return entry

    def _on_response_output_text_delta(self, event: Event) -> None:
        self._grown(event).text += event["delta"]

    def _on_response_output_audio_transcript_delta(self, event: Event) -> None:
        self._grown(event).text += event["delta"]

    def _on_response_function_call_arguments_delta(self, event: Event) -> None:
        self._grown(event).text += event["delta"]

    def _on_response_output_audio_delta(self, event: Event) -> None:
        self._grown(event).audio += base64.b64decode(event["delta"])

    def _on_response_output_item_done(self, event: Event) -> None:
        entry = self.answers[event["response_id"]].items[event["item"]["id"]]
        assert entry.open, "an item is done twice"
        entry.open = False

    def _on_error(self, event: Event) -> None:
        error = event["error"]
        assert error["type"] in ("invalid_request_error", "rate_limit_error"), error
        assert error["code"]
        assert error["message"]

    def _on_response_done(self, event: Event) -> None:
        response = event["response"]
        answer = self.answers.pop(response["id"], None)
        assert answer is not None, "a response ends that was not begun, or has ended"
        assert not any(each.open for each in answer.items.values()), "an item of a response that is over is open"
        assert [each["id"] for each in response["output"]] == list(answer.items)
        details = response["status_details"] or {}
        assert response["status"] in ("completed", "cancelled", "incomplete", "failed")
        assert details.get("error", {}).get("type") != "server_error", details
        self.finished.add(response["id"])
        if self.active == response["id"]:
            self.active = ""
