"""Items before those of a request: earlier responses, or the items of its conversation."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from omnibus.errors import BadRequest, ProtocolError, TooLarge
from omnibus.graph import UNREADABLE
from omnibus.store import ResponseRecord, Store, StoredResponse
from omnibus_gateway.openai.responses.items import InputItem, ItemReference, decode_items
from omnibus_gateway.openai.responses.request import ResponseRequest
from omnibus_gateway.openai.responses.response import decode_response
from omnibus_gateway.openai.responses.to_chat import output_as_input
from omnibus_gateway.tenancy.body_budget import current_upload
from omnibus_gateway.tenancy.tenant import current_tenant

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
