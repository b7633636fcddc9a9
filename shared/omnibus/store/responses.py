"""Stored responses, which any gateway gives back or goes on with, and conversations that several of them belong to.

A response is written down when its making begins. Whoever makes it is its holder; it has one end, its final body. One
that is made in the background is ``open`` until then, so that another gateway takes it up when its holder is gone.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from omnibus.errors import ProtocolError
from omnibus.graph import UNREADABLE
from omnibus.store.connection import StoreConnection

log = logging.getLogger(__name__)

_OPEN_KEY = "responses:open"


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a response, and all else that a gateway needs to make it, or to make it once more.

    ``request`` is the body as its client sent it, ``seed`` makes the answer the same, and ``path`` is the one that it
    is pinned to. ``input`` are its own items as JSON; what was said before is in ``previous``, another response, or in
    ``conversation``. Times are Unix seconds. The events of one that is ``logged`` are kept in JetStream. ``images`` is
    how many its limit of cost leaves room for, and ``image_path`` the one that they take; -1 without a limit.
    """

    id: str
    model: str
    created: float
    deadline: float
    seed: int
    request: bytes
    input: bytes
    path: str = ""
    tenant: str = ""
    weight: float = 1.0
    previous: str = ""
    conversation: str = ""
    background: bool = False
    logged: bool = False
    images: int = -1
    image_path: str = ""


class StoredResponse(NamedTuple):
    """A response in the store: ``holder`` is the gateway that makes it, ``final`` its body once it has ended."""

    record: ResponseRecord
    holder: str
    final: bytes
    attempt: int


class ConversationRecord(msgspec.Struct, frozen=True):
    """A conversation. ``metadata`` is its client's own; ``created`` in Unix seconds."""

    id: str
    created: float
    metadata: dict[str, str] = {}
    tenant: str = ""


class ItemPage(NamedTuple):
    """Items as JSON, by their ids in order, and whether there are more behind them."""

    items: dict[str, bytes]
    more: bool


_encode = msgspec.json.Encoder().encode
_decode_response = msgspec.json.Decoder(ResponseRecord).decode
_decode_conversation = msgspec.json.Decoder(ConversationRecord).decode


