"""``/v1/uploads``: files that arrive in parts, separate for each tenant."""

import time

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus.settings import GatewaySettings
from omnibus_gateway.api.files import file_view
from omnibus_gateway.files.client_files import ClientFiles
from omnibus_gateway.files.uploads import FileUpload, FileUploads
from omnibus_gateway.http.exchange import read_request
from omnibus_gateway.http.handlers import add_routes, json_response
from omnibus_gateway.openai import multipart
from omnibus_gateway.openai.uploads import (
    CANCEL,
    COMPLETE,
    PARTS,
    UPLOADS,
    UploadObject,
    UploadPartObject,
    parse_complete_request,
    parse_upload_request,
)


class UploadRoutes:
    """Adds the routes to an application; a complete upload becomes one of ``files``."""

    def __init__(self, settings: GatewaySettings, files: ClientFiles) -> None:
        self._settings = settings
        self._uploads = FileUploads(files)

    def add_routes(self, app: FastAPI) -> None:
        add_routes(
            app,
            {
                UPLOADS: {"POST": self._begin_upload},
                PARTS: {"POST": self._add_part},
                COMPLETE: {"POST": self._complete_upload},
                CANCEL: {"POST": self._cancel_upload},
            },
        )

    async def _begin_upload(self, request: Request) -> Response:
        post = await read_request(request.scope, request.receive, self._settings.max_body)
        upload_request = parse_upload_request(post.body)
        seconds = float(upload_request.expires_after.seconds) if upload_request.expires_after is not None else 0.0
        upload = await self._uploads.begin(
            upload_request.filename, upload_request.purpose, upload_request.mime_type, upload_request.bytes, seconds
        )
        return json_response(upload_view(upload))

    async def _add_part(self, request: Request) -> Response:
        post = await read_request(request.scope, request.receive, self._settings.max_body)
        form = multipart.parse_form(post.body, post.content_type)
        form.check_file_names("data")
        id = request.path_params["upload_id"]
        part = await self._uploads.add_part(id, form.file("data").data)
        return json_response(UploadPartObject(id=part, created_at=int(time.time()), upload_id=id))

    async def _complete_upload(self, request: Request) -> Response:
        post = await read_request(request.scope, request.receive, self._settings.max_body)
        complete_request = parse_complete_request(post.body)
        id = request.path_params["upload_id"]
        return json_response(
            upload_view(await self._uploads.complete(id, complete_request.part_ids, complete_request.md5 or ""))
        )

    async def _cancel_upload(self, request: Request) -> Response:
        return json_response(upload_view(await self._uploads.cancel(request.path_params["upload_id"])))


def upload_view(upload: FileUpload) -> UploadObject:
    """Return an upload as clients see it."""
    return UploadObject(
        id=upload.id,
        bytes=upload.nbytes,
        created_at=int(upload.created),
        expires_at=int(upload.expires),
        filename=upload.filename,
        purpose=upload.purpose,  # type: ignore[arg-type]
        status=upload.current_status,  # type: ignore[arg-type]
        file=file_view(upload.file) if upload.file is not None else None,
    )
