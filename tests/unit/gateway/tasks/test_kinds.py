"""Kinds of chats are recorded once for all clients; values outside the kind are recorded for each request."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from omnibus.graph import decode_invocation
from omnibus.task import MLLM, ChatInput, ChatOutput, CompositeTask
from omnibus_gateway.tasks.resolve import TaskCache, create_chat_task
from tests.unit.gateway.house import OMNI, PNG, TEXT, VL, House, answered, house, image, text
from tests.unit.gateway.samples import picture

runs: Counter[str] = Counter()


class Counted(MLLM):
    def invoke(self, request: ChatInput) -> ChatOutput:
        runs["invoke"] += 1
        return super().invoke(request)


class Curious(Counted):
    """A task that branches on the content of its request."""

    def invoke(self, request: ChatInput) -> ChatOutput:
        assert request.messages
        return super().invoke(request)


_turns = itertools.count()


class Moody(Counted):
    """A task that depends on earlier requests. Every second pair of runs takes a different path."""

    def invoke(self, request: ChatInput) -> ChatOutput:
        other = next(_turns) % 4 > 1
        return Counted.invoke(self.model_copy(update={"encoder_fission": False if other else None}), request)


def use_task(home: House, kind: type[CompositeTask]) -> None:
    """Serve all models by tasks of ``kind``."""

    def create(name: str, plan: Any) -> CompositeTask:
        usual = create_chat_task(name, plan)
        return kind(**{field: getattr(usual, field) for field in ("encoders", "thinker")})

    home.chat._tasks = TaskCache(home.router, create)
    runs.clear()


async def ask_files(home: House, count: int) -> list[str]:
    files = [picture("PNG", compress_level=level) for level in range(count)]  # other bytes, equal pixels
    return [answered(await home.ask(VL, [text(f"image {index}"), image(file)])) for index, file in enumerate(files)]


async def test_a_task_runs_for_the_first_request_of_a_kind_alone(home: House):
    await home.all_of(TEXT)
    use_task(home, Counted)

    said = [answered(await home.ask(TEXT, word, seed=1)) for word in ("one", "two", "three")]

    assert said == ["You said one [1] ", "You said two [1] ", "You said three [1] "]
    assert runs["invoke"] == 2  # to record, and to verify


async def test_images_have_handles_and_digests_of_their_own(home: House):
    await home.all_of(VL)
    use_task(home, Counted)
    sent: dict[str, Any] = {}

    def note(delivery: Any) -> None:
        invocation = decode_invocation(delivery.data)
        sent[invocation.id] = invocation

    await home.bus.subscribe("omnibus.task.*.*", note)
    said = await ask_files(home, 3)
    await home.emptied()

    assert len(set(said)) == 3
    assert len({each.nodes[0].digest for each in sent.values()}) == 3
    assert runs["invoke"] == 2


@pytest.mark.parametrize(
    "more", [{"max_tokens": 7}, {"modalities": ["text", "audio"], "audio": {"voice": "Ethan", "format": "wav"}}]
)
async def test_another_kind_is_recorded_by_itself(home: House, more: dict[str, Any]):
    await home.all_of(OMNI)
    kinds = home.chat._kinds
    await home.ask(OMNI, "hello")
    before = len(kinds._kinds)

    response = await home.ask(OMNI, "hello", **more)

    assert response.status_code == 200
    assert len(kinds._kinds) == before + 1


async def test_a_new_plan_is_a_new_beginning(home: House):
    await home.all_of(TEXT)
    await home.ask(TEXT, "one")
    use_task(home, Counted)

    home.serve(TEXT)
    answered(await home.ask(TEXT, "two"))

    assert runs["invoke"] == 2


async def test_a_task_that_looks_at_its_request_is_recorded_for_each(home: House):
    await home.all_of(TEXT)
    use_task(home, Curious)

    said = [answered(await home.ask(TEXT, word, seed=1)) for word in ("one", "two")]

    assert said == ["You said one [1] ", "You said two [1] "]
    assert runs["invoke"] == 4


async def test_now_and_then_a_request_is_recorded_in_full(tmp_path: Path):
    async with house(tmp_path, verify_every=2) as home:
        await home.all_of(TEXT)
        use_task(home, Counted)
        for _ in range(4):
            answered(await home.ask(TEXT, "hello"))

    assert runs["invoke"] == 2 + 2 * 2


async def test_a_task_that_is_found_to_depend_on_more_has_no_kinds_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with house(tmp_path, verify_every=2) as home:
        await home.all_of(TEXT)
        use_task(home, Moody)
        for _ in range(3):
            answered(await home.ask(TEXT, "hello"))

    assert "have different graphs" in caplog.text
    assert runs["invoke"] == 2 + 2 + 2  # the kind, the second request, and the third alone


async def test_media_that_do_not_fit_are_refused_without_leaving_anything(home: House):
    await home.all_of(VL)

    refused = await home.ask(VL, [text("x"), {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}])
    taken = await home.ask(VL, [text("x"), image(PNG)])

    assert (refused.status_code, taken.status_code) == (400, 200)
    await home.emptied()
