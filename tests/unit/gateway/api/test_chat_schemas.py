"""Schemas and tools reach the executor complete, in order, with their references."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnibus.executor.runner import Job
from omnibus.store import Store
from tests.unit.gateway.house import (
    TEXT,
    VL,
    make_image_part,
    make_text_part,
    read_error_body,
    start_toy_gateway,
    write_chat_words,
)

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


class SchemaParamsRecorder:
    """A thinker that records its parameters."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}

    async def __call__(self, job: Job) -> None:
        self.params = await job.value("params")
        await write_chat_words(job)


@pytest.fixture
def params_recorder() -> SchemaParamsRecorder:
    return SchemaParamsRecorder()


@pytest.mark.parametrize("model", [TEXT, VL])
async def test_schemas_reach_the_model_in_their_order_with_their_references(
    tmp_path: Path, store: Store, params_recorder: SchemaParamsRecorder, model: str
) -> None:
    async with start_toy_gateway(tmp_path, store) as home:
        home.serve(model)
        if model == VL:
            await home.executor(model, "E", "vision")
        await home.executor(model, "L", "thinker", thinker=params_recorder)
        content = [make_image_part(), make_text_part("look")] if model == VL else "look"

        response = await home.ask(model, content, response_format=FORMAT, tools=[TOOL])

        assert response.status_code == 200, response.text
        assert json.dumps(params_recorder.params["structured_outputs"]["json"]) == json.dumps(SCHEMA)
        assert json.dumps(params_recorder.params["tools"][0]["function"]["parameters"]) == json.dumps(SCHEMA)


async def test_a_schema_that_cannot_be_obeyed_is_a_400_with_its_place(tmp_path: Path, store: Store) -> None:
    schema = {"type": "object", "properties": {"a": OVERLAP}}
    json_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with start_toy_gateway(tmp_path, store) as home:
        home.serve(TEXT)
        await home.executor(TEXT, "L", "thinker")

        response = await home.ask(TEXT, "x", response_format=json_format)
        details = read_error_body(response)

        assert response.status_code == 400
        assert details["param"] == "response_format.json_schema.schema"
        assert "#/properties/a/oneOf" in details["message"]
