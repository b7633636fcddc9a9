"""Messages by which gateways find and read each other's files; nobody else sends or gets them."""

from typing import Any

import msgspec

from omnibus.bus.messages import decode_message
from omnibus.errors import ProblemDetails
from omnibus.graph import WIRE_VERSION
from omnibus.tensors.handle import Handle


class MediaQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Question to all gateways: who has ``name`` of ``kind``. With ``remove`` it is removed there."""

    gateway: str
    kind: str
    name: str
    remove: bool = False
    v: int = WIRE_VERSION


class MediaAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answer of one gateway to a query: ``nbytes`` is negative where it has nothing of that name.

    ``version`` changes when other bytes take the name. ``about`` is what belongs to the bytes, by the kind.
    """

    gateway: str
    nbytes: int = -1
    version: str = ""
    about: dict[str, Any] = {}
    v: int = WIRE_VERSION


class MediaRead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for ``nbytes`` of what a gateway has said it has, from ``offset`` on."""

    kind: str
    name: str
    version: str
    offset: int
    nbytes: int
    v: int = WIRE_VERSION


class MediaPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bytes that were requested, as a tensor to read once, or why there are none."""

    handle: Handle | None = None
    problem: ProblemDetails | None = None
    v: int = WIRE_VERSION


_query = msgspec.json.Decoder(MediaQuery).decode
_answer = msgspec.json.Decoder(MediaAnswer).decode
_read = msgspec.json.Decoder(MediaRead).decode
_part = msgspec.json.Decoder(MediaPart).decode


def decode_query(body: bytes) -> MediaQuery:
    """Each of these raises ``ProtocolError`` for what is not its message."""
    return decode_message(_query, body, "media query")


def decode_answer(body: bytes) -> MediaAnswer:
    return decode_message(_answer, body, "media answer")


def decode_read(body: bytes) -> MediaRead:
    return decode_message(_read, body, "media read")


def decode_part(body: bytes) -> MediaPart:
    return decode_message(_part, body, "media part")
