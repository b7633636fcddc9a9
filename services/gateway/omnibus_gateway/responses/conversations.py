"""Conversations: sequences of items that responses at any gateway read and extend.

Items before those of a request: earlier responses, or the items of its conversation.
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from omnibus.errors import BadRequest, NotFound, OmnibusError, ProtocolError, TooLarge
from omnibus.graph import UNREADABLE
from omnibus.settings import GatewaySettings
from omnibus.store import ConversationLimits, ConversationRecord, ResponseRecord, Store, StoredResponse
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.openai.responses import items as wire_items
from omnibus_gateway.openai.responses.conversations import ConversationObject, ConversationRequest, ListItemsQuery
from omnibus_gateway.openai.responses.items import InputItem, ItemReference, decode_items
from omnibus_gateway.openai.responses.request import ResponseRequest
from omnibus_gateway.openai.responses.response import ItemList, decode_response
from omnibus_gateway.openai.responses.to_chat import output_as_input
from omnibus_gateway.tenancy.body_budget import current_upload
from omnibus_gateway.tenancy.tenant import current_tenant, tenant_account

#: Limits per request: responses in a chain, and items of a conversation.
MAX_PREVIOUS, MAX_ITEMS = 256, 2048


class EarlierItems(NamedTuple):
    """Items before those of a request, and the parameter for them."""

    items: list[InputItem]
    param: str


class HistoryBytes:
    """Counter of the bytes of a request's history; ``most`` limits them before the read.

    They count like the request's body, so that the histories of one tenant leave room for other tenants.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._upload = current_upload()

    def add(self, nbytes: int, param: str) -> None:
        """Count ``nbytes`` more. Raises ``TooLarge``, and ``Overloaded`` if this gateway has no room."""
        if self._count + nbytes > self._most:
            raise TooLarge(
                f"The history of this request has more than {self._most} bytes (OMNIBUS_GATEWAY_HISTORY_BYTES): "
                "compact it with /v1/responses/compact, delete items, or begin another conversation.",
                param=param,
            )
        self._upload.count_bytes(self._count, self._count + nbytes)
        self._count += nbytes


class HistoryReader:
    """Reads earlier items from ``store``, at most ``most_bytes`` per request."""

    def __init__(self, store: Store, most_bytes: int) -> None:
        self._store = store
        self._most = most_bytes

    async def load(self, request: ResponseRequest) -> EarlierItems:
        """Return the items before those of ``request``.

        Raises ``BadRequest`` for unknown items and those of other tenants, and ``TooLarge`` before reading too much.
        """
        return await self._load(request.previous_response_id, request.conversation_id)

    async def load_of_record(self, record: ResponseRecord) -> EarlierItems:
        """Return the items before those of a stored response. Raises like ``load``."""
        return await self._load(record.previous or None, record.conversation)

    async def _load(self, previous: str | None, conversation: str) -> EarlierItems:
        size = HistoryBytes(self._most)
        if previous is not None:
            return EarlierItems(await _previous_items(self._store, previous, size), "previous_response_id")
        if conversation:
            return EarlierItems(await _conversation_items(self._store, conversation, size), "conversation")
        return EarlierItems([], "")


def resolve_references(items: Sequence[InputItem], history: Sequence[InputItem]) -> list[InputItem]:
    """Replace references to items of ``history`` in ``items``. Raises ``BadRequest``."""
    items_by_id = {item.id: item for item in history if item.id}
    resolved_items: list[InputItem] = []
    for index, item in enumerate(items):
        if not isinstance(item, ItemReference):
            resolved_items.append(item)
        elif item.id in items_by_id:
            resolved_items.append(items_by_id[item.id])
        else:
            raise BadRequest(
                f"Unknown item {item.id[:64]!r}: send the item itself, or set previous_response_id to the response "
                "that has it.",
                param=f"input[{index}].id",
            )
    return resolved_items


async def _previous_items(store: Store, id: str, size: HistoryBytes) -> list[InputItem]:
    chain: list[StoredResponse] = []
    while id:
        size.add(await store.response_bytes(id), "previous_response_id")
        stored_response = await store.response(id)
        if stored_response is None or not current_tenant().owns(stored_response.record.tenant):
            raise BadRequest(f"Previous response with id {id[:64]!r} not found.", param="previous_response_id")
        if not stored_response.final:
            raise BadRequest(f"Response {id} is still in progress: wait for its end.", param="previous_response_id")
        chain.append(stored_response)
        if len(chain) > MAX_PREVIOUS:
            raise BadRequest(
                f"A chain has at most {MAX_PREVIOUS} responses: use /v1/responses/compact.",
                param="previous_response_id",
            )
        id = stored_response.record.previous
    items: list[InputItem] = []
    for stored_response in reversed(chain):
        if stored_response.record.conversation:
            items += await _conversation_items(store, stored_response.record.conversation, size)
            continue
        items += _own_items(stored_response)
    return items


def _own_items(stored_response: StoredResponse) -> list[InputItem]:
    try:
        return [
            *decode_items(stored_response.record.input),
            *output_as_input(decode_response(stored_response.final).output),
        ]
    except UNREADABLE as error:
        raise ProtocolError(f"{stored_response.record.id} was stored by another build: {error}") from error


async def _conversation_items(store: Store, id: str, size: HistoryBytes) -> list[InputItem]:
    record = await store.conversation(id)
    if record is None or not current_tenant().owns(record.tenant):
        raise BadRequest(f"Conversation with id {id[:64]!r} not found.", param="conversation")
    size.add(await store.conversation_bytes(record), "conversation")
    page = await store.conversation_items(id, MAX_ITEMS)
    try:
        return [msgspec.json.decode(body, type=InputItem) for body in page.items.values()] if page else []
    except UNREADABLE as error:
        raise ProtocolError(f"{id} was stored by another build: {error}") from error


