"""Requests and responses of ``/v1/files`` and ``/v1/uploads``. Source: the types of the ``openai`` package, 3.52."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from omnibus_gateway.openai.parse import decode_body, invalid_request

FILES, FILE, CONTENT = "/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content"

#: Purposes that clients may set; files of all purposes are treated the same.
Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
AnyPurpose = Purpose | Literal["assistants_output", "batch_output"]
#: Seconds that a client may request: an hour to 30 days.
Seconds = Annotated[int, Meta(ge=3600, le=2592000)]
#: Prefix of a form's fields, which clients write as ``expires_after[seconds]``.
_EXPIRES = "expires_after"


class ExpiresAfter(Struct, frozen=True, forbid_unknown_fields=True):
    """Expiry of a file."""

    seconds: Seconds
    anchor: Literal["created_at"] = "created_at"


class FileForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of ``POST /v1/files`` except the file."""

    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class FileQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of ``GET /v1/files``."""

    after: Annotated[str, Meta(max_length=128)] = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: AnyPurpose | None = None


class FileObject(Struct, frozen=True, kw_only=True):
    """A file. Times are Unix seconds."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: AnyPurpose = "assistants_output"
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class FileList(Struct, frozen=True, kw_only=True):
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class FileDeleted(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def parse_file_form(fields: Mapping[str, Any]) -> FileForm:
    """Check the fields of an upload. Raises ``BadRequest`` with ``param``."""
    expiry_fields = {
        name[len(_EXPIRES) + 1 : -1]: value for name, value in fields.items() if name.startswith(f"{_EXPIRES}[")
    }
    plain = {name: value for name, value in fields.items() if not name.startswith(f"{_EXPIRES}[")}
    return _convert({**plain, **({_EXPIRES: expiry_fields} if expiry_fields else {})}, FileForm)


def parse_file_query(query: Mapping[str, str]) -> FileQuery:
    """Check the query of a list. Raises ``BadRequest`` with ``param``."""
    return _convert(query, FileQuery)


def _convert(fields: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), kind) from None


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
