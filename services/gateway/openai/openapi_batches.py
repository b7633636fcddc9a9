"""``/v1/batches`` for the OpenAPI document."""

from typing import Any

from services.gateway.openai import batches
from services.gateway.openai.openapi_operations import (
    failure_response,
    id_parameter,
    json_content,
    operation,
    post_operation,
    query_parameters,
)

BATCH_SHAPES = (batches.BatchRequest, batches.Batch, batches.BatchList)


def batch_paths() -> dict[str, Any]:
    """The path items of batches."""
    gone = {"404": failure_response("The batch was not found, or has expired.")}
    batch = {"description": "The batch, and how far it is.", "content": json_content("Batch")}
    page = {"description": "Your batches, the newest first.", "content": json_content("BatchList")}
    wrong = {"400": failure_response("The query cannot be used; `param` names the place.")}
    over = {"409": failure_response("The batch is over.")}
    made = post_operation(
        "create_batch", "Have the requests in a file answered.", "Batches", json_content("BatchRequest"), batch
    )
    listed = operation("list_batches", "List your batches.", "Batches", {"200": page, **wrong, **gone})
    return {
        batches.BATCHES: {"post": made, "get": {**listed, "parameters": query_parameters(batches.BatchQuery)}},
        batches.BATCH: {
            "parameters": [id_parameter("batch_id")],
            "get": operation("show_batch", "How far a batch is.", "Batches", {"200": batch, **gone}),
        },
        batches.CANCEL: {
            "parameters": [id_parameter("batch_id")],
            "post": operation("cancel_batch", "End a batch.", "Batches", {"200": batch, **gone, **over}),
        },
    }
