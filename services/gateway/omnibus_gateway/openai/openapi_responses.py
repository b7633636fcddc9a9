"""The routes of completions, responses and conversations for the OpenAPI document."""

from typing import Any

from omnibus_gateway.openai import completions
from omnibus_gateway.openai.openapi_operations import (
    event_content,
    failure_response,
    id_parameter,
    json_content,
    operation,
    post_operation,
    query_parameters,
)
from omnibus_gateway.openai.responses import context, conversations
from omnibus_gateway.openai.responses.query import ListItemsQuery, RetrieveQuery
from omnibus_gateway.openai.responses.request import CANCEL, INPUT_ITEMS, PATH, RESPONSE, ResponseRequest
from omnibus_gateway.openai.responses.response import ItemList, ResponseDeleted, ResponseObject
from omnibus_gateway.openai.responses.sequence import ResponseEvent

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
