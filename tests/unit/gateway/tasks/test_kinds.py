"""Kinds of chats are recorded once for all clients; values outside the kind are recorded for each request."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from omnibus.graph import decode_invocation
from omnibus.task import MLLM, ChatInput, ChatOutput, CompositeTask
from omnibus_gateway.tasks.prepared_chat import TaskCache
from omnibus_gateway.tasks.resolve import create_chat_task
from tests.unit.gateway.house import (
    OMNI,
    PNG,
    TEXT,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_chat_answer,
    start_toy_gateway,
)
from tests.unit.gateway.samples import make_sample_picture

runs: Counter[str] = Counter()


class CountingChatTask(MLLM):
    def invoke(self, request: ChatInput) -> ChatOutput:
        runs["invoke"] += 1
        return super().invoke(request)


class Curious(CountingChatTask):
    """A task that branches on the content of its request."""

    def invoke(self, request: ChatInput) -> ChatOutput:
        assert request.messages
        return super().invoke(request)


_turns = itertools.count()


class Moody(CountingChatTask):
    """A task that depends on earlier requests. Every second pair of runs takes a different path."""

    def invoke(self, request: ChatInput) -> ChatOutput:
        other = next(_turns) % 4 > 1
        return CountingChatTask.invoke(self.model_copy(update={"encoder_fission": False if other else None}), request)


def use_task(home: ToyGateway, kind: type[CompositeTask]) -> None:
    """Serve all models by tasks of ``kind``."""

    def create_of_kind(name: str, plan: Any) -> CompositeTask:
        usual = create_chat_task(name, plan)
        return kind(**{field: getattr(usual, field) for field in ("encoders", "thinker")})

    home.chat._tasks = TaskCache(home.router, create_of_kind)
    runs.clear()


async def ask_files(home: ToyGateway, count: int) -> list[str]:
    files = [make_sample_picture("PNG", compress_level=level) for level in range(count)]  # other bytes, equal pixels
    return [
        read_chat_answer(await home.ask(VL, [make_text_part(f"image {index}"), make_image_part(file)]))
        for index, file in enumerate(files)
    ]


async def test_a_task_runs_for_the_first_request_of_a_kind_alone(home: ToyGateway):
    await home.all_of(TEXT)
    use_task(home, CountingChatTask)

    answers = [read_chat_answer(await home.ask(TEXT, word, seed=1)) for word in ("one", "two", "three")]

    assert answers == ["You said one [1] ", "You said two [1] ", "You said three [1] "]
    assert runs["invoke"] == 2  # to record, and to verify


async def test_images_have_handles_and_digests_of_their_own(home: ToyGateway):
    await home.all_of(VL)
    use_task(home, CountingChatTask)
    invocations: dict[str, Any] = {}

    def note_invocation(delivery: Any) -> None:
        invocation = decode_invocation(delivery.data)
        invocations[invocation.id] = invocation

    await home.bus.subscribe("omnibus.task.*.*", note_invocation)
    answers = await ask_files(home, 3)
    await home.emptied()

    assert len(set(answers)) == 3
    assert len({each.nodes[0].digest for each in invocations.values()}) == 3
    assert runs["invoke"] == 2


@pytest.mark.parametrize(
    "more", [{"max_tokens": 7}, {"modalities": ["text", "audio"], "audio": {"voice": "Ethan", "format": "wav"}}]
)
async def test_another_kind_is_recorded_by_itself(home: ToyGateway, more: dict[str, Any]):
    await home.all_of(OMNI)
    kinds = home.chat._kinds
    await home.ask(OMNI, "hello")
    before = len(kinds._kinds)

    response = await home.ask(OMNI, "hello", **more)

    assert response.status_code == 200
    assert len(kinds._kinds) == before + 1


async def test_a_new_plan_is_a_new_beginning(home: ToyGateway):
    await home.all_of(TEXT)
    await home.ask(TEXT, "one")
    use_task(home, CountingChatTask)

    home.serve(TEXT)
    read_chat_answer(await home.ask(TEXT, "two"))

    assert runs["invoke"] == 2


async def test_a_task_that_looks_at_its_request_is_recorded_for_each(home: ToyGateway):
    await home.all_of(TEXT)
    use_task(home, Curious)

    answers = [read_chat_answer(await home.ask(TEXT, word, seed=1)) for word in ("one", "two")]

    assert answers == ["You said one [1] ", "You said two [1] "]
    assert runs["invoke"] == 4


async def test_now_and_then_a_request_is_recorded_in_full(tmp_path: Path):
    async with start_toy_gateway(tmp_path, verify_every=2) as home:
        await home.all_of(TEXT)
        use_task(home, CountingChatTask)
        for _ in range(4):
            read_chat_answer(await home.ask(TEXT, "hello"))

    assert runs["invoke"] == 2 + 2 * 2


async def test_a_task_that_is_found_to_depend_on_more_has_no_kinds_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with start_toy_gateway(tmp_path, verify_every=2) as home:
        await home.all_of(TEXT)
        use_task(home, Moody)
        for _ in range(3):
            read_chat_answer(await home.ask(TEXT, "hello"))

    assert "have different graphs" in caplog.text
    assert runs["invoke"] == 2 + 2 + 2  # the kind, the second request, and the third alone


async def test_media_that_do_not_fit_are_refused_without_leaving_anything(home: ToyGateway):
    await home.all_of(VL)

    audio_response = await home.ask(
        VL, [make_text_part("x"), {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]
    )
    image_response = await home.ask(VL, [make_text_part("x"), make_image_part(PNG)])

    assert (audio_response.status_code, image_response.status_code) == (400, 200)
    await home.emptied()
