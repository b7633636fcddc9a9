"""Errors of events, which clients know by codes of their own."""

from collections.abc import Container
from typing import Any, Literal

from omnibus.errors import BadRequest, NotFound, OmnibusError

#: Codes that clients look for.
ACTIVE_RESPONSE = "conversation_already_has_active_response"
NO_ACTIVE_RESPONSE = "response_cancel_not_active"
EMPTY_COMMIT = "input_audio_buffer_commit_empty"
SESSION_EXPIRED, IDLE_TIMEOUT = "session_expired", "session_idle_timeout"


class EventRefused(BadRequest):
    """An event that cannot be obeyed now; ``event_code`` is what its error says."""

    def __init__(self, message: str, event_code: str, param: str = "") -> None:
        super().__init__(message, param=param)
        self.event_code = event_code


def unknown_item_error(id: str, param: str) -> OmnibusError:
    """The error of an event about an item that is not there."""
    return NotFound(f"The conversation has no item {id[:128]!r}.", param=param)


def require_item(items: Container[str], id: str, action: Literal["retrieve", "truncate", "delete"]) -> None:
    """Raise ``EventRefused`` where ``id`` is none of ``items``, with the code that clients take for a race.

    An item may have been deleted when an event about it comes; pipecat, for one, ends a session at any other code.
    """
    if id not in items:
        raise EventRefused(
            f"The conversation has no item {id[:128]!r}.", f"item_{action}_invalid_item_id", param="item_id"
        )


def describe_error(error: OmnibusError) -> dict[str, Any]:
    """``type``, ``code``, ``message`` and ``param`` as events have them."""
    code = error.event_code if isinstance(error, EventRefused) else error.code
    return {"type": error.kind, "code": code, "message": error.message, "param": error.param or None}
