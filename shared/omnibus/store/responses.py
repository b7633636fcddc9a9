"""Stored responses, and conversations of several responses, for all gateways.

A gateway stores a response when it begins to generate it, as its holder. A response ends once, with its final body. A
background response is ``open`` until then, so that another gateway resumes it if its holder fails.

Accounts of tenants in the store: one step checks a limit and updates the account.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from omnibus.errors import LimitReached, OmnibusError, Overloaded, ProtocolError, TooLarge
from omnibus.graph import UNREADABLE
from omnibus.store.connection import FunctionRefused, StoreConnection

#: Bytes that each document counts in addition to its own: names, expiry times and the server's index entries.
OVERHEAD_BYTES = 256
#: Seconds until a client may retry that was rejected because too many responses are in progress.
_RETRY_AFTER_SECONDS = 10.0


class TenantAccount(NamedTuple):
    """Account of the tenant ``name``, with a limit of ``bytes`` (0: none)."""

    name: str = ""
    bytes: int = 0


class AccountTotal(NamedTuple):
    """Number of members of one kind, and bytes of all members."""

    members: int
    bytes: int


NO_LIMIT = TenantAccount()


class AccountStore(StoreConnection):
    """Accounts of tenants. A member is ``<kind>:<id>``."""

    async def reserve(
        self, account: TenantAccount, member: str, nbytes: int, seconds: float, most: int = 0
    ) -> AccountTotal:
        """Reserve ``nbytes`` for ``member`` until its release, or for ``seconds``.

        At most ``most`` members of its kind may be reserved. Raises ``LimitReached``, and ``Overloaded`` if ``most`` is
        reached.
        """
        arguments = (member, str(nbytes), milliseconds_text(seconds), str(most), str(account.bytes))
        try:
            reply = await self._run_known_function("omnibus_reserve", account_keys(account.name), *arguments)
        except FunctionRefused as error:
            raise limit_error(error, account, member.partition(":")[0]) from error
        return AccountTotal(int(reply[0]), int(reply[1]))

    async def release(self, account: str, *members: str) -> int:
        """Release ``members`` of the account ``account``; return how many it had."""
        return int(await self._run_known_function("omnibus_release", account_keys(account), *members))


def account_keys(tenant: str) -> tuple[str, str]:
    """Return the keys of an account: its members by expiry time, and their bytes."""
    return f"held:{tenant}", f"held:{tenant}:bytes"


def milliseconds_text(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def limit_error(error: FunctionRefused, account: TenantAccount, kind: str) -> OmnibusError:
    """Return the client's error for the limit named by the server."""
    if error.what == "bytes":
        return LimitReached(
            f"your stored data would exceed {account.bytes} bytes (OMNIBUS_GATEWAY_TENANT_BYTES): delete responses, "
            "conversations or jobs, or wait until they expire"
        )
    if error.what in ("open", "tenant_open"):
        yours = " of your" if error.what == "tenant_open" else ""
        return Overloaded(
            f"too many{yours} background responses are in progress: wait for one to end, or cancel one",
            retry_after=_RETRY_AFTER_SECONDS,
            reason="background",
        )
    return Overloaded(
        f"too many of your {kind} entries are stored: wait until one expires",
        retry_after=_RETRY_AFTER_SECONDS,
        reason=kind,
    )


log = logging.getLogger(__name__)

_OPEN_KEY = "responses:open"


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a response, with all that its generation needs.

    ``request`` is the body as its client sent it, ``seed`` makes the answer reproducible, and ``path`` is its pinned
    path. ``input`` has its own items as JSON. Earlier items are in ``previous``, another response, or in
    ``conversation``. Times are Unix seconds. JetStream keeps the events of a ``logged`` response. ``images`` is the
    number of images that its cost limit allows, and ``image_path`` their path; -1 without a limit. ``key`` is the
    SHA-256 of the request's API key. It is empty without keys, and in records of builds without it.
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
    key: str = ""


class StoredResponse(NamedTuple):
    """A stored response. ``holder`` is the gateway that generates it, ``final`` its final body."""

    record: ResponseRecord
    holder: str
    final: bytes
    attempt: int


class ConversationRecord(msgspec.Struct, frozen=True):
    """A conversation. ``metadata`` is the client's; ``created`` is in Unix seconds."""

    id: str
    created: float
    metadata: dict[str, str] = {}
    tenant: str = ""


class BackgroundPlaces(NamedTuple):
    """Limits on concurrent background responses: of all tenants, and of one."""

    all: int
    tenant: int


class ConversationLimits(NamedTuple):
    """Limits on the items of one conversation, and on their bytes."""

    items: int
    bytes: int


NO_PLACES = BackgroundPlaces(1 << 30, 1 << 30)


