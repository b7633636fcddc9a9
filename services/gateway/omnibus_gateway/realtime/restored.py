"""Session state rebuilt from its log by the gateway that resumes it.

Conversion of conversation items to and from the log of their session.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pybase64

from omnibus.errors import ProtocolError
from omnibus.recording.sessions import BegunTurn, InputChange, LoggedItem, LoggedPart, SessionEntry, SessionOrigin
from omnibus_gateway.openai.realtime.session import AudioFormat, SessionConfig
from omnibus_gateway.realtime.conversation import Conversation, ConversationItem, ItemPart

_encode = msgspec.json.Encoder().encode
_decode_format = msgspec.json.Decoder(AudioFormat).decode


def to_logged(item: ConversationItem) -> LoggedItem:
    """Convert ``item`` with its audio."""
    parts = tuple(
        LoggedPart(
            each.type,
            each.text,
            bytes(each.audio),
            msgspec.Raw(_encode(each.format)) if each.format is not None else msgspec.Raw(b"null"),
            each.image_url,
            each.detail,
            each.model_bytes,
        )
        for each in item.parts
    )
    return LoggedItem(item.id, item.type, item.role, parts, item.call_id, item.name, item.text)


def from_logged(item: LoggedItem) -> ConversationItem:
    """Convert a logged item. Raises ``ProtocolError``."""
    conversation_item = ConversationItem(
        item.id, item.type, item.role, call_id=item.call_id, name=item.name, text=item.text
    )
    for part in item.parts:
        format = _read_format(part.format)
        conversation_item.parts.append(
            ItemPart(part.type, part.text, part.audio, format, part.image_url, part.detail, part.model_bytes)
        )
    return conversation_item


def _read_format(format: msgspec.Raw) -> AudioFormat | None:
    try:
        return None if bytes(format) in (b"", b"null") else _decode_format(format)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the log of a session has audio of an unknown format: {error}") from error


_decode_config = msgspec.json.Decoder(SessionConfig).decode
_decode_event = msgspec.json.Decoder(dict[str, Any]).decode
_TRANSCRIPTION = "conversation.item.input_audio_transcription."
#: Bytes of events that one step of the event loop reads, which takes less than a millisecond.
MAX_BYTES_AT_ONCE = 256 << 10


@dataclass
class RestoredTurn:
    """Response that was in progress. ``input`` contains the items that it answers, as they were when it began."""

    begun: BegunTurn
    config: SessionConfig
    input: list[ConversationItem]
    items: list[ConversationItem] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    codes: list[int | tuple[int, ...]] = field(default_factory=list)


class RestoredSession:
    """Session whose log begins with ``first``; ``apply_entries`` reads that entry and the ones after it.

    Raises ``ProtocolError`` if ``first`` is not the beginning of a log.
    """

    def __init__(self, first: SessionEntry) -> None:
        if first.origin is None:
            raise ProtocolError("the log of a session has lost its beginning: the session cannot be resumed")
        self.origin: SessionOrigin = first.origin
        self.conversation = Conversation(self.origin.conversation)
        self.config = SessionConfig(model=self.origin.model)
        self.turns: dict[str, RestoredTurn] = {}
        self.transcripts: dict[str, str] = {}  # so far, of the items in transcription
        self.events: list[bytes] = []  # that the client has received
        self.has_spoken = False
        self.waits_for_turn = False
        self.over = ""
        self._input: InputChange | None = None  # the latest one, without its audio
        self._held = bytearray()

    @property
    def input(self) -> InputChange | None:
        """All appended audio as one change; None if there was none."""
        return msgspec.structs.replace(self._input, data=bytes(self._held)) if self._input is not None else None

    async def apply_entries(self, entries: Sequence[SessionEntry]) -> None:
        """Apply the next ``entries``; other sessions run during a long history.

        Raises ``ProtocolError`` for unreadable entries.
        """
        nbytes = 0
        try:
            for entry in entries:
                nbytes += self._apply(entry)
                if nbytes >= MAX_BYTES_AT_ONCE:
                    nbytes = 0
                    await asyncio.sleep(0)
        except (msgspec.MsgspecError, LookupError, ValueError) as error:
            raise ProtocolError(f"the log of a session cannot be read: {error!r}") from error

    def _apply(self, entry: SessionEntry) -> int:
        """Apply an entry; returns the bytes of its events."""
        if bytes(entry.config):
            self.config = _decode_config(entry.config)
        if entry.input is not None:
            self._apply_input(entry.input)
        if entry.inserted is not None:
            self.conversation.insert_item(from_logged(entry.inserted.item), entry.inserted.after)
        if entry.truncated is not None:
            self.conversation.truncate_item(*msgspec.structs.astuple(entry.truncated))
        if entry.deleted:
            self.conversation.delete_item(entry.deleted)
        if entry.turn is not None:
            self._begin_turn(entry.turn)
        for id, turn in self.turns.items():
            turn.token_ids += entry.tokens.get(id, ())
            turn.codes += entry.codes.get(id, ())
        self.waits_for_turn = entry.waits if entry.waits is not None else self.waits_for_turn
        self.over = entry.over or self.over
        bodies = [bytes(body) for body in entry.events]
        self.events += bodies
        for body in bodies:
            self._apply_event(_decode_event(body))
        return sum(map(len, bodies))

    def _apply_input(self, change: InputChange) -> None:
        if change.resets:
            self._held.clear()
        self._held += change.data
        self._input = msgspec.structs.replace(change, data=b"", resets=True)

    def _begin_turn(self, begun_turn: BegunTurn) -> None:
        config = _decode_config(begun_turn.config)
        input_items = [
            _copy_item(self.conversation.find_item(each)) if isinstance(each, str) else from_logged(each)
            for each in begun_turn.items
        ]
        self.turns[begun_turn.id] = RestoredTurn(begun_turn, config, input_items)
        self.has_spoken = self.has_spoken or config.modality == "audio"

    # Events contain the output of responses

    def _apply_event(self, event: Mapping[str, Any]) -> None:
        type, turn = event["type"], self.turns.get(event.get("response_id", ""))
        if type == "response.done":
            self.turns.pop(event["response"]["id"], None)
        elif type == "input_audio_buffer.committed":
            if self.config.transcription is not None:
                self.transcripts[event["item_id"]] = ""
        elif type.startswith(_TRANSCRIPTION):
            self._apply_transcription(type.removeprefix(_TRANSCRIPTION), event)
        elif turn is not None:
            _apply_output(turn, type, event, None if turn.begun.beside else self.conversation)

    def _apply_transcription(self, kind: str, event: Mapping[str, Any]) -> None:
        id = event["item_id"]
        if kind == "delta":
            self.transcripts[id] = self.transcripts.get(id, "") + event["delta"]
            return
        self.transcripts.pop(id, None)
        if kind == "completed" and id in self.conversation:
            self.conversation.write_down(id, event["transcript"], keeps_audio=self.config.kind != "transcription")


def _apply_output(turn: RestoredTurn, type: str, event: Mapping[str, Any], conversation: Conversation | None) -> None:
    if type == "response.output_item.added":
        item_fields = event["item"]
        item = ConversationItem(item_fields["id"], item_fields["type"], item_fields.get("role", ""), "in_progress")
        item.call_id, item.name = item_fields.get("call_id", ""), item_fields.get("name", "")
        turn.items.append(item)
        if conversation is not None:
            conversation.insert_item(item)
        return
    if "output_index" not in event:
        return
    item = turn.items[event["output_index"]]
    if type == "response.content_part.added":
        item.parts.append(_begin_part(turn.config, event["part"]["type"]))
    elif type in ("response.output_text.delta", "response.output_audio_transcript.delta"):
        item.parts[0].text += event["delta"]
    elif type == "response.output_audio.delta":
        item.parts[0].audio += pybase64.b64decode(event["delta"])
    elif type == "response.function_call_arguments.delta":
        item.text += event["delta"]
    elif type == "response.output_item.done":
        item.status = event["item"]["status"]


def _begin_part(config: SessionConfig, type: str) -> ItemPart:
    if type == "audio":
        return ItemPart("output_audio", audio=bytearray(), format=config.output_format)
    return ItemPart("output_text", audio=bytearray())


def _copy_item(item: ConversationItem) -> ConversationItem:
    """Return a copy that does not change with ``item``."""
    return replace(item, parts=[replace(each) for each in item.parts])
