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
from omnibus.tensors.handle import Item
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


class SaidOutput(TaskOutput):
    seen: dict[str, Any]
    words: Stream[str]
    picture: Tensor
    steps: Stream[list[int]]


ALL = ("seen", "words", "picture", "steps")


class Base(UnitTask[Given, SaidOutput]):
    pass


def make_wire(*items: Item) -> Wire:
    output_wire = Wire()
    for item in items:
        output_wire.feed(item)
    output_wire.close()
    return output_wire


def make_array(*values: float) -> Item:
    return Item({}, np.array(values))


async def run_task(task: Any, wants: tuple[str, ...] = ALL, **inputs: Any) -> MemoryJob:
    job = WireJob({"words": None, "rows": None, **inputs}, wants)
    await execute_task(task, job)
    return job


def read_values(job: MemoryJob, output: str) -> list[Any]:
    return [item.data if item.array is None else item.array.tolist() for item in job.outputs[output].items]


# Inputs of run


class Look(Base):
    async def run(self, inputs: Given) -> SaidOutput:
        assert type(inputs) is Given
        values = {name: getattr(inputs, name) for name in Given.model_fields if name not in ("words", "rows")}
        return SaidOutput(seen={"kinds": {name: type(value).__name__ for name, value in values.items()}, "text": inputs.text}, words=[], picture=[0], steps=[])  # fmt: skip


async def list_kinds(**inputs: Any) -> dict[str, str]:
    job = await run_task(Look(), **inputs)
    return dict(read_values(job, "seen")[0]["kinds"])


async def test_inputs_come_as_they_are_declared():
    type_names = await list_kinds(
        text="a", count=3, style={"name": "plain"}, styles=[{"name": "a"}], picture=make_wire(make_array(1, 2)),
        pictures=[make_wire(make_array(1))], named={"a": make_wire(make_array(1))},
    )  # fmt: skip

    assert type_names["style"] == "Style"
    assert (type_names["picture"], type_names["pictures"], type_names["named"]) == ("ndarray", "list", "dict")


async def test_what_was_not_given_has_its_default():
    type_names = await list_kinds()

    assert (type_names["text"], type_names["style"], type_names["styles"], type_names["voice"]) == (
        "str",
        "NoneType",
        "list",
        "str",
    )


async def test_a_none_that_was_given_stays_none():
    assert (await list_kinds(voice=None))["voice"] == "NoneType"


async def test_a_value_of_another_task_is_its_value():
    type_names = await list_kinds(
        text=make_wire(Item({"value": "hi"})), style=make_wire(Item({"name": "a", "depth": 2}))
    )

    assert (type_names["text"], type_names["style"]) == ("str", "Style")


async def test_a_tensor_with_data_beside_it_is_the_tensor():
    assert (await list_kinds(picture=make_wire(Item({"width": 2}, np.ones(2)))))["picture"] == "ndarray"


async def test_media_by_handle_are_bytes():
    class Media(TaskInput):
        media: Any

    class Weigh(UnitTask[Media, SaidOutput]):
        async def run(self, inputs: Media) -> dict[str, Any]:
            return {"seen": {"bytes": int(inputs.media.sum())}}

    job = WireJob({"media": Item({"mime": "image/png"}, np.array([1, 2], np.uint8))}, ALL)
    await execute_task(Weigh(), job)

    assert read_values(job, "seen") == [{"bytes": 3}]
    assert HANDLE not in job.inputs


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"count": "many"}, "Given.count: Input should be a valid integer"),
        ({"count": -1}, "Given.count: .*greater than or equal to 0"),
        ({"style": {"depth": 1}}, "Given.style: Field required"),
        ({"count": make_wire(Item({"value": "many"}))}, "Given.count"),
    ],
)
async def test_inputs_that_do_not_fit_are_a_bad_request(inputs: dict[str, Any], message: str):
    with pytest.raises(BadRequest, match=message) as caught:
        await run_task(Look(), **inputs)

    assert caught.value.param == next(iter(inputs))


class Follow(Base):
    async def run(self, inputs: Given) -> AsyncIterator[dict[str, Any]]:
        assert inputs.words is not None
        async for word in inputs.words:
            yield {"words": word + "!"}
        assert inputs.rows is None
        yield {"picture": np.ones(1)}


async def test_streams_are_followed_and_told_part_by_part():
    job = await run_task(Follow(), words=make_wire(Item({"value": "a"}), Item({"value": "b"})))

    assert read_values(job, "words") == [{"value": "a!"}, {"value": "b!"}]
    assert read_values(job, "picture") == [[1.0]]
    assert job.outputs["words"].closed
    assert job.outputs["steps"].closed


