"""The routes of realtime sessions for the OpenAPI document, as far as that can say what a WebSocket carries."""

from typing import Any

from services.gateway.openai.openapi_operations import failure_response, json_content, operation, post_operation
from services.gateway.openai.realtime import client_secrets

REALTIME_SHAPES = (client_secrets.ClientSecretRequest, client_secrets.ClientSecret)


def realtime_paths() -> dict[str, Any]:
    """The path items."""
    opened = {
        "101": {"description": "A WebSocket, on which events go in both directions."},
        "426": failure_response("The request opens no WebSocket."),
    }
    text, kinds = {"type": "string"}, {"resumable": {"type": "boolean"}}
    names = ("model", "intent", "resumable", "resume", "last_event_id")
    parameters = [{"name": name, "in": "query", "schema": kinds.get(name, text)} for name in names]
    opening = {**operation("open_realtime", "Open or resume a session.", "Realtime", opened), "parameters": parameters}
    made = {"description": "The secret, and the session that it opens.", "content": json_content("ClientSecret")}
    return {
        client_secrets.PATH: {"get": opening},
        client_secrets.CLIENT_SECRETS: {
            "post": post_operation(
                "create_client_secret",
                "Make a key for a browser.",
                "Realtime",
                json_content("ClientSecretRequest"),
                made,
            )
        },
    }
