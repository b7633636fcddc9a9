"""Streamed answers that another gateway can continue: the request, until its deadline."""

import asyncio
import logging
from array import array
from collections.abc import Mapping, Sequence

import msgspec

from omnibus.errors import ProtocolError
from omnibus.store.connection import StoreConnection

log = logging.getLogger(__name__)


class StreamRecord(msgspec.Struct, frozen=True):
    """A request, with all that a gateway needs to repeat its answer.

    ``body`` is the request as its client sent it, and ``path`` its pinned path. ``seed`` makes the answer reproducible.
    Chunks of the answer contain ``id``, ``audio_id`` and ``created``. Times are Unix seconds.
    """

    id: str
    audio_id: str
    created: int
    deadline: float
    seed: int
    body: bytes
    path: str = ""
    tenant: str = ""


#: Stored form of token ids: 4 bytes each.
_IDS = "I"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StreamRecord).decode


class StreamStore(StoreConnection):
    """Streamed answers by their clients' tokens, and the current sender of each."""

    async def put_stream(self, token: str, record: StreamRecord, owner: str, seconds: float) -> None:
        """Store ``record`` for ``seconds``; ``owner`` sends the answer."""
        await asyncio.gather(
            self._run_batched("set", self._stream_key(token), _encode(record), px=_to_milliseconds(seconds)),
            self.claim_stream(token, owner, seconds),
        )

    async def stream(self, token: str) -> StreamRecord | None:
        """Return a record, or None if it is unknown or has expired.

        Raises ``ProtocolError`` if it cannot be read.
        """
        body = await self._run_batched("get", self._stream_key(token))
        try:
            return _decode(body) if body is not None else None
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"a stored stream has a format that this version cannot read: {error}") from error

    async def put_stream_tokens(self, tokens: Mapping[str, tuple[Sequence[int], float]]) -> None:
        """Store answers' token ids by stream token, with seconds until expiry.

        Each call writes all ids of all answers, so that it also repairs a store that lost its data.
        """
        pipeline = self._redis.pipeline(transaction=False)
        for token, (ids, seconds) in tokens.items():
            pipeline.set(
                self._redis_key(f"stream:{token}:tokens"), array(_IDS, ids).tobytes(), px=_to_milliseconds(seconds)
            )
        await self._run_command(pipeline.execute())

    async def stream_tokens(self, token: str) -> tuple[int, ...]:
        """Return the stored ids of an answer; empty if there are none or they cannot be read."""
        body = await self._run_batched("get", self._redis_key(f"stream:{token}:tokens")) or b""
        ids = array(_IDS)
        if len(body) % ids.itemsize:
            return ()
        ids.frombytes(body)
        return tuple(ids)

    async def forget_stream(self, token: str, seconds: float) -> None:
        """Expire the answer after at most ``seconds``."""
        keys = (
            self._stream_key(token),
            self._redis_key(f"stream:{token}:owner"),
            self._redis_key(f"stream:{token}:tokens"),
        )
        await asyncio.gather(*(self._run_batched("pexpire", key, _to_milliseconds(seconds), lt=True) for key in keys))

    async def claim_stream(self, token: str, owner: str, seconds: float) -> str:
        """Make ``owner`` the sender of the answer and return the previous one.

        If several gateways claim it, the last one sends it.
        """
        key = self._redis_key(f"stream:{token}:owner")
        before = await self._run_batched("set", key, owner, px=_to_milliseconds(seconds), get=True)
        return before.decode() if before is not None else ""

    def _stream_key(self, token: str) -> str:
        return self._redis_key(f"stream:{token}")


def _to_milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
