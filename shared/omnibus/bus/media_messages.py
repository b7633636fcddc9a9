"""Messages by which gateways find and read each other's files; only gateways use them."""

from typing import Any

import msgspec

from omnibus.bus.messages import decode_message
from omnibus.errors import ProblemDetails
from omnibus.graph import WIRE_VERSION
from omnibus.tensors.handle import Handle


class MediaQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query to all gateways for ``name`` of ``kind``. With ``remove``, they remove it."""

    gateway: str
    kind: str
    name: str
    remove: bool = False
    v: int = WIRE_VERSION


class MediaAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answer of one gateway to a query; ``nbytes`` is negative if it does not have that name.

    ``version`` changes when the name gets other bytes. ``about`` is metadata of the bytes, by kind.
    """

    gateway: str
    nbytes: int = -1
    version: str = ""
    about: dict[str, Any] = {}
    v: int = WIRE_VERSION


class MediaRead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request for ``nbytes`` of a gateway's file, from ``offset`` on."""

    kind: str
    name: str
    version: str
    offset: int
    nbytes: int
    v: int = WIRE_VERSION


class MediaPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requested bytes as a tensor to read once, or the problem."""

    handle: Handle | None = None
    problem: ProblemDetails | None = None
    v: int = WIRE_VERSION


_query = msgspec.json.Decoder(MediaQuery).decode
_answer = msgspec.json.Decoder(MediaAnswer).decode
_read = msgspec.json.Decoder(MediaRead).decode
_part = msgspec.json.Decoder(MediaPart).decode


def decode_query(body: bytes) -> MediaQuery:
    """Decode a media query. Each of these functions raises ``ProtocolError`` for another message."""
    return decode_message(_query, body, "media query")


def decode_answer(body: bytes) -> MediaAnswer:
    return decode_message(_answer, body, "media answer")


def decode_read(body: bytes) -> MediaRead:
    return decode_message(_read, body, "media read")


def decode_part(body: bytes) -> MediaPart:
    return decode_message(_part, body, "media part")
