"""Building blocks of operations in the OpenAPI document."""

from typing import Any

import msgspec

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
