"""``/v1/videos``: creates, follows, fetches, lists and deletes videos, at any gateway.

The answer to a request is its job, which is stored by then.
"""

import time
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from omnibus.errors import NotFound
from omnibus.settings import GatewaySettings
from omnibus_gateway.http.content import content_response
from omnibus_gateway.http.exchange import Handler, add_routes, json_response, read_request
from omnibus_gateway.media.inspect import InspectedMedia, MediaLimits, inspect_files
from omnibus_gateway.openai import videos
from omnibus_gateway.openai.videos import (
    CONTENT,
    EDITS,
    EXTENSIONS,
    PATH,
    REFERENCE,
    REMIX,
    VIDEO,
    VideoDeleted,
    VideoOrder,
)
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.resolve import rename_params
from omnibus_gateway.videos.service import Videos
from omnibus_gateway.videos.storage import FILE_EXTENSIONS, MIME


class VideoRoutes:
    """Adds the routes over ``videos`` to an application; ``chat`` fetches referenced media."""

    def __init__(self, settings: GatewaySettings, videos: Videos, chat: Chat) -> None:
        self._settings = settings
        self._videos = videos
        self._chat = chat

    def add_routes(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Handler]] = {
            PATH: {"GET": self._list_videos, "POST": self._create_video},
            VIDEO: {"GET": self._get_video, "DELETE": self._delete_video},
            CONTENT: {"GET": self._get_content},
            **{path: {"POST": _refuse_change} for path in (REMIX, EDITS, EXTENSIONS)},
        }
        add_routes(app, routes)

    async def _create_video(self, request: Request) -> Response:
        post = await read_request(request.scope, request.receive, self._settings.max_body)
        order = videos.parse_video_request(post.body, post.content_type)
        if order.has_image:
            self._videos.require_first_frame(order.request.model)
        first = await self._load_image(order)
        return json_response(await self._videos.create(order.request, post.pinned, post.prices, first))

    async def _load_image(self, order: VideoOrder) -> InspectedMedia | None:
        """Return the first frame of the video. Raises ``BadMedia``, ``TooLarge``, and as ``Chat.load_media``."""
        limits = MediaLimits(body_bytes=self._settings.max_body)
        if order.file is not None:
            [first_frame] = await inspect_files([(order.file.data, order.file.mime)], "image", limits, REFERENCE)
            return first_frame
        if order.image_ref is not None:
            with rename_params({"file_id": REFERENCE}):
                [first_frame] = await self._chat.load_media([order.image_ref])
            return first_frame
        return None

    async def _list_videos(self, request: Request) -> Response:
        return json_response(await self._videos.list_videos(videos.parse_list_query(dict(request.query_params))))

    async def _get_video(self, request: Request) -> Response:
        return json_response(await self._videos.show_video(request.path_params["video_id"]))

    async def _delete_video(self, request: Request) -> Response:
        id = request.path_params["video_id"]
        await self._videos.remove_video(id)
        return json_response(VideoDeleted(id=id))

    async def _get_content(self, request: Request) -> Response:
        variant = videos.parse_variant(dict(request.query_params))
        job, content = await self._videos.find_content(request.path_params["video_id"], variant)
        headers = {
            "cache-control": f"private, max-age={max(0, int(job.expires - time.time()))}",
            "x-content-type-options": "nosniff",
        }
        name = f"{job.id}{FILE_EXTENSIONS[variant]}"
        if isinstance(content, Path):
            return FileResponse(content, 200, headers, MIME[variant], filename=name, content_disposition_type="inline")
        headers["content-disposition"] = f'inline; filename="{name}"'
        return await content_response(request, content, MIME[variant], headers)


async def _refuse_change(_: Request) -> Response:
    raise NotFound("videos cannot be changed: POST /v1/videos with another prompt and the first one's seed")