class ResponseStore(StoreConnection):
    """Stored responses and conversations by their ids."""

    async def put_response(self, record: ResponseRecord, holder: str, final: bytes, seconds: float, most: int) -> None:
        """Keep a response for ``seconds``. Of those of its tenant only the newest, ``most`` at most, are kept."""
        key, listed = self._response_key(record.id), self._redis_key(f"responses:of:{record.tenant}")
        fields: dict[str, bytes | str] = {"record": _encode(record), "holder": holder}
        commands = self._redis.pipeline(transaction=True)
        commands.hset(key, mapping={**fields, "final": final} if final else fields)
        commands.pexpire(key, _to_milliseconds(seconds))
        if record.background and not final:
            commands.zadd(self._redis_key(_OPEN_KEY), {record.id: record.created})
        commands.zadd(listed, {record.id: record.created})
        commands.pexpire(listed, _to_milliseconds(seconds))
        commands.zrange(listed, 0, -(most + 1))
        old = (await self._run_command(commands.execute()))[-1]
        if old:
            names = [id.decode() for id in old]
            await self._run_command(self._redis.delete(*map(self._response_key, names)))
            await self._run_command(self._redis.zrem(listed, *old))

    async def response(self, id: str) -> StoredResponse | None:
        """None when there is none, or no more. Raises ``ProtocolError`` for one that this build cannot read."""
        found = await self._run_command(self._redis.hmget(self._response_key(id), _RESPONSE_FIELDS))
        body, holder, final, attempt = found
        if body is None:
            return None
        try:
            record = _decode_response(body)
        except UNREADABLE as error:
            raise ProtocolError(f"{id} was written down by another build: {error}") from error
        return StoredResponse(record, (holder or b"").decode(), bytes(final or b""), int(attempt or 0))

    async def claim_response(self, id: str, holder: str, before: str) -> int:
        """Make ``holder`` the one that makes a response, if ``before`` is; returns how many claims there were.

        0: somebody else makes it, or it has ended.
        """
        return int(await self._run_function("omnibus_claim_response", (f"response:{id}",), holder, before))

    async def end_response(self, id: str, holder: str, final: bytes, seconds: float) -> bool:
        """Give a response its one end, and keep it for ``seconds``; False when ``holder`` does not hold it.

        Without a ``holder`` it ends whoever makes it.
        """
        keys = (f"response:{id}", _OPEN_KEY)
        told = (holder, final.decode(), str(_to_milliseconds(seconds)), id)
        return bool(await self._run_function("omnibus_end_response", keys, *told))

    async def drop_response(self, record: ResponseRecord) -> bool:
        """Forget a response; False when there is none."""
        commands = self._redis.pipeline(transaction=True)
        commands.delete(self._response_key(record.id))
        commands.zrem(self._redis_key(_OPEN_KEY), record.id)
        commands.zrem(self._redis_key(f"responses:of:{record.tenant}"), record.id)
        return bool((await self._run_command(commands.execute()))[0])

    async def open_responses(self, limit: int) -> dict[str, StoredResponse]:
        """The oldest responses that are made in the background and have not ended, by id."""
        ids = await self._run_command(self._redis.zrange(self._redis_key(_OPEN_KEY), 0, limit - 1))
        found: dict[str, StoredResponse] = {}
        for id in (each.decode() for each in ids):
            try:
                stored = await self.response(id)
            except ProtocolError as error:
                log.error("left out: %s", error)
                continue
            if stored is None or stored.final:
                await self._run_command(self._redis.zrem(self._redis_key(_OPEN_KEY), id))
            else:
                found[id] = stored
        return found

    async def count_open_responses(self) -> int:
        """Responses that are made in the background and have not ended."""
        return int(await self._run_command(self._redis.zcard(self._redis_key(_OPEN_KEY))))

    # Conversations

    async def put_conversation(self, record: ConversationRecord, seconds: float, most: int) -> None:
        """Keep a conversation, or what is new of it. Of those of its tenant only the newest ``most`` are kept."""
        key, listed = self._conversation_key(record.id), self._redis_key(f"conversations:of:{record.tenant}")
        commands = self._redis.pipeline(transaction=True)
        commands.hset(key, "record", _encode(record))
        commands.pexpire(key, _to_milliseconds(seconds))
        commands.zadd(listed, {record.id: record.created})
        commands.pexpire(listed, _to_milliseconds(seconds))
        commands.zrange(listed, 0, -(most + 1))
        old = (await self._run_command(commands.execute()))[-1]
        for id in (each.decode() for each in old):
            await self._run_command(self._redis.delete(*self._conversation_keys(id)))
        if old:
            await self._run_command(self._redis.zrem(listed, *old))

    async def conversation(self, id: str) -> ConversationRecord | None:
        """None when there is none, or no more. Raises ``ProtocolError`` for one that this build cannot read."""
        body = await self._run_command(self._redis.hget(self._conversation_key(id), "record"))
        try:
            return _decode_conversation(body) if body is not None else None
        except UNREADABLE as error:
            raise ProtocolError(f"{id} was written down by another build: {error}") from error

    async def drop_conversation(self, record: ConversationRecord) -> bool:
        """Forget a conversation and its items; False when there is none."""
        gone = await self._run_command(self._redis.delete(*self._conversation_keys(record.id)))
        await self._run_command(self._redis.zrem(self._redis_key(f"conversations:of:{record.tenant}"), record.id))
        return bool(gone)

    async def extend_conversation(self, id: str, items: dict[str, bytes], seconds: float, most: int) -> int:
        """Append ``items``, JSON by id; returns how many there are then. 0: no such conversation, -1: over ``most``."""
        told = [each for item, body in items.items() for each in (item, body.decode())]
        keys = (f"conversation:{id}", f"conversation:{id}:items", f"conversation:{id}:order")
        return int(
            await self._run_function(
                "omnibus_extend_conversation", keys, str(_to_milliseconds(seconds)), str(most), *told
            )
        )

    async def conversation_items(self, id: str, limit: int, after: str = "", newest: bool = False) -> ItemPage | None:
        """At most ``limit`` items behind ``after``, oldest or ``newest`` first; None if that one is not there."""
        _, bodies, order = self._conversation_keys(id)
        begin = 0
        if after:
            rank = self._redis.zrevrank(order, after) if newest else self._redis.zrank(order, after)
            found = await self._run_command(rank)
            if found is None:
                return None
            begin = int(found) + 1
        ids = await self._run_command(self._redis.zrange(order, begin, begin + limit, desc=newest))
        values = await self._run_command(self._redis.hmget(bodies, ids)) if ids else []
        pairs = [(item.decode(), bytes(body)) for item, body in zip(ids, values, strict=True) if body is not None]
        return ItemPage(dict(pairs[:limit]), len(ids) > limit)

    async def conversation_item(self, id: str, item: str) -> bytes | None:
        """One item as JSON; None when there is none."""
        found = await self._run_command(self._redis.hget(self._conversation_keys(id)[1], item))
        return bytes(found) if found is not None else None

    async def drop_conversation_items(self, id: str, items: Sequence[str]) -> int:
        """Forget items of a conversation; returns how many there were."""
        _, bodies, order = self._conversation_keys(id)
        await self._run_command(self._redis.zrem(order, *items))
        return int(await self._run_command(self._redis.hdel(bodies, *items)))

    def _response_key(self, id: str) -> str:
        return self._redis_key(f"response:{id}")

    def _conversation_key(self, id: str) -> str:
        return self._redis_key(f"conversation:{id}")

    def _conversation_keys(self, id: str) -> tuple[str, str, str]:
        """Keys of a conversation: itself, its items by id, and the order of their ids."""
        key = self._conversation_key(id)
        return key, f"{key}:items", f"{key}:order"


_RESPONSE_FIELDS = ["record", "holder", "final", "attempt"]


def _to_milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