class ItemPage(NamedTuple):
    """Items as JSON, by their ids in order, and whether more follow."""

    items: dict[str, bytes]
    more: bool


_encode = msgspec.json.Encoder().encode
_decode_response = msgspec.json.Decoder(ResponseRecord).decode
_decode_conversation = msgspec.json.Decoder(ConversationRecord).decode


class ResponseStore(StoreConnection):
    """Stored responses and conversations by their ids."""

    async def put_response(
        self,
        record: ResponseRecord,
        holder: str,
        final: bytes,
        seconds: float,
        most: int,
        account: TenantAccount = NO_LIMIT,
        places: BackgroundPlaces = NO_PLACES,
    ) -> None:
        """Store a response for ``seconds``, with only the tenant's ``most`` newest ones.

        If the bytes of ``account`` are used up, the tenant's oldest ended responses are evicted. Raises
        ``LimitReached`` if that does not suffice, and ``Overloaded`` if all ``places`` are taken.
        """
        arguments = (
            record.id, record.tenant, _encode(record), holder, final, milliseconds_text(seconds), str(record.created),
            str(most), "1" if record.background else "", str(places.all), str(places.tenant), str(account.bytes),
            str(OVERHEAD_BYTES),
        )  # fmt: skip
        try:
            await self._run_function("omnibus_store_response", _response_keys(record), *arguments)
        except FunctionRefused as error:
            raise limit_error(error, account, "response") from error

    async def response(self, id: str) -> StoredResponse | None:
        """Return a response: None if it does not exist or has expired.

        Raises ``ProtocolError`` if this build cannot read it.
        """
        values = await self._run_command(self._redis.hmget(self._response_key(id), _RESPONSE_FIELDS))
        body, holder, final, attempt = values
        if body is None:
            return None
        try:
            record = _decode_response(body)
        except UNREADABLE as error:
            raise ProtocolError(f"{id} was written down by another build: {error}") from error
        return StoredResponse(record, (holder or b"").decode(), bytes(final or b""), int(attempt or 0))

    async def claim_response(self, id: str, holder: str, before: str) -> int:
        """Make ``holder`` the holder if ``before`` holds the response; return the number of claims.

        Returns 0 if another gateway holds it, or it has ended.
        """
        return int(await self._run_function("omnibus_claim_response", (f"response:{id}",), holder, before))

    async def end_response(
        self, record: ResponseRecord, holder: str, final: bytes, seconds: float, account: TenantAccount = NO_LIMIT
    ) -> bool:
        """End a response once and store it for ``seconds``; return False if ``holder`` has lost it.

        Without a ``holder`` it ends for any holder. Raises ``LimitReached`` as ``put_response``.
        """
        arguments = (record.id, holder, final, milliseconds_text(seconds), str(account.bytes), str(OVERHEAD_BYTES))
        try:
            return bool(await self._run_function("omnibus_finish_response", _response_keys(record), *arguments))
        except FunctionRefused as error:
            raise limit_error(error, account, "response") from error

    async def drop_response(self, record: ResponseRecord) -> bool:
        """Remove a response; return False if it does not exist."""
        return bool(await self._run_function("omnibus_drop_response", _response_keys(record), record.id))

    async def response_bytes(self, id: str) -> int:
        """Return the bytes that reading a response would take: 0 without one."""
        async with self._redis.pipeline(transaction=False) as commands:
            for field in ("record", "final"):
                commands.hstrlen(self._response_key(id), field)
            return sum(await self._run_command(commands.execute()))

    async def open_responses(self, limit: int) -> dict[str, StoredResponse]:
        """Return the oldest background responses that have not ended, by id."""
        ids = await self._run_command(self._redis.zrange(self._redis_key(_OPEN_KEY), 0, limit - 1))
        responses: dict[str, StoredResponse] = {}
        for id in (each.decode() for each in ids):
            try:
                stored_response = await self.response(id)
            except ProtocolError as error:
                log.error("left out: %s", error)
                continue
            if stored_response is None or stored_response.final:
                await self._run_command(self._redis.zrem(self._redis_key(_OPEN_KEY), id))
            else:
                responses[id] = stored_response
        return responses

    async def count_open_responses(self) -> int:
        """Count the background responses that have not ended."""
        return int(await self._run_command(self._redis.zcard(self._redis_key(_OPEN_KEY))))

    # Conversations

    async def put_conversation(
        self, record: ConversationRecord, seconds: float, most: int, account: TenantAccount = NO_LIMIT
    ) -> None:
        """Store a conversation or its update. Only the tenant's ``most`` newest ones are kept.

        Raises ``LimitReached``.
        """
        arguments = (
            record.id, _encode(record), milliseconds_text(seconds), str(record.created), str(most), str(account.bytes),
            str(OVERHEAD_BYTES),
        )  # fmt: skip
        try:
            await self._run_function("omnibus_store_conversation", _conversation_keys(record), *arguments)
        except FunctionRefused as error:
            raise limit_error(error, account, "conversation") from error

    async def conversation(self, id: str) -> ConversationRecord | None:
        """Return a conversation: None if it does not exist or has expired.

        Raises ``ProtocolError`` if this build cannot read it.
        """
        body = await self._run_command(self._redis.hget(self._conversation_key(id), "record"))
        try:
            return _decode_conversation(body) if body is not None else None
        except UNREADABLE as error:
            raise ProtocolError(f"{id} was written down by another build: {error}") from error

    async def drop_conversation(self, record: ConversationRecord) -> bool:
        """Remove a conversation and its items; return False if it does not exist."""
        return bool(await self._run_function("omnibus_drop_conversation", _conversation_keys(record), record.id))

    async def extend_conversation(
        self,
        record: ConversationRecord,
        items: dict[str, bytes],
        seconds: float,
        limits: ConversationLimits,
        account: TenantAccount = NO_LIMIT,
    ) -> int:
        """Append ``items``, JSON by id; return the new number of items.

        Returns 0 if the conversation does not exist. Raises ``TooLarge`` beyond ``limits``, and ``LimitReached``.
        """
        parts = [each for pair in items.items() for each in pair]
        arguments = (
            record.id, milliseconds_text(seconds), str(limits.items), str(limits.bytes), str(account.bytes),
            str(OVERHEAD_BYTES), *parts,
        )  # fmt: skip
        try:
            return int(await self._run_function("omnibus_append_items", _conversation_keys(record), *arguments))
        except FunctionRefused as error:
            raise _conversation_error(error, limits, account) from error

    async def conversation_bytes(self, record: ConversationRecord) -> int:
        """Return the bytes of all items of a conversation."""
        return int(await self._run_known_function("omnibus_conversation_bytes", _conversation_keys(record)))

    async def conversation_items(self, id: str, limit: int, after: str = "", newest: bool = False) -> ItemPage | None:
        """Return at most ``limit`` items after ``after``, oldest or ``newest`` first.

        Returns None if ``after`` does not exist.
        """
        _, bodies, order = self._conversation_keys(id)
        begin = 0
        if after:
            rank = self._redis.zrevrank(order, after) if newest else self._redis.zrank(order, after)
            position = await self._run_command(rank)
            if position is None:
                return None
            begin = int(position) + 1
        ids = await self._run_command(self._redis.zrange(order, begin, begin + limit, desc=newest))
        values = await self._run_command(self._redis.hmget(bodies, ids)) if ids else []
        pairs = [(item.decode(), bytes(body)) for item, body in zip(ids, values, strict=True) if body is not None]
        return ItemPage(dict(pairs[:limit]), len(ids) > limit)

    async def conversation_item(self, id: str, item: str) -> bytes | None:
        """Return one item as JSON, or None."""
        body = await self._run_command(self._redis.hget(self._conversation_keys(id)[1], item))
        return bytes(body) if body is not None else None

    async def drop_conversation_items(self, record: ConversationRecord, items: Sequence[str]) -> int:
        """Remove items of a conversation; return how many existed."""
        return int(await self._run_function("omnibus_drop_items", _conversation_keys(record), record.id, *items))

    def _response_key(self, id: str) -> str:
        return self._redis_key(f"response:{id}")

    def _conversation_key(self, id: str) -> str:
        return self._redis_key(f"conversation:{id}")

    def _conversation_keys(self, id: str) -> tuple[str, str, str]:
        """Return the keys of a conversation: itself, its items by id, and the order of their ids."""
        key = self._conversation_key(id)
        return key, f"{key}:items", f"{key}:order"


_RESPONSE_FIELDS = ["record", "holder", "final", "attempt"]


def _response_keys(record: ResponseRecord) -> tuple[str, ...]:
    tenant_key = f"responses:of:{record.tenant}"
    return f"response:{record.id}", tenant_key, _OPEN_KEY, *account_keys(record.tenant), "response:"


def _conversation_keys(record: ConversationRecord) -> tuple[str, ...]:
    key, tenant_key = f"conversation:{record.id}", f"conversations:of:{record.tenant}"
    return key, f"{key}:items", f"{key}:order", *account_keys(record.tenant), tenant_key, "conversation:"


def _conversation_error(error: FunctionRefused, limits: ConversationLimits, account: TenantAccount) -> OmnibusError:
    if error.what not in ("items", "conversation"):
        return limit_error(error, account, "conversation")
    most = f"{limits.items} items" if error.what == "items" else f"{limits.bytes} bytes of items"
    return TooLarge(f"A conversation has {most} at most: delete items, or begin another one.", param="conversation")
