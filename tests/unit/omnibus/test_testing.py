"""Apps and tasks run in a test without services: own tasks as they are, others as scripted plays."""

import importlib.util
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import router, shout
from omnibus.errors import BadRequest, PlaceholderError, ProtocolError, StageFailed
from omnibus.task import (
    MLLM,
    Audio,
    ChatInput,
    CompositeTask,
    Encode,
    Omni,
    Stream,
    Talk,
    TaskInput,
    TaskOutput,
    Tensor,
    Think,
    UnitTask,
    Vocode,
    tool,
)
from omnibus.task.library import Codes
from omnibus.testing import LocalRuntime

THINKER = Think(model="m", component="thinker")
CHAT = MLLM(encoders={}, thinker=THINKER)
OMNI = Omni(
    encoders={},
    thinker=THINKER,
    talker=Talk(model="m", component="talker"),
    vocoder=Vocode(model="m", component="vocoder"),
)


class Photo(TaskInput):
    pixels: Tensor | None = None
    words: Stream[str] | None = None
    scale: int = 1


class SeenPhoto(TaskOutput):
    pixels: Tensor
    words: Stream[str]


class Grow(UnitTask[Photo, SeenPhoto]):
    async def run(self, photo: Photo) -> SeenPhoto:
        pixels = np.ones(2, np.float32) if photo.pixels is None else photo.pixels
        texts = [each async for each in photo.words] if photo.words is not None else ["seed"]
        return SeenPhoto(pixels=pixels * photo.scale, words=[*texts, "grown"])


class GrowTwice(CompositeTask[Photo, SeenPhoto]):
    grow: Grow = Grow()

    def invoke(self, request: Photo) -> SeenPhoto:
        first = self.grow.invoke(request)
        return self.grow.invoke(Photo(pixels=first.pixels, words=first.words, scale=3))


async def test_an_app_runs_in_milliseconds_with_its_own_tasks():
    began = time.monotonic()
    with LocalRuntime(shout) as runtime:
        words = [word async for word in shout.serve(shout.Said(text="hello out there"))]

    assert words == ["HELLO ", "OUT ", "THERE! "] * 2
    assert [call.task for call in runtime.calls] == ["shout", "echo"]
    assert time.monotonic() - began < 30  # no process was started


async def test_arrays_and_streams_go_from_task_to_task():
    with LocalRuntime(GrowTwice()):
        grown_photo = await GrowTwice()(Photo(scale=2))
        assert (await grown_photo.pixels).tolist() == [6.0, 6.0]
        assert [word async for word in grown_photo.words] == ["seed", "grown", "grown"]


PLAYS: dict[str, Any] = {
    "canned": {"text": ["two ", "cats"]},
    "one text": {"text": "two cats"},
    "a function": lambda inputs: {"text": ["two ", f"{inputs.messages[0]['content']}s"]},
}


@pytest.mark.parametrize("play", PLAYS)
async def test_a_model_says_what_its_play_says(play: str):
    with LocalRuntime(CHAT, {Think: PLAYS[play]}) as runtime:
        answer = await CHAT(ChatInput.of("cat"))
        assert await answer.text == "two cats"

    assert runtime.calls[0].inputs["messages"][0]["content"] == "cat"


async def test_a_play_may_give_outputs_part_by_part_and_for_one_task_alone():
    def spell_letters(inputs: Any) -> Iterator[dict[str, str]]:
        for letter in "abc":
            yield {"text": letter}

    async def answer_later(inputs: Any) -> AsyncIterator[dict[str, str]]:
        yield {"text": "later"}

    other = Think(model="other", component="thinker")
    with LocalRuntime([CHAT, other], {Think: spell_letters, other.name: answer_later}):
        assert [chunk.text async for chunk in (await CHAT(ChatInput.of("x"))).text] == ["a", "b", "c"]
        assert await (await MLLM(encoders={}, thinker=other)(ChatInput.of("x"))).text == "later"


