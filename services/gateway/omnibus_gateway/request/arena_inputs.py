"""Inputs too large for the bus: put into the arena once, and stored by hash for replay."""

import time
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from omnibus.errors import ProtocolError
from omnibus.graph import HANDLE
from omnibus.metrics import TRANSFER
from omnibus.tensors.client import TensorClient
from omnibus.tensors.item import Item
from omnibus_gateway.dispatch.dispatcher import MAX_ATTEMPTS
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.routing.affinity import BEGINNING

#: Seconds that inputs outlive the deadline.
DEADLINE_GRACE_SECONDS = 10.0
#: Reads of an input that several segments may use; its memory is freed when the request ends.
MAX_READERS = 60_000
#: Bytes of the beginning of an audio file, after the WAV header, which has its length: 1.4 s of a microphone.
BEGINNING_BYTES, HEADER_BYTES = 1 << 16, 44


async def place_input(
    tensors: TensorClient,
    keep: MediaStore | None,
    data: bytes,
    about: tuple[str, str, str],
    invocation: str,
    deadline: float,
    readers: int = MAX_ATTEMPTS + 1,
    salt: str = "",
) -> dict[str, Any]:
    """Put one input into the arena for every attempt of ``invocation``; returns its literal.

    ``about`` is its modality, mime type and SHA-256. Results computed from it are shared under one ``salt``.
    """
    modality, mime, digest = about
    began = time.perf_counter()
    handle = await tensors.put(
        np.frombuffer(data, np.uint8),
        invocation=invocation,
        deadline=deadline + DEADLINE_GRACE_SECONDS,
        readers=readers,
    )
    TRANSFER.count_transfer("gateway", "media", len(data), time.perf_counter() - began)
    if keep is not None:
        keep.put_nowait(digest, data)
    literal = {"modality": modality, "mime": mime, "sha256": digest, "nbytes": len(data)}
    if modality == "audio" and len(data) >= HEADER_BYTES + BEGINNING_BYTES:
        literal[BEGINNING] = sha256(memoryview(data)[HEADER_BYTES:][:BEGINNING_BYTES]).hexdigest()[:16]
    return {HANDLE: msgspec.to_builtins(handle), **literal, **({"salt": salt} if salt else {})}


class TensorPlacer:
    """Puts tensors of earlier segments into the arena again, for ``invocation``."""

    def __init__(self, tensors: TensorClient, keep: MediaStore | None, invocation: str, deadline: float) -> None:
        self._tensors = tensors
        self._keep = keep
        self._invocation = invocation
        self._deadline = deadline

    async def put(self, item: Item, nodes: int) -> dict[str, Any]:
        """Return the literal of a tensor that ``nodes`` inputs read per attempt."""
        array = np.ascontiguousarray(item.array)
        handle = await self._tensors.put(
            array,
            invocation=self._invocation,
            deadline=self._deadline + DEADLINE_GRACE_SECONDS,
            readers=min(nodes * (MAX_ATTEMPTS + 1), MAX_READERS),
        )
        body = array.tobytes()
        digest = sha256(body).hexdigest()
        if self._keep is not None:
            self._keep.put_nowait(digest, body)
        about = {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": digest, "nbytes": len(body)}
        return {**item.data, HANDLE: msgspec.to_builtins(handle), **about}


async def restore_input(
    tensors: TensorClient,
    keep: MediaStore,
    value: dict[str, Any],
    invocation: str,
    deadline: float,
    readers: int = MAX_ATTEMPTS + 1,
) -> dict[str, Any]:
    """Put an input, recorded by its hash, at a new handle.

    Raises ``NotFound``, and ``ProtocolError`` for a tensor that does not match its record.
    """
    data = await keep.get(str(value.get("sha256", "")))
    array = np.frombuffer(data, np.uint8)
    if "dtype" in value:
        try:
            array = array.view(str(value["dtype"])).reshape(value["shape"])
        except (KeyError, TypeError, ValueError) as error:
            description = f"{str(value['dtype'])[:40]} {str(value.get('shape'))[:80]}"
            raise ProtocolError(f"a recorded tensor cannot be {description}: {error}") from error
    handle = await tensors.put(
        array, invocation=invocation, deadline=deadline + DEADLINE_GRACE_SECONDS, readers=readers
    )
    return {**value, HANDLE: msgspec.to_builtins(handle)}
