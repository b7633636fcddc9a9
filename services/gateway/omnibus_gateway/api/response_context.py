"""``POST /v1/responses/input_tokens`` and ``/compact``: counts a request's tokens, and shortens a conversation."""

import msgspec

from omnibus.settings import GatewaySettings
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.openai.responses.context import CompactRequest, InputTokensRequest, parse_context_request
from omnibus_gateway.responses.context import ResponseContext

_encode = msgspec.json.Encoder().encode


class InputTokensRoute(PostRoute):
    """Counts the tokens of requests."""

    def __init__(self, settings: GatewaySettings, context: ResponseContext) -> None:
        super().__init__(settings)
        self._context = context

    async def handle_request(self, asked: PostRequest, sending: ResponseWriter) -> None:
        wanted = parse_context_request(asked.body, InputTokensRequest)
        loaded = await self._context.load(wanted)
        run = sending.run = self._context.open_request(wanted.model, pinned=asked.pinned)
        sending.model = wanted.model
        await sending.send_body(JSON, _encode(await self._context.count_tokens(loaded, run)))


class CompactRoute(PostRoute):
    """Shortens conversations."""

    def __init__(self, settings: GatewaySettings, context: ResponseContext) -> None:
        super().__init__(settings)
        self._context = context

    async def handle_request(self, asked: PostRequest, sending: ResponseWriter) -> None:
        wanted = parse_context_request(asked.body, CompactRequest)
        loaded = await self._context.load(wanted)
        run = sending.run = self._context.open_request(wanted.model, wanted.seed, asked.pinned)
        sending.model = wanted.model
        await sending.send_body(JSON, _encode(await self._context.compact(loaded, run)))
