"""Logs of realtime sessions: all their events, for a gateway that resumes one and for people.

Each line of the log is a list of entries that belong together: either all are valid or none. It is on the bus before a
client gets its events.

Logs of lines on the bus: the messages of one subject, with one writer at a time.

Messages of the bus are small, so a message is any piece of the lines: its number, ``+`` or ``=``, and the piece. A
message with ``=`` starts a line: an unfinished line before it is dropped, since its writer died. A writer appends after
the last message that it has read; of two writers, one is rejected.

Timeline of a realtime session from its log: turns, responses, interruptions, and their times.

``omnibus show SESSION --json`` prints it as JSON. It contains sizes and times, never spoken content. Times are seconds
since the session began, when the gateway logged the events.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

import msgspec

from omnibus.bus import Bus, subjects
from omnibus.bus.subjects import StreamSpec
from omnibus.errors import NotFound, ProtocolError

#: Bytes of one piece, if the bus allows as many, and of its head.
PIECE_BYTES = 48 * 1024
_HEAD_BYTES = 32


class LineAssembler(ABC):
    """Assembles lines from the messages of a log."""

    def __init__(self) -> None:
        self.number = 0  # of the last message, as the stream counts
        self.pieces = 0
        self._rest = b""

    def add_message(self, data: bytes, number: int = 0) -> bool:
        """Add the next message; returns False without adding it if an earlier one is missing."""
        head, _, piece = data.partition(b"\n")
        if not head[:-1].isdigit():
            raise ProtocolError("a message in a log cannot be read")
        if int(head[:-1]) < self.pieces:
            return True  # known
        if int(head[:-1]) > self.pieces:
            return False
        self.pieces += 1
        self.number = max(self.number, number)
        *lines, self._rest = ((self._rest if head.endswith(b"+") else b"") + piece).split(b"\n")
        for line in lines:
            self.add_line(line)
        return True

    @abstractmethod
    def add_line(self, line: bytes) -> None:
        """Add the next line. Raises ``ProtocolError``."""


class LineWriter:
    """Appends lines to the log on ``subject``, after the lines of ``content``."""

    def __init__(self, bus: Bus, stream: StreamSpec, subject: str, content: LineAssembler | None = None) -> None:
        self._bus = bus
        self._stream = stream
        self._subject = subject
        self._number = content.number if content is not None else 0
        self._pieces = content.pieces if content is not None else 0
        self._writer = token_hex(8)

    async def append_lines(self, data: bytes) -> None:
        """Write ``data``, whole lines; returns once they are stored.

        Raises ``Conflict`` if another client writes this log, and ``BusUnavailable``.
        """
        step = min(PIECE_BYTES, self._bus.max_body - _HEAD_BYTES)
        for begin in range(0, len(data), step):
            await self._append_piece(b"+" if begin else b"=", data[begin : begin + step])

    async def _append_piece(self, kind: bytes, piece: bytes) -> None:
        body = b"%d%b\n%b" % (self._pieces, kind, piece)
        id = f"{self._writer}.{self._pieces}"
        self._number = await self._bus.append_record(self._stream, self._subject, body, id, self._number)
        self._pieces += 1


async def read_lines(bus: Bus, stream: StreamSpec, subject: str, content: LineAssembler) -> None:
    """Read the lines that ``content`` lacks from the log on ``subject``. Raises ``BusUnavailable`` and
    ``ProtocolError``."""
    for message in await bus.read_subject(stream, subject, content.number):
        if not content.add_message(message.data, message.number):
            raise ProtocolError("a log has lost its beginning: it is kept no longer")


class SessionOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Beginning of a session.

    ``token_sha256`` is of the token with which its client resumes, ``expires`` its end in Unix seconds.
    """

    model: str
    expires: int
    conversation: str
    token_sha256: str
    tenant: str = ""


class InputChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Audio that a client has appended: ``data`` is added to the buffer, or replaces it if ``resets``.

    ``end_bytes`` and ``end_ms`` count all audio of the session up to here; later audio is not in the log. ``noise_db``
    is the noise level estimated by the turn detector; ``speech`` is the item that is being spoken.
    """

    end_bytes: int
    end_ms: float
    data: bytes = b""
    resets: bool = False
    speech: str = ""
    noise_db: float | None = None


class LoggedPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Part of an item, as ``omnibus_gateway.realtime.conversation.ItemPart``."""

    type: str
    text: str = ""
    audio: bytes = b""
    format: msgspec.Raw = msgspec.Raw(b"null")
    image_url: str = ""
    detail: Any = None
    model_bytes: int = 0


class LoggedItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A complete item from a client."""

    id: str
    type: str
    role: str = ""
    parts: tuple[LoggedPart, ...] = ()
    call_id: str = ""
    name: str = ""
    text: str = ""


class InsertedItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Insertion of ``item`` after the item ``after``; None for the end of the conversation."""

    item: LoggedItem
    after: str | None = None


class TruncatedItem(msgspec.Struct, frozen=True):
    """Truncation of an item's audio after so many milliseconds."""

    id: str
    index: int
    milliseconds: int


class BegunTurn(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response that has begun, with everything needed to make it again.

    ``items`` are its inputs: ids of those of the conversation, and others whole.
    """

    id: str
    config: msgspec.Raw
    items: tuple[str | LoggedItem, ...]
    seed: int
    deadline: float
    beside: bool = False
    metadata: dict[str, str] | None = None


class SessionEntry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Changes at a time, Unix seconds: ``events`` sent to the client, and the changed state.

    By response, ``tokens`` are ids of received tokens, ``codes`` those of its talker, or frames of them, and
    ``invocations`` the ids of its invocations. ``waits``: whether the user has spoken during a response that continues,
    and is answered after it. ``over``: why the session has ended for good.
    """

    at: float
    events: tuple[msgspec.Raw, ...] = ()
    origin: SessionOrigin | None = None
    config: msgspec.Raw = msgspec.Raw()
    input: InputChange | None = None
    inserted: InsertedItem | None = None
    truncated: TruncatedItem | None = None
    deleted: str = ""
    turn: BegunTurn | None = None
    tokens: dict[str, tuple[int, ...]] = {}
    codes: dict[str, tuple[int | tuple[int, ...], ...]] = {}
    invocations: dict[str, str] = {}
    waits: bool | None = None
    over: str = ""


#: Of the entries of one line.
encode_entries = msgspec.json.Encoder().encode
_decode_entries = msgspec.json.Decoder(list[SessionEntry]).decode


class SessionEntries(LineAssembler):
    """All entries of a session, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[SessionEntry] = []

    def add_line(self, line: bytes) -> None:
        try:
            self.entries += _decode_entries(line)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"the log of a session cannot be read: {error}") from error


async def read_session(bus: Bus, id: str, known_entries: SessionEntries | None = None) -> SessionEntries:
    """Return the log of session ``id``, after its ``known_entries`` entries.

    Raises ``NotFound``, ``BusUnavailable`` and ``ProtocolError``.
    """
    session = known_entries if known_entries is not None else SessionEntries()
    await read_lines(bus, subjects.RESPONSES, subjects.response_subject(subjects.subject_token(id)), session)
    if not session.entries:
        raise NotFound(f"no realtime session {id[:64]} is kept: it was not opened with resumable=true, or is too old")
    return session


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
