"""App registry as data: records of registered apps. No I/O."""

from typing import Any

import msgspec

from omnibus.errors import ProtocolError
from omnibus.graph import UNREADABLE, WIRE_VERSION

#: Separates an app's name from a version that is not current, but whose own unit tasks run. No app's name contains it.
VERSION_SEPARATOR = "@"


def base_app_name(name: str) -> str:
    """Return the app's name of a record, without the version.

    Only records of versions that are not current have one.
    """
    return name.partition(VERSION_SEPARATOR)[0]


class TaskRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A unit task of an app.

    ``own`` tasks bring their engine. For them, ``cls`` is ``module:Class`` and ``fields`` are its non-default field
    values. ``root`` is the directory its module is imported from, empty when installed. ``service`` is the kind of
    service that hosts it. ``code`` is the SHA-256 of its module's source, which separates executors of different code.
    """

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
        """Return whether both are the same task, regardless of code."""
        return msgspec.structs.replace(self, code="") == msgspec.structs.replace(other, code="")


class AppSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Source of an app's code.

    Its kind is ``import`` (an installed module), ``directory`` (``module`` below ``root``) or ``upload`` (source text
    in the store under its SHA-256).
    """

    kind: str
    module: str
    root: str = ""
    sha256: str = ""


class AppModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts that an app declares about its model, for clients. Empty fields are unknown.

    ``context_length`` is in tokens of prompt and answer together, 0 if unknown.
    """

    input_modalities: tuple[str, ...] = ()
    output_modalities: tuple[str, ...] = ()
    voices: tuple[str, ...] = ()
    context_length: int = 0


class AppRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A registered app.

    ``route`` is ``chat`` if it serves chats under the name ``model``, and ``routes`` are further routes of
    ``omnibus.app.routes``. Without any, clients only call ``/v1/apps/<name>/invoke``. They cannot unless it is
    ``invocable``.
    ``request`` and ``response`` are JSON schemas, empty when untyped. With ``chat``, ``serve`` takes a ``ChatInput``,
    and clients send chat requests. Times are Unix seconds.
    """

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
    routes: tuple[str, ...] = ()
    about: AppModel = AppModel()
    invocable: bool = True
    v: int = WIRE_VERSION

    @property
    def all_routes(self) -> tuple[str, ...]:
        """All routes on which it serves ``model``."""
        return (self.route, *self.routes) if self.route else self.routes


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AppRecord).decode


def encode_app_record(record: AppRecord) -> bytes:
    return _encode(record)


def decode_app_record(body: bytes) -> AppRecord:
    """Decode a record. Raises ``ProtocolError`` unless it is an app of this version."""
    try:
        record = _decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"the stored app cannot be read ({error}): register it again") from error
    if record.v != WIRE_VERSION:
        raise ProtocolError(f"the stored app has version {record.v}, not {WIRE_VERSION}: register it again")
    return record
