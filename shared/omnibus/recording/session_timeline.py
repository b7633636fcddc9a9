"""Timeline of a realtime session from its log: turns, responses, interruptions, and their times.

``omnibus show SESSION --json`` prints it as JSON. It contains sizes and times, never spoken content. Times are seconds
since the session began, when the gateway logged the events.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from omnibus.errors import ProtocolError
from omnibus.recording.sessions import SessionEntry

#: Bytes of a second of each format of audio.
_BYTES_PER_SECOND = {"audio/pcm": 48000, "audio/pcmu": 8000, "audio/pcma": 8000}
_SPEECH = "input_audio_buffer.speech_"
_TRANSCRIPTION = "conversation.item.input_audio_transcription."


class SessionTurn(msgspec.Struct):
    """A message of the user.

    ``speech`` is its audio as milliseconds of the session, null if the gateway did not detect it. ``transcribed`` is
    the time at which its transcript was complete.
    """

    item: str
    committed: float | None = None
    speech: list[int] = []
    transcribed: float | None = None


class SessionResponse(msgspec.Struct):
    """A response.

    ``waited`` is the time to the first audio, or to the first text without audio. It starts at the end of the last
    turn, or at the response's beginning without a turn. ``truncated_ms`` is the part of its audio that was played
    before a client cut it.
    """

    id: str
    begun: float
    invocations: list[str] = []
    first: float | None = None
    waited: float | None = None
    ended: float | None = None
    status: str = "in_progress"
    reason: str | None = None
    audio_seconds: float = 0.0
    truncated_ms: int | None = None


class SessionTimeline(msgspec.Struct):
    """A whole session. ``moments`` has all events in order, with their times.

    ``audio_in_bytes`` was appended, without the last silence, which may belong to a turn.
    """

    id: str
    model: str
    created: float
    turns: list[SessionTurn] = []
    responses: list[SessionResponse] = []
    resumed: list[float] = []
    errors: int = 0
    audio_in_bytes: int = 0
    over: str = ""
    moments: list[tuple[float, str]] = []


def build_timeline(id: str, entries: Sequence[SessionEntry]) -> SessionTimeline:
    """Build the timeline of session ``id``. Raises ``ProtocolError`` for an unreadable log."""
    if not entries or entries[0].origin is None:
        raise ProtocolError("the log of the session has lost its beginning: it is kept no longer")
    builder = _TimelineBuilder(SessionTimeline(id, entries[0].origin.model, entries[0].at))
    for entry in entries:
        builder.add_entry(entry)
    return builder.made


class _TimelineBuilder:
    def __init__(self, timeline: SessionTimeline) -> None:
        self.made = timeline
        self._turns: dict[str, SessionTurn] = {}
        self._responses: dict[str, SessionResponse] = {}
        self._items: dict[str, SessionResponse] = {}
        self._bytes_per_second: dict[str, int] = {}
        self._turn_end: float | None = None

    def add_entry(self, entry: SessionEntry) -> None:
        at = round(entry.at - self.made.created, 4)
        if entry.input is not None:
            self.made.audio_in_bytes = entry.input.end_bytes
        if entry.turn is not None:
            config = msgspec.json.decode(entry.turn.config)
            format = config.get("output_format", {}).get("type", "audio/pcm")
            self._bytes_per_second[entry.turn.id] = _BYTES_PER_SECOND[format]
        for event in entry.events:
            self._add_event(at, msgspec.json.decode(event))
        for id, invocation in entry.invocations.items():
            if id in self._responses:
                self._responses[id].invocations.append(invocation)
        if entry.over:
            self.made.over = entry.over
            self._note(at, f"over: {entry.over}")

    def _note(self, at: float, text: str) -> None:
        self.made.moments.append((at, text))

    def _add_event(self, at: float, event: dict[str, Any]) -> None:
        type = event["type"]
        if type.startswith(_SPEECH) or type == "input_audio_buffer.committed":
            self._add_input(at, type, event)
        elif type.startswith(_TRANSCRIPTION):
            if not type.endswith(".delta"):
                self._turn(event["item_id"]).transcribed = at
                self._note(at, f"transcript {type.rpartition('.')[2]}")
        elif type.startswith("response."):
            self._add_output(at, type, event)
        elif type == "conversation.item.truncated":
            self._add_truncation(at, event)
        elif type == "session.resumed":
            self.made.resumed.append(at)
            self._note(at, f"resumed, {len(event['active_responses'])} responses go on")
        elif type == "error":
            self.made.errors += 1
            self._note(at, f"error {event['error']['code']}")

    def _turn(self, item: str) -> SessionTurn:
        if item not in self._turns:
            self._turns[item] = turn = SessionTurn(item)
            self.made.turns.append(turn)
        return self._turns[item]

    def _add_input(self, at: float, type: str, event: dict[str, Any]) -> None:
        turn = self._turn(event["item_id"])
        if type == f"{_SPEECH}started":
            turn.speech = [event["audio_start_ms"]]
            self._note(at, f"speech started at {event['audio_start_ms']} ms of the audio")
        elif type == f"{_SPEECH}stopped":
            turn.speech = [*turn.speech, event["audio_end_ms"]]
            self._note(at, f"speech stopped at {event['audio_end_ms']} ms of the audio")
        else:
            turn.committed = self._turn_end = at
            self._note(at, f"turn {len(self.made.turns)} committed")

    def _add_output(self, at: float, type: str, event: dict[str, Any]) -> None:
        if type == "response.created":
            response = SessionResponse(event["response"]["id"], at)
            self._responses[response.id] = response
            self.made.responses.append(response)
            self._note(at, f"response {len(self.made.responses)} began")
            return
        session_response = self._responses.get(event.get("response_id") or event.get("response", {}).get("id", ""))
        if session_response is None:
            return
        if type == "response.output_item.added":
            self._items[event["item"]["id"]] = session_response
        elif type == "response.output_audio.delta":
            self._begin_output(session_response, at, "audio")
            nbytes = len(event["delta"]) * 3 // 4 - event["delta"].count("=")
            session_response.audio_seconds += nbytes / self._bytes_per_second.get(session_response.id, 48000)
        elif type in ("response.output_text.delta", "response.function_call_arguments.delta"):
            self._begin_output(session_response, at, "output")
        elif type == "response.done":
            self._end_response(session_response, at, event["response"])

    def _begin_output(self, response: SessionResponse, at: float, kind: str) -> None:
        if response.first is None:
            response.first = at
            response.waited = round(at - (response.begun if self._turn_end is None else self._turn_end), 4)
            self._turn_end = None  # the next response is not the answer to this turn
            self._note(at, f"first {kind} after {response.waited * 1000:.0f} ms")

    def _end_response(self, response: SessionResponse, at: float, body: dict[str, Any]) -> None:
        details = body.get("status_details") or {}
        response.ended, response.status = at, body["status"]
        response.reason = details.get("reason") or (details.get("error") or {}).get("code")
        response.audio_seconds = round(response.audio_seconds, 3)
        why = f" ({response.reason})" if response.reason else ""
        self._note(at, f"response {response.status}{why}, {response.audio_seconds:.2f} s of audio")

    def _add_truncation(self, at: float, event: dict[str, Any]) -> None:
        if event["item_id"] in self._items:
            self._items[event["item_id"]].truncated_ms = event["audio_end_ms"]
        self._note(at, f"cut at {event['audio_end_ms']} ms")
