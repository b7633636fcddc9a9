"""The OpenAPI document of apps: every reference resolves, for any schemas."""

import json
from typing import Any

import msgspec
from pydantic import BaseModel, Field

from omnibus.app_record import AppRecord, AppSource
from omnibus_gateway.apps import openapi_document


class PoemLine(BaseModel):
    words: list[str]


class Chapter(BaseModel):
    title: str
    lines: list[PoemLine]
    parts: list["Chapter"] = Field(default=[], description="Chapters in it.")


def make_app(name: str = "poem", request: dict[str, Any] | None = None, **more: Any) -> AppRecord:
    streams, doc = more.get("streams", False), more.get("doc", "")
    source = AppSource("import", name)
    return AppRecord(name, 1, source, "", "", (), request or {}, more.get("response", {}), streams, doc, 1.0, 1.0)


def find_targets(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [target for entry in value.values() for target in find_targets(entry)]
    return [found for entry in value for found in find_targets(entry)] if isinstance(value, list) else []


def leads_to_schema(whole: dict[str, Any], target: str) -> bool:
    node: Any = whole
    for name in target.removeprefix("#/").split("/"):
        node = node.get(name) if isinstance(node, dict) else None
    return node is not None


BASE = {"paths": {"/health": {}}, "components": {"schemas": {"ErrorBody": {"type": "object"}}}}


def test_nested_and_recursive_types_are_part_of_the_document():
    schema = Chapter.model_json_schema()

    whole = openapi_document.add_app_routes(
        BASE, [make_app(request=schema, response=schema), make_app("novel", schema)]
    )

    references = find_targets(whole)
    assert references
    assert [target for target in references if not leads_to_schema(whole, target)] == []
    assert "poem.request.Chapter" in whole["components"]["schemas"]
    assert "$defs" not in json.dumps(whole)


def test_two_apps_may_have_other_types_of_one_name():
    first, second = ({"$defs": {"Line": {"title": name}}, "$ref": "#/$defs/Line"} for name in ("first", "second"))

    whole = openapi_document.add_app_routes(BASE, [make_app("one", first), make_app("two", second)])

    for name, title in (("one", "first"), ("two", "second")):
        schema = whole["paths"][f"/v1/apps/{name}/invoke"]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ]
        assert whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]] == {"title": title}


def test_references_that_lead_elsewhere_are_left_out():
    schema = {
        "properties": {"a": {"$ref": "http://evil.example/x"}, "b": {"$ref": "#/components/schemas/Gone"}},
        "discriminator": {"propertyName": "kind", "mapping": {"a": "#/$defs/A"}},
    }

    whole = openapi_document.add_app_routes(BASE, [make_app(request=schema)])

    assert "evil" not in json.dumps(whole)
    assert "Gone" not in json.dumps(whole)
    assert "mapping" not in json.dumps(whole)


def test_a_schema_without_end_is_cut():
    schema: dict[str, Any] = {}
    for _ in range(500):
        schema = {"items": schema}

    openapi_document.add_app_routes(BASE, [make_app(request=schema)])


def test_an_app_that_streams_says_so_and_its_doc_is_shown():
    whole = openapi_document.add_app_routes(BASE, [make_app(streams=True, doc="Writes poems.\n\nSlowly.")])

    operation = whole["paths"]["/v1/apps/poem/invoke"]["post"]
    assert operation["summary"] == "Writes poems."
    assert set(operation["responses"]["200"]["content"]) == {"text/event-stream"}


def test_the_document_before_stays_as_it_is():
    before = json.dumps(BASE)

    whole = openapi_document.add_app_routes(BASE, [make_app()])

    assert json.dumps(BASE) == before
    assert "/health" in whole["paths"]
    assert "/v1/apps/{name}" in whole["paths"]


def test_an_app_that_takes_chats_is_sent_chat_requests_that_need_no_model():
    whole = openapi_document.add_app_routes(BASE, [msgspec.structs.replace(make_app(), chat=True)])

    body = whole["paths"]["/v1/apps/poem/invoke"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    chat = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    assert chat["required"] == ["messages"]
    assert {"messages", "model", "max_tokens", "seed"} <= set(chat["properties"])
    assert [target for target in find_targets(whole) if not leads_to_schema(whole, target)] == []
