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
    not_found = {"404": failure_response("The upload was not found.")}
    create_operation = post_operation(
        "create_upload", "Start the upload of a file in parts.", "Files", json_content("UploadRequest"), upload
    )
    add_operation = post_operation(
        "add_upload_part", "Add a part to an upload.", "Files", form_content("UploadPartForm"), part
    )
    complete_operation = post_operation(
        "complete_upload",
        "Complete an upload: join its parts to a file.",
        "Files",
        json_content("CompleteUploadRequest"),
        upload,
    )
    cancel_operation = operation(
        "cancel_upload", "Cancel an upload and remove its parts.", "Files", {"200": upload, **not_found, **over}
    )
    id = id_parameter("upload_id")
    return {
        uploads.UPLOADS: {"post": create_operation},
        uploads.PARTS: {"parameters": [id], "post": _may_be_over(add_operation, over)},
        uploads.COMPLETE: {"parameters": [id], "post": _may_be_over(complete_operation, over)},
        uploads.CANCEL: {"parameters": [id], "post": cancel_operation},
    }


def _may_be_over(base_operation: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    return {**base_operation, "responses": {**base_operation["responses"], **over}}
