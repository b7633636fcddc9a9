"""Unit tasks with their own engine: the inputs of ``run``, and the handling of its outputs."""

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import BaseModel, Field

from omnibus.errors import BadRequest, StageFailed
from omnibus.graph import HANDLE
from omnibus.task import Stream, TaskInput, TaskOutput, Tensor, UnitTask
from omnibus.task.execute import execute_task
from omnibus.tensors.item import Item
from tests.unit.jobs import MemoryJob
from tests.unit.task.memory import Wire, WireJob


class Style(BaseModel):
    name: str
    depth: int = 1


class Given(TaskInput):
    text: str = "none"
    count: Annotated[int, Field(ge=0)] = 0
    style: Style | None = None
    styles: list[Style] = []
    voice: str | None = "low"
    picture: Tensor | None = None
    pictures: list[Tensor] = []
    named: dict[str, Any] = {}
    words: Stream[str] | None = None
    rows: Stream[Tensor] | None = None


class Said(TaskOutput):
    seen: dict[str, Any]
    words: Stream[str]
    picture: Tensor
    steps: Stream[list[int]]


ALL = ("seen", "words", "picture", "steps")


class Base(UnitTask[Given, Said]):
    pass


def wire(*items: Item) -> Wire:
    made = Wire()
    for item in items:
        made.feed(item)
    made.close()
    return made


def array(*values: float) -> Item:
    return Item({}, np.array(values))


async def ran(task: Any, wants: tuple[str, ...] = ALL, **inputs: Any) -> MemoryJob:
    job = WireJob({"words": None, "rows": None, **inputs}, wants)
    await execute_task(task, job)
    return job


def told(job: MemoryJob, output: str) -> list[Any]:
    return [item.data if item.array is None else item.array.tolist() for item in job.outputs[output].items]


# Inputs of run


class Look(Base):
    async def run(self, given: Given) -> Said:
        assert type(given) is Given
        seen = {name: getattr(given, name) for name in Given.model_fields if name not in ("words", "rows")}
        return Said(seen={"kinds": {name: type(value).__name__ for name, value in seen.items()}, "text": given.text}, words=[], picture=[0], steps=[])  # fmt: skip


async def kinds(**inputs: Any) -> dict[str, str]:
    job = await ran(Look(), **inputs)
    return dict(told(job, "seen")[0]["kinds"])


async def test_inputs_come_as_they_are_declared():
    found = await kinds(
        text="a", count=3, style={"name": "plain"}, styles=[{"name": "a"}], picture=wire(array(1, 2)),
        pictures=[wire(array(1))], named={"a": wire(array(1))},
    )  # fmt: skip

    assert found["style"] == "Style"
    assert (found["picture"], found["pictures"], found["named"]) == ("ndarray", "list", "dict")


async def test_what_was_not_given_has_its_default():
    found = await kinds()

    assert (found["text"], found["style"], found["styles"], found["voice"]) == ("str", "NoneType", "list", "str")


async def test_a_none_that_was_given_stays_none():
    assert (await kinds(voice=None))["voice"] == "NoneType"


async def test_a_value_of_another_task_is_its_value():
    found = await kinds(text=wire(Item({"value": "hi"})), style=wire(Item({"name": "a", "depth": 2})))

    assert (found["text"], found["style"]) == ("str", "Style")


async def test_a_tensor_with_data_beside_it_is_the_tensor():
    assert (await kinds(picture=wire(Item({"width": 2}, np.ones(2)))))["picture"] == "ndarray"


async def test_media_by_handle_are_bytes():
    class Media(TaskInput):
        media: Any

    class Weigh(UnitTask[Media, Said]):
        async def run(self, given: Media) -> dict[str, Any]:
            return {"seen": {"bytes": int(given.media.sum())}}

    job = WireJob({"media": Item({"mime": "image/png"}, np.array([1, 2], np.uint8))}, ALL)
    await execute_task(Weigh(), job)

    assert told(job, "seen") == [{"bytes": 3}]
    assert HANDLE not in job.inputs


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"count": "many"}, "Given.count: Input should be a valid integer"),
        ({"count": -1}, "Given.count: .*greater than or equal to 0"),
        ({"style": {"depth": 1}}, "Given.style: Field required"),
        ({"count": wire(Item({"value": "many"}))}, "Given.count"),
    ],
)
async def test_inputs_that_do_not_fit_are_a_bad_request(inputs: dict[str, Any], said: str):
    with pytest.raises(BadRequest, match=said) as caught:
        await ran(Look(), **inputs)

    assert caught.value.param == next(iter(inputs))


class Follow(Base):
    async def run(self, given: Given) -> AsyncIterator[dict[str, Any]]:
        assert given.words is not None
        async for word in given.words:
            yield {"words": word + "!"}
        assert given.rows is None
        yield {"picture": np.ones(1)}


