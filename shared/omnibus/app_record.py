"""The app registry as data: what is known of a registered app. No I/O."""

from typing import Any

import msgspec

from omnibus.errors import ProtocolError
from omnibus.graph import UNREADABLE, WIRE_VERSION

#: Between an app's name and a version that is not current, but whose own unit tasks run: not yet, or not any more.
#: No app's name has it.
VERSION_SEPARATOR = "@"


def base_app_name(name: str) -> str:
    """The app's name of a record, without the version of one that is kept aside."""
    return name.partition(VERSION_SEPARATOR)[0]


class TaskRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A unit task of an app. ``own`` tasks bring their engine: ``cls`` is ``module:Class``, ``fields`` are
    its non-default field values, ``root`` is the directory its module is imported from, empty when installed.
    ``service`` is the kind of service that hosts it. ``code`` is the SHA-256 of its module's source: an executor
    of older code is another one."""

    name: str
    kind: str
    model: str
    component: str
    service: str
    own: bool
    cls: str
    fields: dict[str, Any] = {}
    root: str = ""
    code: str = ""

    def equals(self, other: "TaskRecord") -> bool:
        """Return whether both are the same task, perhaps of older code."""
        return msgspec.structs.replace(self, code="") == msgspec.structs.replace(other, code="")


class AppSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Source of an app's code: ``import`` (an installed module), ``directory`` (``module`` below
    ``root``) or ``upload`` (source text in the store under its SHA-256)."""

    kind: str
    module: str
    root: str = ""
    sha256: str = ""


class AppRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A registered app. ``route`` is the OpenAI route that it serves under the name ``model``, empty for
    ``/v1/apps/<name>/invoke`` alone; ``request`` and ``response`` are JSON schemas, empty when untyped.
    ``chat`` says that ``serve`` takes a ``ChatInput``: clients send chat requests. Times are Unix seconds."""

    name: str
    version: int
    source: AppSource
    route: str
    model: str
    tasks: tuple[TaskRecord, ...]
    request: dict[str, Any]
    response: dict[str, Any]
    streams: bool
    doc: str
    created: float
    updated: float
    state: str = "active"
    chat: bool = False
    v: int = WIRE_VERSION


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AppRecord).decode


def encode_app_record(record: AppRecord) -> bytes:
    return _encode(record)


def decode_app_record(body: bytes) -> AppRecord:
    """Raises ``ProtocolError`` when the document is no app of this version."""
    try:
        record = _decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"the stored app cannot be read: {error}; register it again") from error
    if record.v != WIRE_VERSION:
        raise ProtocolError(f"the stored app has version {record.v}, not {WIRE_VERSION}: register it again")
    return record
