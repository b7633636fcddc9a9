"""The OpenAPI fragment is complete and fits into FastAPI's document."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from omnibus_gateway.openai.openapi import PATH, openapi_components, openapi_paths


def find_references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        yield from (name for value in node.values() for name in find_references(value))
    elif isinstance(node, list):
        yield from (name for value in node for name in find_references(value))


def test_every_reference_leads_to_a_schema() -> None:
    components = openapi_components()
    referenced_names = set(find_references([components, openapi_paths()]))

    assert referenced_names
    assert {name.removeprefix("#/components/schemas/") for name in referenced_names} <= set(components)


def test_the_request_schema_has_the_limits_that_are_enforced() -> None:
    properties = openapi_components()["ChatRequest"]["properties"]

    assert openapi_components()["ChatRequest"]["required"] == ["model", "messages"]
    assert properties["messages"]["minItems"] == 1
    assert {"minimum": 0.0, "maximum": 2.0, "type": "number"}.items() <= properties["temperature"]["anyOf"][0].items()


@pytest.mark.parametrize("path", [PATH, "/v1/images/generations", "/v1/images/edits"])
def test_the_path_has_json_events_and_every_failure(path: str) -> None:
    responses = openapi_paths()[path]["post"]["responses"]

    assert set(responses["200"]["content"]) == {"application/json", "text/event-stream"}
    assert set(responses) == {"200", "400", "401", "404", "413", "429", "502", "503", "504"}


def test_fastapi_takes_it_into_its_own_document() -> None:
    app = FastAPI()
    document = app.openapi()
    document["paths"].update(openapi_paths())
    document.setdefault("components", {}).setdefault("schemas", {}).update(openapi_components())

    assert json.loads(json.dumps(app.openapi()))["paths"][PATH]["post"]["operationId"] == "create_chat_completion"
