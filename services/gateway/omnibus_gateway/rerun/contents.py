"""Contents of a recorded invocation's edges, as viewable or playable files."""

import asyncio
import json
from typing import Any, NamedTuple

import msgspec
import numpy as np

from omnibus.encoding.audio import encode_wav, to_pcm16
from omnibus.encoding.image import encode_image
from omnibus.errors import NotFound
from omnibus.recording import records
from omnibus.recording.records import Record
from omnibus.recording.steps import StepValue, build_steps
from omnibus_gateway.dispatch.retention import RecordedChunk, unpack_chunks
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.request.record import Records

TEXT, JSON, WAV, PNG = "text/plain; charset=utf-8", "application/json", "audio/wav", "image/png"
#: Most elements to show of a list in an output.
MAX_SHOWN_VALUES = 256


class EdgeContent(NamedTuple):
    """One value as a file of type ``mime``."""

    mime: str
    body: bytes


class EdgeContents:
    """Reads values of invocations from ``media``."""

    def __init__(self, log: Records, media: MediaStore) -> None:
        self._records = log
        self._media = media

    async def read_input(self, id: str, node: int, name: str) -> EdgeContent:
        """Read the input ``name`` of ``node``. Raises ``NotFound`` if it was not kept or does not exist."""
        value = _find_value(await self._find(id), node, name, outputs=False)
        if not value.mime:
            return EdgeContent(TEXT, value.text.encode())
        return EdgeContent(value.mime, await self._media.get(value.sha256))

    async def read_output(self, id: str, node: int, name: str) -> EdgeContent:
        """Read the output ``name`` of ``node``: text, image, audio, or else as JSON. Raises as ``read_input``."""
        record = await self._find(id)
        value = _find_value(record, node, name, outputs=True)
        if value.mime == WAV and record.ended is not None:
            pcm = await self._media.get(value.sha256)
            return EdgeContent(WAV, encode_wav(pcm, record.ended.answer.rate))
        if not value.mime:
            if value.text:
                return EdgeContent(TEXT, value.text.encode())
            raise NotFound(
                f"output {name!r} of node {node} was not kept: set OMNIBUS_GATEWAY_RECORD=stages for later requests"
            )
        pieces = unpack_chunks(await self._media.get(value.sha256))
        return await asyncio.to_thread(render_chunks, pieces)

    async def _find(self, id: str) -> Record:
        return await records.find_record(self._records.bus, id)


def render_chunks(pieces: list[RecordedChunk]) -> EdgeContent:
    """Return the chunks of an output as a suitable file. Takes milliseconds to seconds."""
    arrays = [piece.array for piece in pieces if piece.array is not None and piece.array.size]
    rate = next((piece.data["rate"] for piece in pieces if "rate" in piece.data), None)
    if arrays and isinstance(rate, int) and arrays[0].ndim == 1:
        return EdgeContent(WAV, encode_wav(to_pcm16(np.concatenate(arrays)), rate))
    if len(arrays) == 1 and _is_image(arrays[0]):
        return EdgeContent(PNG, encode_image(arrays[0], "png"))
    text = "".join(piece.data["text"] for piece in pieces if isinstance(piece.data.get("text"), str))
    if text and not arrays:
        return EdgeContent(TEXT, text.encode())
    return EdgeContent(JSON, msgspec.json.encode({"chunks": len(pieces), **_describe(pieces, arrays)}))


def _is_image(array: np.ndarray) -> bool:
    return array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3


def _describe(pieces: list[RecordedChunk], arrays: list[np.ndarray]) -> dict[str, Any]:
    """Return small data of all chunks, and facts about their arrays.

    These are shape, type and range.
    """
    data: dict[str, Any] = {}
    for piece in pieces:
        for key, value in piece.data.items():
            values = data.get(key, []) + value if isinstance(value, list) else value
            data[key] = values[:MAX_SHOWN_VALUES] if isinstance(values, list) else values
    facts: dict[str, Any] = {"data": json.loads(msgspec.json.encode(data))}
    if arrays:
        numbers = [array for array in arrays if np.issubdtype(array.dtype, np.number)]
        facts["dtype"] = arrays[0].dtype.name
        facts["shapes"] = [list(array.shape) for array in arrays[:MAX_SHOWN_VALUES]]
        if len(numbers) == len(arrays):
            facts["least"] = float(min(array.min() for array in numbers))
            facts["most"] = float(max(array.max() for array in numbers))
    return facts


def _find_value(record: Record, node: int, name: str, *, outputs: bool) -> StepValue:
    steps = build_steps(*record)
    if node < len(steps):
        for value in steps[node].outputs if outputs else steps[node].inputs:
            if value.name == name and not value.source:
                return value
    raise NotFound(f"node {node} of {record.invocation.id} has no {'output' if outputs else 'input'} {name[:40]!r}")
