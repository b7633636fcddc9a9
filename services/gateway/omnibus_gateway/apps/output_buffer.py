"""Outputs between a worker and its client, in both directions.

The worker reads outputs of nodes, and the client reads outputs of the worker.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from omnibus.app.protocol import CHAT
from omnibus.app.routes import EMBEDDINGS, SPEECH, TRANSCRIPTIONS
from omnibus.errors import AppFailed, OmnibusError, ProtocolError
from omnibus.graph import UNREADABLE
from omnibus.task import Source
from omnibus.task.library import TranscriptSegment, TranscriptWord
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.streams import ItemStream

#: Maximum bytes of arrays in one message to a worker; a larger array gets its own message.
MAX_BATCH_BYTES = 16 << 20


class WorkerOutputReader:
    """Output of a node: the worker reads it, or passes it to the client unread."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.begun = False  # the worker has begun to read it
        self.busy = False  # the worker waits for it
        self._rest: list[Item] = []

    @property
    def is_exhausted(self) -> bool:
        """True if the worker has certainly read everything."""
        return not self._rest and isinstance(self.source, ItemStream) and self.source.is_exhausted

    async def next_items(self) -> list[Item]:
        """Return the next items for one message; empty after the last. Raises the error of the output."""
        items, self._rest = self._rest or await self.source.next_items(), []
        nbytes = 0
        for index, item in enumerate(items):
            nbytes += item.array.nbytes if item.array is not None else 0
            if nbytes > MAX_BATCH_BYTES and index:
                self._rest = items[index:]
                return items[:index]
        return items


class _TextItem(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    ids: list[int] = []
    reasoning: str = ""
    calls: str = ""
    logprobs: dict[str, Any] = {}
    finish_reason: Literal["", "stop", "length", "content_filter", "tool_calls", "function_call"] = ""
    usage: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}


class _AudioItem(msgspec.Struct, forbid_unknown_fields=True):
    rate: Annotated[int, msgspec.Meta(ge=1000, le=768_000)]


class _TranscriptItem(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    segments: list[TranscriptSegment] = []
    words: list[TranscriptWord] = []
    language: str = ""
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    finish_reason: Literal["", "stop", "length"] = ""
    usage: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}


class _NumberItem(msgspec.Struct, forbid_unknown_fields=True):
    value: Annotated[int, msgspec.Meta(ge=0)]


class _BareItem(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _OutputKind(NamedTuple):
    """Items of an output: the type of their data, and the dimensions of their float32 array, 0 without one."""

    data: type[msgspec.Struct]
    dimensions: int = 0


_AUDIO = _OutputKind(_AudioItem, 1)
#: Outputs by kind of request.
_KINDS: dict[str, dict[str, _OutputKind]] = {
    CHAT: {"text": _OutputKind(_TextItem), "audio": _AUDIO},
    TRANSCRIPTIONS: {"text": _OutputKind(_TranscriptItem)},
    SPEECH: {"audio": _AUDIO},
    EMBEDDINGS: {"embedding": _OutputKind(_BareItem, 2), "tokens": _OutputKind(_NumberItem)},
}


class AppOutputStream(ItemStream):
    """Output of a request of ``kind`` that the app makes itself. ``took`` is called with the bytes read."""

    def __init__(self, app: str, kind: str, name: str, took: Callable[[int], None]) -> None:
        super().__init__()
        self._app = app
        self._name = name
        self._kind = _KINDS[kind][name]
        self._took = took
        self._nbytes = 0

    def add_items(self, items: list[Item], nbytes: int) -> None:
        """Add the items of one message. Invalid items make the output fail."""
        self._nbytes += nbytes
        try:
            for item in items:
                self._check_item(item)
                self.add_item(item)
        except OmnibusError as error:
            self.fail(error)
        self.wake_reader()

    def take_ready(self) -> list[Item]:
        items = super().take_ready()
        nbytes, self._nbytes = self._nbytes, 0
        if nbytes:
            self._took(nbytes)
        return items

    def _check_item(self, item: Item) -> None:
        try:
            msgspec.convert(item.data, self._kind.data)
        except msgspec.ValidationError as error:
            raise AppFailed(f"the app {self._app} returned invalid {self._name}: {error}") from error
        dimensions, array = self._kind.dimensions, item.array
        if (array.ndim if array is not None else 0) != dimensions or (array is not None and array.dtype != np.float32):
            expected = f"a float32 array of {dimensions} dimensions" if dimensions else "no array"
            raise AppFailed(f"the app {self._app} returned invalid {self._name}: it must have {expected}")


def output_names(kind: str, body: bytes) -> list[str]:
    """Return the outputs that the answer to a request of ``kind`` names. Raises ``ProtocolError``."""
    try:
        names = msgspec.json.decode(body, type=list[str])
    except UNREADABLE as error:
        raise ProtocolError(f"the answer of {kind} names no outputs: {error}") from error
    if len(set(names)) != len(names) or not set(names) <= _KINDS[kind].keys():
        raise ProtocolError(f"the answer of {kind} must name {', '.join(_KINDS[kind])}, not {', '.join(names)[:80]!r}")
    return names


def check_json_line(body: bytes) -> bytes:
    """Return ``body`` if it is JSON on one line. Raises ``ProtocolError``."""
    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
    except UNREADABLE as error:
        raise ProtocolError(f"the answer is not valid JSON: {error}") from error
    if b"\n" in body or b"\r" in body:
        raise ProtocolError("an answer has several lines: it would break the stream that carries it")
    return body
