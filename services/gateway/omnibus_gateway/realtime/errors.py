"""Errors of realtime events, with codes that clients recognize."""

from collections.abc import Container
from typing import Any, Literal

from omnibus.errors import BadRequest, NotFound, OmnibusError

#: Codes that clients handle.
ACTIVE_RESPONSE = "conversation_already_has_active_response"
NO_ACTIVE_RESPONSE = "response_cancel_not_active"
EMPTY_COMMIT = "input_audio_buffer_commit_empty"
SESSION_EXPIRED, IDLE_TIMEOUT = "session_expired", "session_idle_timeout"


class EventRefused(BadRequest):
    """Event that cannot be applied now; ``event_code`` is the code of its error."""

    def __init__(self, message: str, event_code: str, param: str = "") -> None:
        super().__init__(message, param=param)
        self.event_code = event_code


def unknown_item_error(id: str, param: str) -> OmnibusError:
    """Return the error for an event about an unknown item."""
    return NotFound(f"The conversation has no item {id[:128]!r}.", param=param)


def require_item(items: Container[str], id: str, action: Literal["retrieve", "truncate", "delete"]) -> None:
    """Raise ``EventRefused`` with the code for a race if ``id`` is unknown.

    An item may have been deleted when an event about it arrives. Some clients, such as pipecat, end the session at any
    other code.
    """
    if id not in items:
        raise EventRefused(
            f"The conversation has no item {id[:128]!r}.", f"item_{action}_invalid_item_id", param="item_id"
        )


def describe_error(error: OmnibusError) -> dict[str, Any]:
    """Return the ``type``, ``code``, ``message`` and ``param`` of an error event."""
    code = error.event_code if isinstance(error, EventRefused) else error.code
    return {"type": error.kind, "code": code, "message": error.message, "param": error.param or None}
