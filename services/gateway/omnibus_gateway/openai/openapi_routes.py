"""Operations of the OpenAPI document, and the routes that are described apart from their structs.

These are batches, uploads, realtime sessions, completions, responses and conversations.

OpenAPI cannot describe the events on a WebSocket.
"""

from typing import Any

import msgspec

from omnibus_gateway.openai import batches, completions, files
from omnibus_gateway.openai.realtime import session
from omnibus_gateway.openai.responses import context, conversations
from omnibus_gateway.openai.responses.conversations import ListItemsQuery, RetrieveQuery
from omnibus_gateway.openai.responses.request import CANCEL, INPUT_ITEMS, PATH, RESPONSE, ResponseRequest
from omnibus_gateway.openai.responses.response import ItemList, ResponseDeleted, ResponseObject
from omnibus_gateway.openai.responses.sequence import ResponseEvent

REF = "#/components/schemas/{name}"
FAILURES = {
    "400": "The request or one of its media items is invalid; `param` names the field.",
    "401": "The API key is missing or unknown.",
    "404": "The model is unknown.",
    "413": "A limit on bytes, pixels, seconds or items is exceeded.",
    "429": "Overloaded: retry after Retry-After seconds.",
    "502": "A stage failed on this request; `stage` names it.",
    "503": "No live executor for a stage.",
    "504": "The deadline passed.",
}


