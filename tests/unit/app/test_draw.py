"""Drawing an app's graph without services, and errors of every request."""

import argparse
import json
from pathlib import Path
from textwrap import dedent

import pytest

from omnibus.cli.app_check import check_app
from omnibus.errors import BadRequest

HEAD = """
from pydantic import BaseModel
from omnibus.task import MLLM, ChatInput, ChatOutput, CompositeTask, Think
from omnibus.task.library import ThinkInput
THINK = Think(model="m", component="thinker")
class Question(BaseModel):
    text: str
    count: int = 2
    kind: Kind
"""
ASKS = """
class Ask(CompositeTask):
    model: Think = THINK
    def invoke(self, request):
        {body}
ASK = Ask()
async def serve(request: Question):
    return await ASK(request)
"""
KIND = "from enum import Enum\nclass Kind(str, Enum):\n    big = 'big'\n"


async def check_code(directory: Path, code: str, request: str | None = None) -> None:
    (directory / "asks.py").write_text(KIND + HEAD + code)
    target = str(directory / "asks.py")
    await check_app(argparse.Namespace(target=target, upload=None, request=request, json=True))


async def test_the_graph_of_a_request_that_is_made_up_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    body = "[self.model.invoke(ThinkInput(messages=[{'role': 'user', 'content': request.text}])) for _ in range(request.count)]"
    await check_code(tmp_path, ASKS.format(body=body + "; return self.model.invoke(ThinkInput(messages=[]))"))

    report = json.loads(capsys.readouterr().out)
    assert report["sample"] == {"text": "text", "kind": "big"}
    assert report["graph"] == [{"task": "think-m-thinker", "uses": [], "pinned": ""}] * 3


async def test_it_is_drawn_for_the_request_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    body = "return [self.model.invoke(ThinkInput(messages=[])) for _ in range(request.count)][0]"
    await check_code(tmp_path, ASKS.format(body=body), '{"text": "x", "count": 5, "kind": "big"}')

    assert len(json.loads(capsys.readouterr().out)["graph"]) == 5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return self.model.invoke(ThinkInput(messages=[])).text or 1", r"has no value while the graph is recorded.*asks.py:\d+: return self"),
        ("return self.model.invoke(ThinkInput(massages=[]))", r"asks.py:\d+: return self.model.invoke\(ThinkInput\(massages"),
        ("import random; return self.model.invoke(ThinkInput(messages=[], params={'seed': random.random()}))", r"asks.py:\d+"),
    ],
)  # fmt: skip
async def test_what_fails_for_every_request_is_said_with_its_line(tmp_path: Path, body: str, message: str):
    with pytest.raises(BadRequest, match=message):
        await check_code(tmp_path, ASKS.format(body=body))


async def test_a_request_that_it_does_not_take_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = ASKS.format(body="return self.model.invoke(ThinkInput(messages=[]))")

    with pytest.raises(BadRequest, match="`serve` does not take .* text: Input should be a valid string"):
        await check_code(tmp_path, code, '{"text": 1, "kind": "big"}')
    picky = "from typing import Annotated\nfrom pydantic import Field\n" + code.replace(
        "ASK = Ask()", "ASK = Ask()\nQuestion.__annotations__['text'] = Annotated[str, Field(pattern='^q')]\nclass Question(Question):\n    text: Annotated[str, Field(pattern='^q')]"
    )  # fmt: skip
    await check_code(tmp_path, picky)  # made up without a pattern: reported, but not an error
    assert "`serve` does not take" in json.loads(capsys.readouterr().out)["note"]


async def test_an_app_that_draws_nothing_has_no_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    await check_code(tmp_path, "async def serve(request: str) -> str:\n    return request\n")

    assert json.loads(capsys.readouterr().out)["graph"] == []


async def test_a_graph_is_drawn_for_each_function_and_each_declared_modality(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    functions = """
    from omnibus.app import App
    from omnibus.task.library import Embed, EmbedInput, TextEmbedding, TextInput, Vectors
    app = App(model="many", input_modalities=["text", "image"])
    async def serve(request: ChatInput) -> ChatOutput:
        return ChatOutput(text=(await THINK(ThinkInput(messages=request.messages))).text)
    async def embed(request: TextInput) -> Vectors:
        return await TextEmbedding(embedder=Embed(model="m", component="embedder"))(request)
    """
    await check_code(tmp_path, dedent(functions))

    report = json.loads(capsys.readouterr().out)
    assert [node["task"] for node in report["graph"]] == ["think-m-thinker"]
    assert {name: [node["task"] for node in graph] for name, graph in report["graphs"].items()} == {
        "embeddings": ["embed-m-embedder"],
        "chat with image": ["think-m-thinker"],
    }
