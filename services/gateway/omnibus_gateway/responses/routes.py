"""``/v1/responses`` and ``/v1/conversations``, over HTTP and WebSockets, at any gateway."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnibus.errors import OmnibusError, Unauthorized
from omnibus.settings import GatewaySettings
from omnibus.store import SECRET_PREFIX
from omnibus_gateway.auth.access_rules import bearer_token
from omnibus_gateway.http.exchange import (
    ConnectedClient,
    Handler,
    PostRequest,
    PostRoute,
    RequestOutcome,
    WebSocketConnection,
    add_routes,
    json_response,
    read_request,
    rejecting_send,
    sent_authorization,
)
from omnibus_gateway.http.response import JSON, ResponseWriter, refuse_request
from omnibus_gateway.openai.chat_response import DONE
from omnibus_gateway.openai.responses.context import CompactRequest, InputTokensRequest, parse_context_request
from omnibus_gateway.openai.responses.conversations import (
    CONVERSATION,
    ITEM,
    ITEMS,
    PATH,
    ConversationDeleted,
    ConversationRequest,
    ConversationUpdate,
    ListItemsQuery,
    NewItems,
    RetrieveQuery,
    parse_conversation_body,
    parse_query,
)
from omnibus_gateway.openai.responses.request import CANCEL, INPUT_ITEMS, RESPONSE, parse_response_request
from omnibus_gateway.openai.responses.response import ResponseDeleted, encode_response
from omnibus_gateway.responses.context import ResponseContext
from omnibus_gateway.responses.conversations import Conversations
from omnibus_gateway.responses.production import Production
from omnibus_gateway.responses.service import Responses
from omnibus_gateway.responses.sockets import ResponseSockets
from omnibus_gateway.tenancy.rate_limits import KEY_LIMITS


class ResponseRoute(PostRoute):
    """Creates responses."""

    reads_prices = True

    def __init__(self, settings: GatewaySettings, responses: Responses) -> None:
        super().__init__(settings)
        self._responses = responses

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        response_request = parse_response_request(post.body)
        sending.model = self._responses.metric_label(response_request.model)  # it is looked up after the earlier input
        production = await self._responses.create(response_request, post.body, post.pinned, post.prices)
        if response_request.background and not response_request.stream:
            await sending.send_body(JSON, encode_response(production.response))
            return
        if not response_request.background:
            sending.run = production.run
        with production.followed():
            if response_request.stream:
                await sending.send_stream(_event_frames(production))
                return
            response = await production.wait_finished()
        await sending.send_body(JSON, encode_response(response))


async def _event_frames(production: Production) -> AsyncIterator[bytes]:
    async for events in production.follow():
        last = DONE if events[-1].is_terminal else b""
        yield b"".join([*(event.frame for event in events), last])


class ResponseRoutes:
    """Adds the routes of one response to an application."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    def add_routes(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Handler]] = {
            CANCEL: {"POST": self._cancel_response},
            INPUT_ITEMS: {"GET": self._list_input_items},
            RESPONSE: {"DELETE": self._delete_response},
        }
        app.add_route(RESPONSE, _RetrieveRoute(self._responses), methods=["GET"], include_in_schema=False)  # type: ignore[arg-type]
        add_routes(app, routes)

    async def _cancel_response(self, request: Request) -> Response:
        response = await self._responses.cancel(request.path_params["response_id"])
        return Response(encode_response(response), media_type="application/json")

    async def _delete_response(self, request: Request) -> Response:
        id = request.path_params["response_id"]
        await self._responses.delete(id)
        return json_response(ResponseDeleted(id))

    async def _list_input_items(self, request: Request) -> Response:
        query = parse_query(dict(request.query_params), ListItemsQuery)
        return json_response(await self._responses.list_input_items(request.path_params["response_id"], query))


class _RetrieveRoute:
    """Returns the current state of a response, or its events."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = ResponseWriter(send)
        async with RequestOutcome(sending):
            request = Request(scope)
            query = parse_query(dict(request.query_params), RetrieveQuery)
            async with ConnectedClient(scope, receive):
                id = request.path_params["response_id"]
                if query.wants_stream:
                    await sending.send_stream(self._responses.follow(id, query.after), last=DONE)
                else:
                    await sending.send_body(JSON, encode_response(await self._responses.retrieve(id)))


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


log = logging.getLogger(__name__)


class ResponseSocketRoute:
    """Opens WebSocket connections of ``sockets``."""

    def __init__(self, sockets: ResponseSockets) -> None:
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection, is_accepted = WebSocketConnection(receive, send), False
        try:
            if bearer_token(sent_authorization(scope)).startswith(SECRET_PREFIX):
                raise Unauthorized("a client secret is only for realtime sessions: send an API key")
            with self._sockets.admit():
                await connection.accept(None)
                is_accepted = True
                await self._sockets.serve(connection, scope.get(KEY_LIMITS))
        except OmnibusError as error:
            if is_accepted:  # later errors are events, as long as the client reads them
                log.warning("a connection of responses ended: %s", error)
            else:
                await refuse_request(rejecting_send(scope, send), error)


Kind = type[ConversationRequest] | type[ConversationUpdate] | type[NewItems]


class ConversationRoutes:
    """Adds the routes over ``conversations`` to an application."""

    def __init__(self, settings: GatewaySettings, conversations: Conversations) -> None:
        self._settings = settings
        self._conversations = conversations

    def add_routes(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Handler]] = {
            PATH: {"POST": self._create},
            CONVERSATION: {"GET": self._retrieve, "POST": self._update, "DELETE": self._delete},
            ITEMS: {"GET": self._list_items, "POST": self._add_items},
            ITEM: {"GET": self._retrieve_item, "DELETE": self._delete_item},
        }
        add_routes(app, routes)

    async def _create(self, request: Request) -> Response:
        conversation_request: ConversationRequest = await self._read_body(request, ConversationRequest)
        return json_response(await self._conversations.create(conversation_request))

    async def _retrieve(self, request: Request) -> Response:
        return json_response(await self._conversations.retrieve(_id(request)))

    async def _update(self, request: Request) -> Response:
        conversation_update: ConversationUpdate = await self._read_body(request, ConversationUpdate)
        return json_response(await self._conversations.update(_id(request), conversation_update.metadata or {}))

    async def _delete(self, request: Request) -> Response:
        await self._conversations.delete(_id(request))
        return json_response(ConversationDeleted(_id(request)))

    async def _list_items(self, request: Request) -> Response:
        query = parse_query(dict(request.query_params), ListItemsQuery)
        return json_response(await self._conversations.list_items(_id(request), query))

    async def _add_items(self, request: Request) -> Response:
        new_items: NewItems = await self._read_body(request, NewItems)
        return json_response(await self._conversations.add_items(_id(request), new_items.items))

    async def _retrieve_item(self, request: Request) -> Response:
        body = await self._conversations.retrieve_item(_id(request), request.path_params["item_id"])
        return json_response(msgspec.Raw(body))

    async def _delete_item(self, request: Request) -> Response:
        return json_response(await self._conversations.delete_item(_id(request), request.path_params["item_id"]))

    async def _read_body(self, request: Request, kind: Kind) -> Any:
        post = await read_request(request.scope, request.receive, self._settings.max_body)
        return parse_conversation_body(post.body, kind)


def _id(request: Request) -> str:
    return str(request.path_params["conversation_id"])