async def test_a_stream_of_tensors_gives_arrays():
    class SumRows(Base):
        async def run(self, inputs: Given) -> dict[str, Any]:
            assert inputs.rows is not None
            return {"seen": {"sum": sum([float(row.sum()) async for row in inputs.rows])}}

    job = await run_task(SumRows(), rows=make_wire(make_array(1, 2), make_array(3)))

    assert read_values(job, "seen") == [{"sum": 6.0}]


# Outputs of run


async def stream_letters() -> AsyncIterator[str]:
    yield "x"
    yield "y"


class WholeOutput(Base):
    async def run(self, inputs: Given) -> SaidOutput:
        return SaidOutput(
            seen={"value": 1, "b": None}, words=stream_letters(), picture=np.float32(3), steps=[[1, 2], [3]]
        )


async def test_outputs_may_be_given_all_at_once():
    job = await run_task(WholeOutput())

    assert read_values(job, "words") == [{"value": "x"}, {"value": "y"}]
    assert read_values(job, "steps") == [{"value": [1, 2]}, {"value": [3]}]
    assert read_values(job, "seen") == [{"value": {"value": 1, "b": None}}]
    assert read_values(job, "picture") == [[3.0]]


async def test_what_nobody_wants_is_not_sent():
    job = await run_task(WholeOutput(), wants=("words",))

    assert [output for output in ALL if job.outputs[output].items] == ["words"]


class Parts(Base):
    async def run(self, inputs: Given) -> AsyncIterator[Any]:
        yield {"steps": [1, 2], "words": "a"}
        yield {"steps": []}
        yield SaidOutput(seen={}, words=["b", "c"], picture=[1], steps=[[3]])


async def test_a_generator_yields_one_part_of_a_stream_even_if_it_is_a_list():
    job = await run_task(Parts())

    assert read_values(job, "steps") == [{"value": [1, 2]}, {"value": []}, {"value": [3]}]
    assert read_values(job, "words") == [{"value": "a"}, {"value": "b"}, {"value": "c"}]


class Threaded(Base):
    def run(self, inputs: Given) -> dict[str, Any]:
        return {"seen": {"words": inputs.words, "thread": threading.current_thread() is threading.main_thread()}}


class Stepwise(Base):
    def run(self, inputs: Given) -> Iterator[dict[str, Any]]:
        for word in inputs.words or []:
            yield {"words": word}


async def test_a_plain_function_works_in_a_thread_and_gets_streams_as_lists():
    job = await run_task(Threaded(), words=make_wire(Item({"value": "a"}), Item({"value": "b"})))

    assert read_values(job, "seen") == [{"words": ["a", "b"], "thread": False}]


async def test_a_plain_generator_is_told_step_by_step():
    job = await run_task(Stepwise(), words=make_wire(Item({"value": "a"}), Item({"value": "b"})))

    assert read_values(job, "words") == [{"value": "a"}, {"value": "b"}]


@pytest.mark.parametrize("outcome", [None, {}, {"words": None, "picture": None}])
async def test_a_task_may_give_nothing(outcome: Any):
    class Silent(Base):
        async def run(self, _: Given) -> Any:
            return outcome

    job = await run_task(Silent())

    assert not any(job.outputs[output].items for output in ALL)


async def test_what_is_no_mapping_is_the_first_output():
    class Short(Base):
        async def run(self, _: Given) -> Any:
            return ["a", 1]

    assert read_values(await run_task(Short()), "seen") == [{"value": ["a", 1]}]


async def test_an_output_that_there_is_not_is_named_with_those_there_are():
    class Wrong(Base):
        async def run(self, _: Given) -> Any:
            return {"colour": 1}

    with pytest.raises(
        StageFailed, match="wrong returned the unknown output 'colour'; its outputs are seen, words, picture, steps"
    ):
        await run_task(Wrong())


@pytest.mark.parametrize("odd", [{"a": object()}, {"a": b"\xff"}, {"a": np.ones(2)}, {"a": [float("inf")]}])
async def test_a_value_that_is_no_json_fails_with_its_type(odd: Any):
    class OddValue(Base):
        async def run(self, _: Given) -> Any:
            return {"seen": odd}

    with pytest.raises(StageFailed, match="a value of type dict cannot be JSON"):
        await run_task(OddValue())


async def test_numbers_of_numpy_and_models_are_json():
    class Mixed(Base):
        async def run(self, _: Given) -> Any:
            return {"seen": {"n": np.int64(3), "style": Style(name="a"), "x": np.float64(0.5)}}

    assert read_values(await run_task(Mixed()), "seen") == [{"n": 3, "style": {"name": "a", "depth": 1}, "x": 0.5}]
