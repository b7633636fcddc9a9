"""``/v1/conversations``: items that several responses belong to."""

from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus.settings import GatewaySettings
from omnibus_gateway.http.exchange import read_request
from omnibus_gateway.http.handlers import Handler, add_routes, json_response
from omnibus_gateway.openai.responses.conversations import (
    CONVERSATION,
    ITEM,
    ITEMS,
    PATH,
    ConversationDeleted,
    ConversationRequest,
    ConversationUpdate,
    NewItems,
    parse_conversation_body,
)
from omnibus_gateway.openai.responses.query import ListItemsQuery, parse_query
from omnibus_gateway.responses.conversations import Conversations

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
