"""``/v1/videos``: videos are asked for, followed, fetched, listed and removed, at any gateway.

The answer to a request is its job, which is written down by then.
"""

import time

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from omnibus.settings import GatewaySettings
from services.gateway.http.handlers import Handler, by_method, json_response
from services.gateway.http.route import pinned
from services.gateway.openai import videos
from services.gateway.openai.parse import read_body
from services.gateway.openai.videos import CONTENT, PATH, VIDEO, VideoDeleted
from services.gateway.videos.service import Videos
from services.gateway.videos.storage import ENDING, MIME


class VideoRoutes:
    """Adds the routes over ``videos`` to an application."""

    def __init__(self, settings: GatewaySettings, videos: Videos) -> None:
        self._settings = settings
        self._videos = videos

    def add(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Handler]] = {
            PATH: {"GET": self._list, "POST": self._create},
            VIDEO: {"GET": self._show, "DELETE": self._remove},
            CONTENT: {"GET": self._content},
        }
        for path, handlers in routes.items():
            app.add_route(path, by_method(handlers), methods=list(handlers), include_in_schema=False)

    async def _create(self, request: Request) -> Response:
        length = request.headers.get("content-length", "")
        body = await read_body(request.stream(), self._settings.max_body, int(length) if length.isdigit() else None)
        asked = videos.parse(body, request.headers.get("content-type", ""))
        return json_response(await self._videos.create(asked, pinned(request.scope)))

    async def _list(self, request: Request) -> Response:
        return json_response(await self._videos.page(videos.page(dict(request.query_params))))

    async def _show(self, request: Request) -> Response:
        return json_response(await self._videos.show(request.path_params["video_id"]))

    async def _remove(self, request: Request) -> Response:
        id = request.path_params["video_id"]
        await self._videos.remove(id)
        return json_response(VideoDeleted(id=id))

    async def _content(self, request: Request) -> Response:
        variant = videos.variant(dict(request.query_params))
        job, path = await self._videos.content(request.path_params["video_id"], variant)
        headers = {
            "cache-control": f"private, max-age={max(0, int(job.expires - time.time()))}",
            "x-content-type-options": "nosniff",
        }
        name = f"{job.id}{ENDING[variant]}"
        return FileResponse(path, 200, headers, MIME[variant], filename=name, content_disposition_type="inline")
