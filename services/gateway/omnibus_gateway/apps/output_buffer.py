"""Outputs between a worker and its client, in both directions.

The worker reads outputs of nodes, and the client reads outputs of the worker.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from omnibus.errors import AppFailed, OmnibusError, ProtocolError
from omnibus.graph import UNREADABLE
from omnibus.task import Source
from omnibus.tensors.item import Item
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


_KINDS: dict[str, type[msgspec.Struct]] = {"text": _TextItem, "audio": _AudioItem}


class AppOutputStream(ItemStream):
    """Output of a chat that the app makes itself. ``took`` is called with the bytes read."""

    def __init__(self, app: str, name: str, took: Callable[[int], None]) -> None:
        super().__init__()
        self._app = app
        self._name = name
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
            msgspec.convert(item.data, _KINDS[self._name])
        except msgspec.ValidationError as error:
            raise AppFailed(f"the app {self._app} returned invalid {self._name}: {error}") from error
        sound = item.array is not None and item.array.ndim == 1 and item.array.dtype == np.float32
        if sound != (self._name == "audio") or (item.array is not None and not sound):
            raise AppFailed(
                f"the app {self._app} returned invalid {self._name}: "
                "audio must have a float32 array [n], and text must have none"
            )


def output_names(body: bytes) -> list[str]:
    """Return the outputs that the answer of a chat names. Raises ``ProtocolError``."""
    try:
        names = msgspec.json.decode(body, type=list[str])
    except UNREADABLE as error:
        raise ProtocolError(f"a chat's answer names no outputs: {error}") from error
    if len(set(names)) != len(names) or not set(names) <= _KINDS.keys():
        raise ProtocolError(f"a chat's answer must name {', '.join(_KINDS)}, not {', '.join(names)[:80]!r}")
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
