"""Skeletons: a graph recorded with holes equals each request's own recording, or there is none."""

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from omnibus.errors import OmnibusError, PlaceholderError, ReplayMismatch
from omnibus.task import MLLM, ChatInput, ChatOutput, Encode, Omni, Talk, Think, Vocode, record
from omnibus.task.input_codec import Hole
from omnibus.task.result import Result
from omnibus.task.skeleton import Skeleton, record_skeleton
from tests.unit.task.tasks import ONE, TWO, NumberInput

_ENCODERS = {"image": Encode(model="m", component="vision")}
_THINKER = Think(model="m", component="thinker")
LOOKS = MLLM(encoders=_ENCODERS, thinker=_THINKER)
SPEAKS = Omni(
    encoders=_ENCODERS,
    thinker=_THINKER,
    talker=Talk(model="m", component="talker"),
    vocoder=Vocode(model="m", component="vocoder"),
)


def make_medium(number: int) -> dict[str, Any]:
    return {"$handle": {"id": number}, "modality": "image", "mime": "image/png", "sha256": f"{number:064x}"}


def make_chat(messages: Any, params: Any, *media: Any, speech: Any = None) -> ChatInput:
    images = ("image",) * len(media)
    return ChatInput.model_construct(
        messages=messages, params=params, media=media, modalities=images, tokens=(64,) * len(media), speech=speech,
        voice="Chelsie" if speech is not None else "", answer=100,
    )  # fmt: skip


def skeleton_of(invoke: Callable[[Any], Any], images: int, *, speaks: bool = False) -> Skeleton | None:
    """Return the skeleton of chats with ``images`` images; its holes are messages, params, speech, and the images."""
    holes = [Hole() for _ in range(3 + images)]
    messages, params, speech, *media = holes
    return record_skeleton(invoke, make_chat(messages, params, *media, speech=speech if speaks else None), holes)


@pytest.mark.parametrize(
    ("task", "media", "speech"),
    [
        (LOOKS, (), None),
        (LOOKS, (make_medium(1), make_medium(2)), None),
        (LOOKS, (make_medium(1), make_medium(1)), None),  # equal calls have different random numbers
        (SPEAKS, (make_medium(3),), msgspec.Raw(b'{"top_k":1}')),
    ],
    ids=["text", "two images", "the same image twice", "speech"],
)
def test_a_filled_skeleton_is_the_graph_that_the_request_would_have_recorded(task: Any, media: Any, speech: Any):
    messages, params = msgspec.Raw(b'[{"role":"user","content":"hi"}]'), msgspec.Raw(b'{"max_tokens":100}')
    skeleton = skeleton_of(task.invoke, len(media), speaks=speech is not None)
    assert skeleton is not None

    segment = skeleton.fill([messages, params, speech, *media])

    assert segment == record(task.invoke, make_chat(messages, params, *media, speech=speech))


def test_filling_leaves_nothing_behind():
    skeleton = skeleton_of(LOOKS.invoke, 1)
    assert skeleton is not None
    first = skeleton.fill([msgspec.Raw(b"[1]"), msgspec.Raw(b"{}"), None, make_medium(1)])

    second = skeleton.fill([msgspec.Raw(b"[2]"), msgspec.Raw(b"{}"), None, make_medium(2)])

    assert first.nodes[0].inputs["media"] == make_medium(1)
    assert second.nodes[0].inputs["media"] == make_medium(2)
    assert first.nodes[0].digest != second.nodes[0].digest


async def test_the_answer_has_the_results_of_its_own_request():
    skeleton = skeleton_of(SPEAKS.invoke, 0, speaks=True)
    assert skeleton is not None
    outputs = skeleton.segment.outputs
    sources: list[dict[tuple[int, str], Any]] = [{origin: object() for origin in outputs} for _ in range(2)]

    answers = [skeleton.bind_answer(each) for each in sources]

    for answer, source in zip(answers, sources, strict=True):
        assert isinstance(answer, ChatOutput)
        assert (answer.text.claim_source(), answer.audio.claim_source()) == (source[0, "text"], source[2, "audio"])  # type: ignore[union-attr]


def test_a_request_for_text_alone_has_no_audio():
    skeleton = skeleton_of(SPEAKS.invoke, 0)

    assert skeleton is not None
    assert skeleton.bind_answer({}).audio is None


class BranchingMLLM(MLLM):
    """A task that branches on the content of a request."""

    how: Any = None

    def invoke(self, request: ChatInput) -> ChatOutput:
        self.how(request)
        return super().invoke(request)


def _ignore_placeholder(look: Callable[[], Any]) -> None:
    with suppress(PlaceholderError):
        look()


@pytest.mark.parametrize(
    "look",
    [
        lambda request: len(request.messages),
        lambda request: bool(request.params),
        lambda request: request.params["max_tokens"],
        lambda request: request.params == {},
        lambda request: request.media[0] == request.media[1],
        lambda request: isinstance(request.messages, list),
        lambda request: request.media[0].get("mime"),
        lambda request: hash(request.params),
        lambda request: {request.params},
        lambda request: f"{request.messages}",
        lambda request: repr(request.messages),
        lambda request: "x" in request.messages,
        lambda request: bytes(request.messages),
        lambda request: list(request.messages),
        lambda request: copy.deepcopy(request.params),
        lambda request: getattr(request.params, "max_tokens", 0),
        lambda request: _ignore_placeholder(lambda: len(request.messages)),
    ],
)
def test_a_task_that_looks_at_a_literal_has_no_skeleton(look: Callable[[ChatInput], Any]):
    task = BranchingMLLM(encoders=_ENCODERS, thinker=_THINKER, how=look)

    with pytest.raises(OmnibusError, match="reads a literal"):
        skeleton_of(task.invoke, 2)


def test_every_operator_that_a_result_refuses_is_refused_by_a_hole():
    operator_names = [name for name, method in vars(Result).items() if method is vars(Result)["__len__"]]

    assert len(operator_names) > 50
    for name in operator_names:
        if name.startswith("__"):
            with pytest.raises(PlaceholderError):
                getattr(Hole, name)(Hole())


def test_a_hole_inside_of_another_value_has_no_skeleton():
    def invoke(request: ChatInput) -> Any:
        return ONE.invoke(NumberInput(x=1, many=[request.messages])).n

    with pytest.raises(OmnibusError):
        skeleton_of(invoke, 0)


class NumbersAnswer(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    found: Any


@pytest.mark.parametrize(
    "answer",
    [
        lambda made: [made.n],
        lambda made: NumbersAnswer(found=[made.n]),
        lambda made: NumbersAnswer(found=made.parts.transform(str)),
        lambda made: NumbersAnswer(found="no result"),
    ],
    ids=["no model", "inside of a list", "transformed", "another value"],
)
def test_an_answer_of_other_things_than_results_has_no_skeleton(answer: Callable[[Any], Any]):
    def invoke(request: ChatInput) -> Any:
        return answer(ONE.invoke(NumberInput(x=1)))

    assert skeleton_of(invoke, 0) is None


def test_a_task_that_differs_on_replay_has_no_skeleton():
    tasks = iter([ONE, TWO])

    def invoke(request: ChatInput) -> Any:
        return NumbersAnswer(found=next(tasks).invoke(NumberInput(x=1)).n)

    with pytest.raises(ReplayMismatch):
        skeleton_of(invoke, 0)
