"""Requests and responses of ``/v1/uploads``. Source: the types of the ``openai`` package, 3.52."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from omnibus_gateway.openai.files import ExpiresAfter, FileObject, Purpose
from omnibus_gateway.openai.parse import decode_body

UPLOADS = "/v1/uploads"
PARTS = f"{UPLOADS}/{{upload_id}}/parts"
COMPLETE = f"{UPLOADS}/{{upload_id}}/complete"
CANCEL = f"{UPLOADS}/{{upload_id}}/cancel"

#: Limit of the parts of one upload.
MAX_PARTS = 1000
PartId = Annotated[str, Meta(min_length=1, max_length=128)]


class UploadRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file to upload in parts: its name, its type and its total size in bytes."""

    bytes: Annotated[int, Meta(ge=1, le=2**53)]
    filename: Annotated[str, Meta(min_length=1, max_length=255)]
    mime_type: Annotated[str, Meta(max_length=255)]
    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class CompleteUploadRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part ids in the order of the file. ``md5`` is the digest of the file, in hexadecimal digits."""

    part_ids: Annotated[list[PartId], Meta(min_length=1, max_length=MAX_PARTS)]
    md5: Annotated[str, Meta(pattern="^[0-9a-fA-F]{32}$")] | None = None


class UploadObject(Struct, frozen=True, kw_only=True):
    """An upload. Times are in Unix seconds. ``file`` is set once the upload is completed."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: FileObject | None = None
    object: Literal["upload"] = "upload"


class UploadPartObject(Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    upload_id: str
    object: Literal["upload.part"] = "upload.part"


_REQUEST = msgspec.json.Decoder(UploadRequest)
_COMPLETE = msgspec.json.Decoder(CompleteUploadRequest)


def parse_upload_request(body: bytes) -> UploadRequest:
    """Decode and check a request. Raises ``BadRequest`` with ``param``."""
    return decode_body(_REQUEST, body)


def parse_complete_request(body: bytes) -> CompleteUploadRequest:
    """Decode and check a request. Raises ``BadRequest`` with ``param``."""
    return decode_body(_COMPLETE, body)
