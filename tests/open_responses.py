"""Validate bodies and events against the specification of Open Responses.

The types are generated from the specification (``openresponses_types``), and validation is strict: no value is
converted.
"""

import json
from collections.abc import Sequence
from typing import Any

import openresponses_types as spec
from pydantic import BaseModel

#: Events by their type.
EVENTS: dict[str, type[BaseModel]] = {
    next(iter(each.model_fields["type"].annotation)).value: each  # type: ignore[call-overload, arg-type]
    for name, each in vars(spec).items()
    if name.endswith("StreamingEvent")
}


def check_response(body: Any) -> spec.ResponseResource:
    """Validate ``body``, JSON of a response. Raises ``pydantic.ValidationError``."""
    return spec.ResponseResource.model_validate_json(json.dumps(body), strict=True)


def check_events(events: Sequence[Any]) -> spec.ResponseResource:
    """Check ``events`` against the specification; return the final response.

    Their numbers must have no gaps.
    """
    for number, event in enumerate(events):
        parsed_event = EVENTS[event["type"]].model_validate_json(json.dumps(event), strict=True)
        assert parsed_event.model_dump()["sequence_number"] == number
    return check_response(events[-1]["response"])