async def test_a_speaking_model_is_played_stage_by_stage():
    samples = Audio(array=np.full(240, 0.5, np.float32))

    def play_talk(inputs: Any) -> dict[str, Any]:
        assert inputs.voice == "Ann"
        return {"codes": [Codes(codes=[1, 2])]}

    async def play_vocode(inputs: Any) -> AsyncIterator[dict[str, Any]]:
        async for _ in inputs.codes:
            yield {"audio": samples}

    plays = {Think: {"text": ["hi"]}, Talk: play_talk, Vocode: play_vocode}
    with LocalRuntime(OMNI, plays):
        answer = await OMNI(ChatInput.of("x").model_copy(update={"speech": {}, "voice": "Ann"}))
        assert await answer.text == "hi"
        assert (await answer.audio).array.shape == (240,)


@pytest.mark.parametrize(("point", "path_name"), [(0.0, "EL"), (0.5, "E>L"), (0.9, "E>EL")])
async def test_choices_follow_the_point(point: float, path_name: str):
    request = ChatInput.of("x").model_copy(update={"media": ({},), "modalities": ("image",), "tokens": (4,)})

    with LocalRuntime(
        router, {Think: {"text": "hi"}, Encode: {"embedding": np.zeros((1, 4), np.float32)}}, point=point
    ) as runtime:
        assert await (await router.serve(request)).text == "hi"

    assert runtime.calls[-1].pinned == f"path:{path_name}"


class Deciding(CompositeTask[ChatInput, Any]):
    chat: MLLM = CHAT

    async def invoke(self, request: ChatInput) -> Any:
        first = await self.chat.invoke(request).text
        extra = await tool(lambda: 7)
        return self.chat.invoke(ChatInput.of(f"{first}{extra}"))


async def test_graphs_that_grow_run_too():
    with LocalRuntime(CHAT, {Think: lambda inputs: {"text": f"<{inputs.messages[0]['content']}>"}}):
        answer = await Deciding()(ChatInput.of("a"))
        assert await answer.text == "<<a>7>"


class LookingChat(CompositeTask[ChatInput, Any]):
    chat: MLLM = CHAT

    def invoke(self, request: ChatInput) -> Any:
        answer = self.chat.invoke(request)
        return answer if answer.text else None


async def test_mistakes_are_those_of_a_gateway():
    with LocalRuntime(CHAT, {Think: {"text": "hi"}}), pytest.raises(PlaceholderError, match="has no value while"):
        await LookingChat()(ChatInput.of("x"))
    with LocalRuntime(CHAT), pytest.raises(BadRequest, match=r"LocalRuntime\(..., {Think: {...}}\)"):
        await CHAT(ChatInput.of("x"))
    with LocalRuntime(Grow()), pytest.raises(BadRequest, match="unknown unit task 'think-m-thinker'"):
        await CHAT(ChatInput.of("x"))


async def test_what_a_task_raises_reaches_the_reader():
    def raise_key_error(inputs: Any) -> Any:
        raise KeyError("nothing")

    with (
        LocalRuntime(CHAT, {Think: raise_key_error}),
        pytest.raises(StageFailed, match="think-m-thinker failed: KeyError"),
    ):
        await (await CHAT(ChatInput.of("x"))).text


async def test_an_output_that_a_play_leaves_out_says_so_where_it_is_read():
    with LocalRuntime(Grow(), {Grow: {"words": ["a"]}}):
        grown_photo = await Grow()(Photo())
        assert await grown_photo.words == "a"
        with pytest.raises(ProtocolError):
            await grown_photo.pixels


async def test_the_page_about_apps_shows_a_test_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parents[3] / "docs" / "apps.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    caption, declared, test = (
        next(block for block in blocks if name in block) for name in ("class Caption", "CAPTION =", "def test_")
    )
    (tmp_path / "my_app.py").write_text(f"{caption}\n{declared}")
    (tmp_path / "shown.py").write_text(test)
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.spec_from_file_location("shown", tmp_path / "shown.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    await module.test_it_answers_in_capitals()
