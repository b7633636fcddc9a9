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

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        context_request = parse_context_request(post.body, InputTokensRequest)
        loaded_context = await self._context.load(context_request)
        run = sending.run = self._context.open_request(context_request.model, pinned_path=post.pinned)
        sending.model = context_request.model
        await sending.send_body(JSON, _encode(await self._context.count_tokens(loaded_context, run)))


class CompactRoute(PostRoute):
    """Shortens conversations."""

    def __init__(self, settings: GatewaySettings, context: ResponseContext) -> None:
        super().__init__(settings)
        self._context = context

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        context_request = parse_context_request(post.body, CompactRequest)
        loaded_context = await self._context.load(context_request)
        run = sending.run = self._context.open_request(context_request.model, context_request.seed, post.pinned)
        sending.model = context_request.model
        await sending.send_body(JSON, _encode(await self._context.compact(loaded_context, run)))
