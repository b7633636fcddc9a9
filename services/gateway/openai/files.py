"""Responses of ``/v1/files``. Source: the types of the ``openai`` package, 3.52."""

from typing import Literal

from msgspec import Struct

FILE, CONTENT = "/v1/files/{file_id}", "/v1/files/{file_id}/content"


class FileObject(Struct, frozen=True, kw_only=True):
    """A file that was made for a client. Times are Unix seconds."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    object: Literal["file"] = "file"
    purpose: Literal["assistants_output"] = "assistants_output"
    status: Literal["processed"] = "processed"


class FileDeleted(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
