"""``/v1/batches``: files of requests that are answered in the background."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus.settings import GatewaySettings
from omnibus_gateway.batches.service import Batches
from omnibus_gateway.http.exchange import Handler, add_routes, json_response, read_request
from omnibus_gateway.openai.batches import BATCH, BATCHES, CANCEL, parse_batch_request, parse_query


class BatchRoutes:
    """Adds the routes over ``batches`` to an application."""

    def __init__(self, settings: GatewaySettings, batches: Batches) -> None:
        self._settings = settings
        self._batches = batches

    def add_routes(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Handler]] = {
            BATCHES: {"GET": self._list_batches, "POST": self._create_batch},
            BATCH: {"GET": self._get_batch},
            CANCEL: {"POST": self._cancel_batch},
        }
        add_routes(app, routes)

    async def _create_batch(self, request: Request) -> Response:
        post = await read_request(request.scope, request.receive, self._settings.max_body)
        batch_request = parse_batch_request(post.body, self._batches.endpoints)
        return json_response(await self._batches.create(batch_request))

    async def _list_batches(self, request: Request) -> Response:
        return json_response(await self._batches.list_batches(parse_query(dict(request.query_params))))

    async def _get_batch(self, request: Request) -> Response:
        return json_response(await self._batches.show(request.path_params["batch_id"]))

    async def _cancel_batch(self, request: Request) -> Response:
        return json_response(await self._batches.cancel(request.path_params["batch_id"]))