async def test_streams_are_followed_and_told_part_by_part():
    job = await ran(Follow(), words=wire(Item({"value": "a"}), Item({"value": "b"})))

    assert told(job, "words") == [{"value": "a!"}, {"value": "b!"}]
    assert told(job, "picture") == [[1.0]]
    assert job.outputs["words"].closed
    assert job.outputs["steps"].closed


async def test_a_stream_of_tensors_gives_arrays():
    class Sum(Base):
        async def run(self, given: Given) -> dict[str, Any]:
            assert given.rows is not None
            return {"seen": {"sum": sum([float(row.sum()) async for row in given.rows])}}

    job = await ran(Sum(), rows=wire(array(1, 2), array(3)))

    assert told(job, "seen") == [{"sum": 6.0}]


# Outputs of run


async def letters() -> AsyncIterator[str]:
    yield "x"
    yield "y"


class Whole(Base):
    async def run(self, given: Given) -> Said:
        return Said(seen={"value": 1, "b": None}, words=letters(), picture=np.float32(3), steps=[[1, 2], [3]])


async def test_outputs_may_be_given_all_at_once():
    job = await ran(Whole())

    assert told(job, "words") == [{"value": "x"}, {"value": "y"}]
    assert told(job, "steps") == [{"value": [1, 2]}, {"value": [3]}]
    assert told(job, "seen") == [{"value": {"value": 1, "b": None}}]
    assert told(job, "picture") == [[3.0]]


async def test_what_nobody_wants_is_not_sent():
    job = await ran(Whole(), wants=("words",))

    assert [output for output in ALL if job.outputs[output].items] == ["words"]


class Parts(Base):
    async def run(self, given: Given) -> AsyncIterator[Any]:
        yield {"steps": [1, 2], "words": "a"}
        yield {"steps": []}
        yield Said(seen={}, words=["b", "c"], picture=[1], steps=[[3]])


async def test_a_generator_yields_one_part_of_a_stream_even_if_it_is_a_list():
    job = await ran(Parts())

    assert told(job, "steps") == [{"value": [1, 2]}, {"value": []}, {"value": [3]}]
    assert told(job, "words") == [{"value": "a"}, {"value": "b"}, {"value": "c"}]


class Threaded(Base):
    def run(self, given: Given) -> dict[str, Any]:
        return {"seen": {"words": given.words, "thread": threading.current_thread() is threading.main_thread()}}


class Stepwise(Base):
    def run(self, given: Given) -> Iterator[dict[str, Any]]:
        for word in given.words or []:
            yield {"words": word}


async def test_a_plain_function_works_in_a_thread_and_gets_streams_as_lists():
    job = await ran(Threaded(), words=wire(Item({"value": "a"}), Item({"value": "b"})))

    assert told(job, "seen") == [{"words": ["a", "b"], "thread": False}]


async def test_a_plain_generator_is_told_step_by_step():
    job = await ran(Stepwise(), words=wire(Item({"value": "a"}), Item({"value": "b"})))

    assert told(job, "words") == [{"value": "a"}, {"value": "b"}]


@pytest.mark.parametrize("given", [None, {}, {"words": None, "picture": None}])
async def test_a_task_may_give_nothing(given: Any):
    class Silent(Base):
        async def run(self, _: Given) -> Any:
            return given

    job = await ran(Silent())

    assert not any(job.outputs[output].items for output in ALL)


async def test_what_is_no_mapping_is_the_first_output():
    class Short(Base):
        async def run(self, _: Given) -> Any:
            return ["a", 1]

    assert told(await ran(Short()), "seen") == [{"value": ["a", 1]}]


async def test_an_output_that_there_is_not_is_named_with_those_there_are():
    class Wrong(Base):
        async def run(self, _: Given) -> Any:
            return {"colour": 1}

    with pytest.raises(
        StageFailed, match="wrong returned the unknown output 'colour'; its outputs are seen, words, picture, steps"
    ):
        await ran(Wrong())


@pytest.mark.parametrize("odd", [{"a": object()}, {"a": b"\xff"}, {"a": np.ones(2)}, {"a": [float("inf")]}])
async def test_a_value_that_is_no_json_fails_with_its_type(odd: Any):
    class Odd(Base):
        async def run(self, _: Given) -> Any:
            return {"seen": odd}

    with pytest.raises(StageFailed, match="a value of type dict cannot be JSON"):
        await ran(Odd())


async def test_numbers_of_numpy_and_models_are_json():
    class Mixed(Base):
        async def run(self, _: Given) -> Any:
            return {"seen": {"n": np.int64(3), "style": Style(name="a"), "x": np.float64(0.5)}}

    assert told(await ran(Mixed()), "seen") == [{"n": 3, "style": {"name": "a", "depth": 1}, "x": 0.5}]
