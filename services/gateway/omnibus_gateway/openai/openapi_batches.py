"""``/v1/batches`` for the OpenAPI document."""

from typing import Any

from omnibus_gateway.openai import batches
from omnibus_gateway.openai.openapi_operations import (
    failure_response,
    id_parameter,
    json_content,
    operation,
    post_operation,
    query_parameters,
)

BATCH_SHAPES = (batches.BatchRequest, batches.Batch, batches.BatchList)


def batch_paths() -> dict[str, Any]:
    """Return the path items of batches."""
    not_found = {"404": failure_response("The batch was not found, or has expired.")}
    batch = {"description": "The batch and its progress.", "content": json_content("Batch")}
    page = {"description": "Your batches, the newest first.", "content": json_content("BatchList")}
    wrong = {"400": failure_response("The query is invalid; `param` names the field.")}
    over = {"409": failure_response("The batch has ended.")}
    create_operation = post_operation(
        "create_batch", "Run the requests of a file.", "Batches", json_content("BatchRequest"), batch
    )
    list_operation = operation("list_batches", "List your batches.", "Batches", {"200": page, **wrong, **not_found})
    return {
        batches.BATCHES: {
            "post": create_operation,
            "get": {**list_operation, "parameters": query_parameters(batches.BatchQuery)},
        },
        batches.BATCH: {
            "parameters": [id_parameter("batch_id")],
            "get": operation("show_batch", "Retrieve a batch's progress.", "Batches", {"200": batch, **not_found}),
        },
        batches.CANCEL: {
            "parameters": [id_parameter("batch_id")],
            "post": operation("cancel_batch", "Cancel a batch.", "Batches", {"200": batch, **not_found, **over}),
        },
    }