def id_parameter(name: str) -> dict[str, Any]:
    """Describe the path parameter called ``name``."""
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def query_parameters(kind: type) -> list[dict[str, Any]]:
    """Describe a query parameter for each field of ``kind``."""
    fields = msgspec.json.schema_components([kind])[1][kind.__name__]["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in fields.items()]


def post_operation(id: str, summary: str, tag: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Describe an operation with a body and the usual failures."""
    responses = {"200": answer, **{status: failure_response(text) for status, text in FAILURES.items()}}
    return {**operation(id, summary, tag, responses), "requestBody": {"required": True, "content": body}}


def operation(id: str, summary: str, tag: str, responses: dict[str, Any]) -> dict[str, Any]:
    """Describe an operation with its responses by status."""
    return {"operationId": id, "summary": summary, "tags": [tag], "responses": responses}


def failure_response(description: str) -> dict[str, Any]:
    """Describe an error response."""
    return {"description": description, "content": json_content("ErrorBody")}


def json_content(name: str) -> dict[str, Any]:
    """Describe JSON of the component ``name``."""
    return {"application/json": {"schema": schema_ref(name)}}


def form_content(name: str) -> dict[str, Any]:
    """Describe a form of the component ``name``."""
    return {"multipart/form-data": {"schema": schema_ref(name)}}


def event_content(*names: str) -> dict[str, Any]:
    """Describe server-sent events, each of one of the components ``names``."""
    schemas = [schema_ref(name) for name in names]
    return {"text/event-stream": {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}}}


def schema_ref(name: str) -> dict[str, str]:
    """Return a reference to the component ``name``."""
    return {"$ref": REF.format(name=name)}


REALTIME_SHAPES = (session.ClientSecretRequest, session.ClientSecret)


def realtime_paths() -> dict[str, Any]:
    """Return the path items."""
    open_responses = {
        "101": {"description": "A WebSocket with events in both directions."},
        "426": failure_response("The request must open a WebSocket."),
    }
    text, kinds = {"type": "string"}, {"resumable": {"type": "boolean"}}
    names = ("model", "intent", "resumable", "resume", "last_event_id")
    parameters = [{"name": name, "in": "query", "schema": kinds.get(name, text)} for name in names]
    opening = {
        **operation("open_realtime", "Open or resume a session.", "Realtime", open_responses),
        "parameters": parameters,
    }
    secret_response = {
        "description": "The secret and the configuration of its session.",
        "content": json_content("ClientSecret"),
    }
    return {
        session.PATH: {"get": opening},
        session.CLIENT_SECRETS: {
            "post": post_operation(
                "create_client_secret",
                "Create a key for a browser.",
                "Realtime",
                json_content("ClientSecretRequest"),
                secret_response,
            )
        },
    }


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


UPLOAD_SHAPES = (
    files.UploadRequest,
    files.CompleteUploadRequest,
    files.UploadObject,
    files.UploadPartObject,
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
        files.UPLOADS: {"post": create_operation},
        files.PARTS: {"parameters": [id], "post": _may_be_over(add_operation, over)},
        files.COMPLETE: {"parameters": [id], "post": _may_be_over(complete_operation, over)},
        files.CANCEL: {"parameters": [id], "post": cancel_operation},
    }


def _may_be_over(base_operation: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    return {**base_operation, "responses": {**base_operation["responses"], **over}}


RESPONSE_SHAPES = (
    completions.CompletionRequest,
    completions.Completion,
    ResponseRequest,
    ResponseObject,
    ResponseEvent,
    ResponseDeleted,
    ItemList,
    context.InputTokensRequest,
    context.InputTokensObject,
    context.CompactRequest,
    context.CompactedResponse,
    conversations.ConversationRequest,
    conversations.ConversationUpdate,
    conversations.NewItems,
    conversations.ConversationObject,
    conversations.ConversationDeleted,
)

_GONE = {"404": failure_response("The object was not found, or has expired.")}
_WRONG = {"400": failure_response("The request is invalid; `param` names the field.")}
_SLOW = {
    "409": failure_response("Another connection is generating the response."),
    "413": failure_response("The response is too large."),
}


def with_optional_types(components: dict[str, Any]) -> dict[str, Any]:
    """Make the ``type`` of messages optional in ``components``."""
    message = components["InputMessage"]
    required_fields = [name for name in message.get("required", ()) if name != "type"]
    return {**components, "InputMessage": {**message, "required": required_fields}}


def response_paths() -> dict[str, Any]:
    """Return the path items."""
    return {
        completions.PATH: {"post": _completion_operation()},
        PATH: {"get": _connect_operation(), "post": _create_operation()},
        context.INPUT_TOKENS: {
            "post": post_operation(
                "count_input_tokens",
                "Count the tokens of a request.",
                "Responses",
                json_content("InputTokensRequest"),
                {"description": "Number of tokens of the prompt.", "content": json_content("InputTokensObject")},
            )
        },
        context.COMPACT: {
            "post": post_operation(
                "compact_response",
                "Compact a conversation.",
                "Responses",
                json_content("CompactRequest"),
                {
                    "description": "The items that replace the conversation.",
                    "content": json_content("CompactedResponse"),
                },
            )
        },
        RESPONSE: {
            "parameters": [id_parameter("response_id")],
            "get": _retrieve_operation(),
            "delete": _answer("remove_response", "Remove a response, complete or not.", "ResponseDeleted", _GONE),
        },
        CANCEL: {
            "parameters": [id_parameter("response_id")],
            "post": _answer("cancel_response", "Cancel a background response.", "ResponseObject", _GONE | _WRONG),
        },
        INPUT_ITEMS: {
            "parameters": [id_parameter("response_id"), *query_parameters(ListItemsQuery)],
            "get": _answer("list_input_items", "List the input items of a response.", "ItemList", _GONE | _WRONG),
        },
        **_conversation_paths(),
    }


def _completion_operation() -> dict[str, Any]:
    events = "The completions. With `stream`: server-sent events with text of one each, then `[DONE]`."
    return post_operation(
        "create_completion",
        "Continue texts without a chat template.",
        "Completions",
        json_content("CompletionRequest"),
        {"description": events, "content": {**json_content("Completion"), **event_content("Completion")}},
    )


def _create_operation() -> dict[str, Any]:
    events = "The response. With `stream`: its events, numbered without gaps, then `[DONE]`."
    return post_operation(
        "create_response",
        "Answer items with text, audio or both.",
        "Responses",
        json_content("ResponseRequest"),
        {"description": events, "content": {**json_content("ResponseObject"), **event_content("ResponseEvent")}},
    )


def _connect_operation() -> dict[str, Any]:
    answers = {
        "101": {"description": "A WebSocket for requests and the events of their responses."},
        "405": failure_response("The request must open a WebSocket."),
    }
    return operation("connect_responses", "Create responses over one connection.", "Responses", answers)


def _retrieve_operation() -> dict[str, Any]:
    description = "The response in its current state. With `stream`: its events after `starting_after`, as they arrive."
    answer = {
        "description": description,
        "content": {**json_content("ResponseObject"), **event_content("ResponseEvent")},
    }
    base_operation = operation(
        "retrieve_response", "Retrieve a stored response.", "Responses", {"200": answer, **_GONE, **_WRONG, **_SLOW}
    )
    return {**base_operation, "parameters": query_parameters(RetrieveQuery)}


def _conversation_paths() -> dict[str, Any]:
    id, item = id_parameter("conversation_id"), id_parameter("item_id")
    post = {**_GONE, **_WRONG, "413": failure_response("The items are too large.")}
    return {
        conversations.PATH: {
            "post": _with_body("create_conversation", "Create a conversation.", "ConversationRequest", post)
        },
        conversations.CONVERSATION: {
            "parameters": [id],
            "get": _answer("retrieve_conversation", "Retrieve a conversation.", "ConversationObject", _GONE),
            "post": _with_body(
                "update_conversation", "Replace the metadata of a conversation.", "ConversationUpdate", post
            ),
            "delete": _answer("remove_conversation", "Remove a conversation.", "ConversationDeleted", _GONE),
        },
        conversations.ITEMS: {
            "parameters": [id],
            "get": {
                **_answer("list_conversation_items", "List the items of a conversation.", "ItemList", _GONE | _WRONG),
                "parameters": query_parameters(ListItemsQuery),
            },
            "post": _with_body(
                "add_conversation_items", "Append items to a conversation.", "NewItems", post, "ItemList"
            ),
        },
        conversations.ITEM: {
            "parameters": [id, item],
            "get": _item_operation(),
            "delete": _answer(
                "remove_conversation_item", "Remove an item of a conversation.", "ConversationObject", _GONE
            ),
        },
    }


def _item_operation() -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}}
    item_response = {"description": "The item.", "content": content}
    return operation(
        "retrieve_conversation_item",
        "Retrieve an item of a conversation.",
        "Conversations",
        {"200": item_response, **_GONE},
    )


def _answer(id: str, summary: str, answer: str, failures: dict[str, Any]) -> dict[str, Any]:
    tag = "Conversations" if "conversation" in id else "Responses"
    success_response = {"description": summary, "content": json_content(answer)}
    return operation(id, summary, tag, {"200": success_response, **failures})


def _with_body(
    id: str, summary: str, body: str, failures: dict[str, Any], answer: str = "ConversationObject"
) -> dict[str, Any]:
    return {**_answer(id, summary, answer, failures), "requestBody": {"required": True, "content": json_content(body)}}