CONVERSATION_ID = re.compile(r"conv_[0-9a-f]{48}")
_encode = msgspec.json.Encoder().encode


class Conversations:
    """Conversations of tenants in ``store``."""

    def __init__(self, settings: GatewaySettings, store: Store) -> None:
        self._settings = settings
        self._store = store

    async def create(self, request: ConversationRequest) -> ConversationObject:
        """Create a conversation with its first items. Raises ``BadRequest``."""
        items = self._new_items(request.items or [])
        record = ConversationRecord(new_secret_id("conv_"), time.time(), request.metadata or {}, current_tenant().name)
        await self._put(record)
        if items:
            try:
                await self.append_items(record, items)
            except OmnibusError:
                await self._store.drop_conversation(record)  # its client never receives its id
                raise
        return _to_object(record)

    async def retrieve(self, id: str) -> ConversationObject:
        """Raises ``NotFound``."""
        return _to_object(await self._find(id))

    async def update(self, id: str, metadata: dict[str, str]) -> ConversationObject:
        """Replace the metadata of a conversation. Raises ``NotFound``."""
        record = msgspec.structs.replace(await self._find(id), metadata=metadata)
        await self._put(record)
        return _to_object(record)

    async def delete(self, id: str) -> None:
        """Delete a conversation and its items. Raises ``NotFound``."""
        await self._store.drop_conversation(await self._find(id))

    async def add_items(self, id: str, items: Sequence[wire_items.InputItem]) -> ItemList:
        """Append items from a client. Raises ``NotFound``, ``BadRequest`` and ``TooLarge``."""
        record = await self._find(id)
        new_items = self._new_items(items)
        await self.append_items(record, new_items)
        ids = [str(item.id) for item in new_items]
        return ItemList(list(new_items), ids[0], ids[-1], False)

    async def append_items(self, record: ConversationRecord, items: Sequence[Any]) -> None:
        """Append ``items``, which have ids. Raises ``NotFound`` and ``TooLarge``."""
        bodies = {str(item.id): _encode(item) for item in items}
        settings = self._settings
        count = await self._store.extend_conversation(
            record,
            bodies,
            settings.response_kept,
            ConversationLimits(MAX_ITEMS, settings.history_bytes),
            tenant_account(settings, record.tenant),
        )
        if not count:
            raise _not_found(record.id)

    async def extend(self, id: str, items: Sequence[Any]) -> None:
        """Append the items of a response to conversation ``id``. Raises like ``append_items``."""
        await self.append_items(await self._find(id), items)

    async def list_items(self, id: str, query: ListItemsQuery) -> ItemList:
        """List the items of a conversation. Raises ``NotFound``, also for an unknown ``after``."""
        await self._find(id)
        after = query.after if isinstance(query.after, str) else ""
        page = await self._store.conversation_items(id, query.limit, after, query.order == "desc")
        if page is None:
            raise NotFound(f"Item {after[:64]!r} not found.", param="after")
        ids = list(page.items)
        data = [msgspec.Raw(body) for body in page.items.values()]
        return ItemList(data, ids[0] if ids else "", ids[-1] if ids else "", page.more)

    async def retrieve_item(self, id: str, item: str) -> bytes:
        """Return one item as JSON. Raises ``NotFound``."""
        await self._find(id)
        body = await self._store.conversation_item(id, item)
        if body is None:
            raise NotFound(f"Item {item[:64]!r} not found.", param="item_id")
        return body

    async def delete_item(self, id: str, item: str) -> ConversationObject:
        """Delete one item. Raises ``NotFound``."""
        record = await self._find(id)
        if not await self._store.drop_conversation_items(record, [item]):
            raise NotFound(f"Item {item[:64]!r} not found.", param="item_id")
        return _to_object(record)

    async def _find(self, id: str) -> ConversationRecord:
        record = await self._store.conversation(id) if CONVERSATION_ID.fullmatch(id) else None
        if record is None or not current_tenant().owns(record.tenant):
            raise _not_found(id)
        return record

    async def _put(self, record: ConversationRecord) -> None:
        settings = self._settings
        account = tenant_account(settings, record.tenant)
        await self._store.put_conversation(record, settings.response_kept, settings.responses, account)

    @staticmethod
    def _new_items(items: Sequence[wire_items.InputItem]) -> list[wire_items.InputItem]:
        for index, item in enumerate(items):
            if isinstance(item, ItemReference):
                raise BadRequest("items must not be references: send the items themselves.", param=f"items[{index}]")
        return wire_items.with_ids(list(items), new_secret_id)


def page_items(items: Mapping[str, Any], query: ListItemsQuery) -> ItemList:
    """Return the page of ``items``, oldest first, for ``query``. Raises ``NotFound`` for an unknown ``after``."""
    ids = list(items) if query.order == "asc" else list(items)[::-1]
    if isinstance(query.after, str):
        if query.after not in items:
            raise NotFound(f"Item {query.after[:64]!r} not found.", param="after")
        ids = ids[ids.index(query.after) + 1 :]
    shown_ids = ids[: query.limit]
    first, last = (shown_ids[0], shown_ids[-1]) if shown_ids else ("", "")
    return ItemList([items[id] for id in shown_ids], first, last, len(ids) > len(shown_ids))


def _to_object(record: ConversationRecord) -> ConversationObject:
    return ConversationObject(record.id, int(record.created), record.metadata)


def _not_found(id: str) -> NotFound:
    return NotFound(f"Conversation with id {id[:64]!r} not found.", param="conversation_id")
