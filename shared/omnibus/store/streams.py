"""Streamed answers that another gateway can continue: the request as it came, until its deadline."""

import asyncio
import logging
from array import array
from collections.abc import Mapping, Sequence

import msgspec

from omnibus.errors import ProtocolError
from omnibus.store.connection import StoreConnection

log = logging.getLogger(__name__)


class StreamRecord(msgspec.Struct, frozen=True):
    """A request, and all else that a gateway needs to make its streamed answer once more.

    ``body`` is the request as its client sent it and ``path`` the path that it is pinned to; ``seed`` makes the answer
    the same. ``id``, ``audio_id`` and ``created`` are what chunks say of the answer; times are Unix seconds.
    """

    id: str
    audio_id: str
    created: int
    deadline: float
    seed: int
    body: bytes
    path: str = ""
    tenant: str = ""


#: Ids of tokens as they are kept: 4 bytes each.
_IDS = "I"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StreamRecord).decode


class StreamStore(StoreConnection):
    """Streamed answers by the token that their clients hold, and who sends each of them now."""

    async def put_stream(self, token: str, record: StreamRecord, owner: str, seconds: float) -> None:
        """Keep ``record`` for ``seconds``; ``owner`` sends the answer."""
        await asyncio.gather(
            self._run_batched("set", self._stream_key(token), _encode(record), px=_to_milliseconds(seconds)),
            self.claim_stream(token, owner, seconds),
        )

    async def stream(self, token: str) -> StreamRecord | None:
        """None when it was never kept, or long enough. Raises ``ProtocolError`` for one that cannot be read."""
        body = await self._run_batched("get", self._stream_key(token))
        try:
            return _decode(body) if body is not None else None
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"a stored stream has a format that this version cannot read: {error}") from error

    async def put_stream_tokens(self, tokens: Mapping[str, tuple[Sequence[int], float]]) -> None:
        """Keep the ids of all tokens that answers have so far, by the answers' tokens: ids, and for how many seconds.

        All of them travel together, whole each time: a store that lost what it had is right again after the next call.
        """
        pipeline = self._redis.pipeline(transaction=False)
        for token, (ids, seconds) in tokens.items():
            pipeline.set(
                self._redis_key(f"stream:{token}:tokens"), array(_IDS, ids).tobytes(), px=_to_milliseconds(seconds)
            )
        await self._run_command(pipeline.execute())

    async def stream_tokens(self, token: str) -> tuple[int, ...]:
        """The ids that were kept of an answer; none when there are none, or they cannot be read."""
        body = await self._run_batched("get", self._redis_key(f"stream:{token}:tokens")) or b""
        ids = array(_IDS)
        if len(body) % ids.itemsize:
            return ()
        ids.frombytes(body)
        return tuple(ids)

    async def forget_stream(self, token: str, seconds: float) -> None:
        """Keep the answer for no more than ``seconds`` from now on."""
        keys = (
            self._stream_key(token),
            self._redis_key(f"stream:{token}:owner"),
            self._redis_key(f"stream:{token}:tokens"),
        )
        await asyncio.gather(*(self._run_batched("pexpire", key, _to_milliseconds(seconds), lt=True) for key in keys))

    async def claim_stream(self, token: str, owner: str, seconds: float) -> str:
        """Make ``owner`` the sender of the answer; returns the one before. Of several, the last one has it."""
        key = self._redis_key(f"stream:{token}:owner")
        before = await self._run_batched("set", key, owner, px=_to_milliseconds(seconds), get=True)
        return before.decode() if before is not None else ""

    def _stream_key(self, token: str) -> str:
        return self._redis_key(f"stream:{token}")


def _to_milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
