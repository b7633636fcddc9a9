"""Items before those of a response: earlier responses, or the items of its conversation."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from omnibus.errors import BadRequest, ProtocolError
from omnibus.graph import UNREADABLE
from omnibus.store import ResponseRecord, Store, StoredResponse
from services.gateway.openai.responses.items import InputItem, ItemReference, decode_items
from services.gateway.openai.responses.request import ResponseRequest
from services.gateway.openai.responses.response import decode_response
from services.gateway.openai.responses.to_chat import output_as_input
from services.gateway.tenancy.tenant import current_tenant

#: Responses behind one another, and items of a conversation, that are read for one request.
MAX_PREVIOUS, MAX_ITEMS = 256, 2048


class EarlierItems(NamedTuple):
    """Items that come before those of a request, and the parameter that names them."""

    items: list[InputItem]
    param: str


async def load_history(store: Store, wanted: ResponseRequest) -> EarlierItems:
    """The items before those of ``wanted``. Raises ``BadRequest`` for what is unknown, or another tenant's."""
    if wanted.previous_response_id is not None:
        return EarlierItems(await _previous_items(store, wanted.previous_response_id), "previous_response_id")
    if wanted.conversation_id:
        return EarlierItems(await _conversation_items(store, wanted.conversation_id), "conversation")
    return EarlierItems([], "")


async def load_record_history(store: Store, record: ResponseRecord) -> EarlierItems:
    """The same for a response that was written down. Raises as ``load_history``."""
    if record.previous:
        return EarlierItems(await _previous_items(store, record.previous), "previous_response_id")
    if record.conversation:
        return EarlierItems(await _conversation_items(store, record.conversation), "conversation")
    return EarlierItems([], "")


def resolve_references(items: Sequence[InputItem], history: Sequence[InputItem]) -> list[InputItem]:
    """``items`` with those of ``history`` in the place of references to them. Raises ``BadRequest``."""
    known = {item.id: item for item in history if item.id}
    found: list[InputItem] = []
    for index, item in enumerate(items):
        if not isinstance(item, ItemReference):
            found.append(item)
        elif item.id in known:
            found.append(known[item.id])
        else:
            raise BadRequest(
                f"Item {item.id[:64]!r} is not known: send the item itself, or name the response that it is of in "
                "previous_response_id.",
                param=f"input[{index}].id",
            )
    return found


async def _previous_items(store: Store, id: str) -> list[InputItem]:
    chain: list[StoredResponse] = []
    while id:
        stored = await store.response(id)
        if stored is None or not current_tenant().owns(stored.record.tenant):
            raise BadRequest(f"Previous response with id {id[:64]!r} not found.", param="previous_response_id")
        if not stored.final:
            raise BadRequest(f"Response {id} is not over: wait for its end.", param="previous_response_id")
        chain.append(stored)
        if len(chain) > MAX_PREVIOUS:
            raise BadRequest(f"More than {MAX_PREVIOUS} responses follow each other.", param="previous_response_id")
        id = stored.record.previous
    items: list[InputItem] = []
    for stored in reversed(chain):
        if stored.record.conversation:
            items += await _conversation_items(store, stored.record.conversation)
            continue
        items += _own_items(stored)
    return items


def _own_items(stored: StoredResponse) -> list[InputItem]:
    try:
        return [*decode_items(stored.record.input), *output_as_input(decode_response(stored.final).output)]
    except UNREADABLE as error:
        raise ProtocolError(f"{stored.record.id} was written down by another build: {error}") from error


async def _conversation_items(store: Store, id: str) -> list[InputItem]:
    record = await store.conversation(id)
    if record is None or not current_tenant().owns(record.tenant):
        raise BadRequest(f"Conversation with id {id[:64]!r} not found.", param="conversation")
    page = await store.conversation_items(id, MAX_ITEMS)
    try:
        return [msgspec.json.decode(body, type=InputItem) for body in page.items.values()] if page else []
    except UNREADABLE as error:
        raise ProtocolError(f"{id} was written down by another build: {error}") from error
