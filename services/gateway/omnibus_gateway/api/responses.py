"""``/v1/responses``: creates, streams, retrieves, continues, cancels and deletes responses, at any gateway."""

from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnibus.settings import GatewaySettings
from omnibus_gateway.http.exchange import ConnectedClient, PostRequest, PostRoute, RequestOutcome
from omnibus_gateway.http.handlers import Handler, add_routes, json_response
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.openai.chat_stream import DONE
from omnibus_gateway.openai.responses.query import ListItemsQuery, RetrieveQuery, parse_query
from omnibus_gateway.openai.responses.request import CANCEL, INPUT_ITEMS, RESPONSE, parse_response_request
from omnibus_gateway.openai.responses.response import ResponseDeleted, encode_response
from omnibus_gateway.responses.production import Production
from omnibus_gateway.responses.service import Responses


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
