"""Routes of realtime sessions for the OpenAPI document.

OpenAPI cannot describe the events on a WebSocket.
"""

from typing import Any

from omnibus_gateway.openai.openapi_operations import failure_response, json_content, operation, post_operation
from omnibus_gateway.openai.realtime import client_secrets

REALTIME_SHAPES = (client_secrets.ClientSecretRequest, client_secrets.ClientSecret)


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
        client_secrets.PATH: {"get": opening},
        client_secrets.CLIENT_SECRETS: {
            "post": post_operation(
                "create_client_secret",
                "Create a key for a browser.",
                "Realtime",
                json_content("ClientSecretRequest"),
                secret_response,
            )
        },
    }
