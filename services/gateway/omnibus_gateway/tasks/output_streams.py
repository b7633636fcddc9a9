"""Fields of an answer as streams: results of executors directly, all other values through a task."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from omnibus.errors import Fatal, OmnibusError
from omnibus.task import Audio, ChatOutput, Result, TextChunk
from omnibus.task.item_codec import encode_item
from omnibus.task.result import STREAM
from omnibus.tensors.item import Item
from omnibus_gateway.dispatch.streams import ItemStream

_EXPECTED_PARTS = {"text": "text or `TextChunk`s", "audio": "float samples or `Audio`"}
#: Types of the parts of an answer's streams.
PARTS: dict[str, Any] = {"text": TextChunk, "audio": Audio}


def open_output_streams(output: ChatOutput) -> dict[str, ItemStream]:
    """Return the answer's streams by name, for ``merge_streams``."""
    outputs = {"text": output.text, "audio": output.audio}
    return {name: as_item_stream(name, value) for name, value in outputs.items() if value is not None}


def as_item_stream(name: str, value: Any) -> ItemStream:
    """Return ``value`` as a stream: a result, a stream of parts (text or samples), or one part.

    Raises ``StreamConsumed`` for a result that its task has already read.
    """
    if isinstance(value, ItemStream):
        return value
    if type(value) is Result and not value.is_transformed and value.element is PARTS[name]:
        source = value.claim_source()
        if isinstance(source, ItemStream):
            return source
    return IteratorStream(name, value)


class IteratorStream(ItemStream):
    """Stream of parts that a task reads from a value until ``stop``."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__()
        self._task = asyncio.get_running_loop().create_task(self._read_value(name, value))

    def stop(self) -> None:
        self._task.cancel()

    async def _read_value(self, name: str, value: Any) -> None:
        try:
            async for part in _iterate_parts(value):
                self.add_item(_to_item(name, part))
                self.wake_reader()
            self.end()
        except OmnibusError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 a model's own code: its failure fails the answer
            self.fail(Fatal(f"the answer's {name} failed ({type(error).__name__}) while it was generated"))


async def _iterate_parts(value: Any) -> AsyncIterator[Any]:
    if type(value) is Result and value.kind != STREAM:
        value = await value
    if hasattr(value, "__aiter__"):
        async for part in value:
            yield part
    else:
        yield value


def _to_item(name: str, part: Any) -> Item:
    """Encode a part: str or ``TextChunk``, samples or ``Audio``."""
    if name == "text" and isinstance(part, str):
        return Item({"text": part})
    if name == "audio" and isinstance(part, np.ndarray):
        return Item({"rate": Audio().rate}, np.asarray(part, np.float32))
    if isinstance(part, Item):
        return part
    if not isinstance(part, PARTS[name]):
        raise Fatal(f"the answer's {name} holds a {type(part).__name__}: it must be {_EXPECTED_PARTS[name]}")
    return encode_item(part)
