"""Responses in the store and their logs: progress, ends and recovery."""

import logging
from typing import Any

import msgspec

from omnibus.bus import Bus
from omnibus.errors import ProtocolError, StoreUnavailable, TooLarge
from omnibus.graph import UNREADABLE
from omnibus.settings import GatewaySettings
from omnibus.store import ResponseRecord, Store
from omnibus_gateway.openai.responses import items as wire_items
from omnibus_gateway.openai.responses.events import ending_event
from omnibus_gateway.openai.responses.request import parse_response_request
from omnibus_gateway.openai.responses.response import ResponseObject, encode_response, failed_response, new_response
from omnibus_gateway.openai.responses.sequence import EventSequence, NumberedEvent, item_of
from omnibus_gateway.responses.conversations import Conversations
from omnibus_gateway.responses.log import LogContent, ResponseLog
from omnibus_gateway.tenancy.tenant import background_places, tenant_account

log = logging.getLogger(__name__)

#: Limit of the request and of the output of a stored response, in bytes.
MAX_STORED_BYTES = 8 << 20


class ResponseArchive:
    """Stores responses on behalf of gateway ``holder``."""

    def __init__(
        self, settings: GatewaySettings, store: Store, bus: Bus, conversations: Conversations, holder: str
    ) -> None:
        self._settings = settings
        self._store = store
        self._bus = bus
        self._conversations = conversations
        self._holder = holder

    async def put_begun(self, record: ResponseRecord) -> None:
        """Store a response that this gateway generates.

        Raises ``StoreUnavailable``, and ``LimitReached`` and ``Overloaded`` if its tenant has no room for it.
        """
        await self._put(record, self._holder, b"")

    async def put_whole(self, record: ResponseRecord, response: ResponseObject) -> None:
        """Store a complete response without a log. Raises ``StoreUnavailable`` and ``TooLarge``."""
        await self._put(record, "", self._encode_final(response))
        await self._extend_conversation(record, response)

    async def _put(self, record: ResponseRecord, holder: str, final: bytes) -> None:
        settings, tenant = self._settings, record.tenant
        account, places = tenant_account(settings, tenant), background_places(settings, tenant)
        await self._store.put_response(
            record, holder, final, settings.response_kept, settings.responses, account, places
        )

    async def put_end(self, record: ResponseRecord, response: ResponseObject) -> None:
        """Store the end of a response that this gateway generates."""
        if await self._store_end(record, response, self._holder):
            await self._extend_conversation(record, response)

    async def end_early(self, record: ResponseRecord, content: LogContent, response: ResponseObject) -> ResponseObject:
        """End a response of this gateway early, with its complete items."""
        whole = [item for event in content.events for item in item_of(event)]
        final_response = msgspec.structs.replace(response, output=whole)
        last = EventSequence.after(content.events).number([ending_event(final_response)])
        await ResponseLog(self._bus, record.id, content).append(last)
        await self._store_end(record, final_response, self._holder)
        return final_response

    async def heal(self, record: ResponseRecord, content: LogContent) -> ResponseObject:
        """Copy the end of a response from its log to the store."""
        response = msgspec.json.decode(content.events[-1].body, type=_LastEvent).response
        if await self._store_end(record, response, ""):
            await self._extend_conversation(record, response)
        return response

    async def _store_end(self, record: ResponseRecord, response: ResponseObject, holder: str) -> bool:
        retention, account = self._settings.response_kept, tenant_account(self._settings, record.tenant)
        try:
            try:
                return await self._store.end_response(record, holder, self._encode_final(response), retention, account)
            except TooLarge as error:  # the client already has its events: only the stored response has the error
                final_body = self._encode_final(failed_response(msgspec.structs.replace(response, output=[]), error))
                return await self._store.end_response(record, holder, final_body, retention)
        except StoreUnavailable as error:  # the log has the end; the next retrieval stores it
            log.warning("%s has ended, but the store does not have its end yet: %s", record.id, error)
            return False

    def _encode_final(self, response: ResponseObject) -> bytes:
        body = encode_response(response)
        if len(body) > MAX_STORED_BYTES:
            raise TooLarge(
                f"The response has {len(body)} bytes, and at most {MAX_STORED_BYTES} can be stored: send store false."
            )
        return body

    async def _extend_conversation(self, record: ResponseRecord, response: ResponseObject) -> None:
        if record.conversation and response.status in ("completed", "incomplete"):
            await self._conversations.extend(record.conversation, [*read_items(record), *response.output])


class _LastEvent(msgspec.Struct):
    response: ResponseObject


def response_of(record: ResponseRecord) -> ResponseObject:
    """Return the initial response, without output."""
    return new_response(record.id, record.created, parse_response_request(record.request))


def with_status(record: ResponseRecord, status: Any) -> ResponseObject:
    """Return the response without output, with ``status``."""
    return msgspec.structs.replace(response_of(record), status=status)


def with_progress(response: ResponseObject, events: list[NumberedEvent]) -> ResponseObject:
    """Return the current state of ``response``, with its complete items."""
    has_begun = any(event.type == "response.in_progress" for event in events)
    whole = [item for event in events for item in item_of(event)]
    status = "in_progress" if has_begun or not response.background else response.status
    return msgspec.structs.replace(response, status=status, output=whole)


def read_items(record: ResponseRecord) -> list[wire_items.InputItem]:
    """Return the items of a response's own request. Raises ``ProtocolError``."""
    try:
        return wire_items.decode_items(record.input)
    except UNREADABLE as error:
        raise ProtocolError(f"{record.id} was stored by another build: {error}") from error
