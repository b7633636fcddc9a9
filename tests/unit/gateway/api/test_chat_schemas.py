"""Schemas and tools reach the executor complete, in order, with their references."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnibus.executor.runner import Job
from omnibus.store import Store
from tests.unit.gateway.house import TEXT, VL, error, house, image, text, think

NODE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
        "answer": {"type": "boolean"},
    },
    "required": ["reasoning", "children", "answer"],
    "additionalProperties": False,
}
SCHEMA = {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "node", "schema": SCHEMA, "strict": True}}
TOOL = {"type": "function", "function": {"name": "grow", "parameters": SCHEMA}}
OVERLAP = {"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]}


class Noting:
    """A thinker that records its parameters."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}

    async def __call__(self, job: Job) -> None:
        self.params = await job.value("params")
        await think(job)


@pytest.fixture
def noting() -> Noting:
    return Noting()


@pytest.mark.parametrize("model", [TEXT, VL])
async def test_schemas_reach_the_model_in_their_order_with_their_references(
    tmp_path: Path, store: Store, noting: Noting, model: str
) -> None:
    async with house(tmp_path, store) as home:
        home.serve(model)
        if model == VL:
            await home.executor(model, "E", "vision")
        await home.executor(model, "L", "thinker", thinker=noting)
        content = [image(), text("look")] if model == VL else "look"

        response = await home.ask(model, content, response_format=FORMAT, tools=[TOOL])

        assert response.status_code == 200, response.text
        assert json.dumps(noting.params["structured_outputs"]["json"]) == json.dumps(SCHEMA)
        assert json.dumps(noting.params["tools"][0]["function"]["parameters"]) == json.dumps(SCHEMA)


async def test_a_schema_that_cannot_be_obeyed_is_a_400_with_its_place(tmp_path: Path, store: Store) -> None:
    schema = {"type": "object", "properties": {"a": OVERLAP}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with house(tmp_path, store) as home:
        home.serve(TEXT)
        await home.executor(TEXT, "L", "thinker")

        response = await home.ask(TEXT, "x", response_format=wanted)
        said = error(response)

        assert response.status_code == 400
        assert said["param"] == "response_format.json_schema.schema"
        assert "#/properties/a/oneOf" in said["message"]
