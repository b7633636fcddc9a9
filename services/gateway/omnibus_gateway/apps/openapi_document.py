"""OpenAPI of the app routes, with a path for each registered app."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from omnibus.app_record import AppRecord
from omnibus_gateway.apps import response_schemas
from omnibus_gateway.apps.routes import APP, APPS, TASKS
from omnibus_gateway.openai.chat_request import AppChatRequest

_REF = "#/components/schemas/{name}"
_SHAPES = (
    response_schemas.AppRequest,
    response_schemas.AppDetail,
    response_schemas.AppList,
    response_schemas.AppDeleted,
    response_schemas.TaskList,
)
#: Characters that the name of a schema cannot have.
_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9._-]+")
#: Maximum depth of a schema: it comes from an app, and every client of the document gets it.
_MAX_SCHEMA_DEPTH = 64

_FAILURES = {
    "400": "The request is invalid.",
    "401": "The token is missing or wrong.",
    "403": "Disabled at this gateway; the message names the setting.",
    "404": "Unknown app.",
    "409": "The name or the model is in use, or another request changed the app first.",
    "504": "The app did not load, or its own unit tasks got no executors in time.",
}
_FAILURES_OF_A_CALL = {
    "400": "The app rejects the request.",
    "404": "Unknown app.",
    "429": "Overloaded: try again after Retry-After seconds.",
    "502": "The app or a stage failed on this request.",
    "503": "No worker or no live executor for a stage.",
    "504": "The deadline passed.",
}


def add_app_routes(document: dict[str, Any], apps: Iterable[AppRecord]) -> dict[str, Any]:
    """Copy ``document``, and add the routes of apps."""
    apps = list(apps)
    shapes = (*_SHAPES, AppChatRequest) if any(app.chat for app in apps) else _SHAPES
    _, components = msgspec.json.schema_components(shapes, ref_template=_REF)
    paths = {**document.get("paths", {}), **_control_paths()}
    schemas = {**document.get("components", {}).get("schemas", {}), **components}
    for app in (each for each in apps if each.invocable):
        request, response = (
            _move_definitions(schema, f"{app.name}.{side}", schemas)
            for schema, side in ((app.request, "request"), (app.response, "response"))
        )
        request_schema = _schema_ref("AppChatRequest") if app.chat else request
        paths[f"{APPS}/{app.name}/invoke"] = _invoke_path(app, request_schema, response)
    return {**document, "paths": paths, "components": {**document.get("components", {}), "schemas": schemas}}


def _control_paths() -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    body = {"required": True, **_json_content(_schema_ref("AppRequest"))}
    return {
        APPS: {
            "get": _operation("list_apps", "The registered apps.", _schema_ref("AppList")),
            "post": _operation("register_app", "Register an app.", _schema_ref("AppDetail"), "201", requestBody=body),
        },
        APP: {
            "parameters": [name],
            "get": _operation("show_app", "One app.", _schema_ref("AppDetail")),
            "put": _operation(
                "update_app", "Reload an app from its source or a new one.", _schema_ref("AppDetail"), requestBody=body
            ),
            "delete": _operation("unregister_app", "Unregister an app; requests finish.", _schema_ref("AppDeleted")),
        },
        TASKS: {"get": _operation("list_tasks", "Unit tasks, their apps and executors.", _schema_ref("TaskList"))},
    }


def _operation(id: str, summary: str, answer: dict[str, Any], status: str = "200", **more: Any) -> dict[str, Any]:
    failures = _FAILURES if id not in ("list_apps", "show_app", "list_tasks") else {"404": _FAILURES["404"]}
    responses = {status: {"description": "Done.", **_json_content(answer)}}
    return {
        "operationId": id,
        "summary": summary,
        "tags": ["Apps"],
        "responses": {**responses, **_failure_responses(failures)},
        **more,
    }


def _invoke_path(app: AppRecord, request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    kind = "text/event-stream" if app.streams else "application/json"
    parts = " One server-sent event for each part, then `[DONE]`." if app.streams else ""
    return {
        "post": {
            "operationId": f"invoke_{_INVALID_NAME_CHARS.sub('_', app.name)}",
            "summary": (app.doc.strip().splitlines() or [f"Call the app {app.name}."])[0],
            "description": app.doc,
            "tags": ["Apps"],
            "requestBody": {"required": True, **_json_content(request)},
            "responses": {
                "200": {"description": f"The response of the app.{parts}", "content": {kind: {"schema": response}}},
                **_failure_responses(_FAILURES_OF_A_CALL),
            },
        }
    }


def _failure_responses(failures: dict[str, str]) -> dict[str, Any]:
    return {
        status: {"description": text, **_json_content(_schema_ref("ErrorBody"))} for status, text in failures.items()
    }


def _json_content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _schema_ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(name=name)}


def _move_definitions(schema: dict[str, Any], prefix: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """Prepare ``schema`` for the document: move its ``$defs`` to ``schemas``, under names with ``prefix``."""
    definitions = schema.get("$defs")
    names = (
        {name: _INVALID_NAME_CHARS.sub("_", f"{prefix}.{name}") for name in definitions}
        if isinstance(definitions, dict)
        else {}
    )
    for name, moved_name in names.items():
        schemas[moved_name] = _rewrite_references(schema["$defs"][name], names, 0)
    return dict(_rewrite_references({key: value for key, value in schema.items() if key != "$defs"}, names, 0))


def _rewrite_references(value: Any, names: dict[str, str], depth: int) -> Any:
    """Rewrite references to the moved definitions, and drop all others."""
    if depth > _MAX_SCHEMA_DEPTH:
        return {}
    if isinstance(value, list):
        return [_rewrite_references(entry, names, depth + 1) for entry in value]
    if not isinstance(value, dict):
        return value
    left = {key: entry for key, entry in value.items() if key != "$ref" and not _is_discriminator(entry)}
    entries = {key: _rewrite_references(entry, names, depth + 1) for key, entry in left.items()}
    target = value.get("$ref")
    if isinstance(target, str):
        name = names.get(target.removeprefix("#/$defs/"))
        return {**entries, **_schema_ref(name)} if name is not None else entries
    return entries


def _is_discriminator(value: Any) -> bool:
    """Return True for the table of a discriminator: its references are plain strings, and optional."""
    return isinstance(value, dict) and value.keys() == {"mapping", "propertyName"}
