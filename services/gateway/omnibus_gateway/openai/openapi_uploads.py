"""``/v1/uploads`` for the OpenAPI document."""

from typing import Any

from omnibus_gateway.openai import uploads
from omnibus_gateway.openai.openapi_operations import (
    failure_response,
    form_content,
    id_parameter,
    json_content,
    operation,
    post_operation,
)

UPLOAD_SHAPES = (
    uploads.UploadRequest,
    uploads.CompleteUploadRequest,
    uploads.UploadObject,
    uploads.UploadPartObject,
)
_BYTES = {"type": "string", "format": "binary"}
#: The form of one part, by the name of its component.
PART_FORM = {
    "UploadPartForm": {"type": "object", "properties": {"data": _BYTES}, "required": ["data"]},
}


def upload_paths() -> dict[str, Any]:
    """Return the path items of uploads."""
    upload = {"description": "The upload.", "content": json_content("UploadObject")}
    part = {"description": "The part.", "content": json_content("UploadPartObject")}
    over = {"409": failure_response("The upload is completed, cancelled or expired.")}
    gone = {"404": failure_response("The upload was not found.")}
    begun = post_operation(
        "create_upload", "Start the upload of a file in parts.", "Files", json_content("UploadRequest"), upload
    )
    added = post_operation("add_upload_part", "Add a part to an upload.", "Files", form_content("UploadPartForm"), part)
    completed = post_operation(
        "complete_upload",
        "Complete an upload: join its parts to a file.",
        "Files",
        json_content("CompleteUploadRequest"),
        upload,
    )
    cancelled = operation(
        "cancel_upload", "Cancel an upload and remove its parts.", "Files", {"200": upload, **gone, **over}
    )
    id = id_parameter("upload_id")
    return {
        uploads.UPLOADS: {"post": begun},
        uploads.PARTS: {"parameters": [id], "post": _may_be_over(added, over)},
        uploads.COMPLETE: {"parameters": [id], "post": _may_be_over(completed, over)},
        uploads.CANCEL: {"parameters": [id], "post": cancelled},
    }


def _may_be_over(made: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    return {**made, "responses": {**made["responses"], **over}}
