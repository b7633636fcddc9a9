"""Logs of realtime sessions: all their events, for a gateway that resumes one and for people.

Each line of the log is a list of entries that belong together: either all are valid or none. It is on the bus before a
client gets its events.
"""

from typing import Any

import msgspec

from omnibus.bus import Bus, subjects
from omnibus.errors import NotFound, ProtocolError
from omnibus.recording.line_log import LineAssembler, read_lines


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
