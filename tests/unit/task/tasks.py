"""Small unit tasks for arithmetic and spelling with their own engines."""

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from omnibus.errors import BadRequest
from omnibus.task import OnDemand, Stream, TaskInput, TaskOutput, Tensor, UnitTask

#: Sums wrap, so that they fit into an array however many there are.
MANY = 1_000_003


class NumberInput(TaskInput):
    x: int
    text: str = ""
    many: list[Any] = []
    about: dict[str, Any] = {}


class NumberOutput(TaskOutput):
    y: Tensor
    n: int
    parts: Stream[int]
    late: OnDemand[Tensor]


class Number(UnitTask[NumberInput, NumberOutput]):
    """``x`` times ``scale`` as a number and an array of two. A stream counts up from it."""

    scale: int = 1

    async def run(self, inputs: NumberInput) -> AsyncIterator[dict[str, Any]]:
        x = inputs.x * self.scale
        yield {"n": x, "y": np.full(2, x, np.int64)}
        for count in range(x % 4):
            yield {"parts": x + count}
        yield {"late": np.array([x, 1], np.int64)}


class AddInput(TaskInput):
    items: list[Tensor] = []
    one: Tensor | None = None
    numbers: list[Any] = []
    more: int = 0


class AddOutput(TaskOutput):
    y: Tensor
    n: int


class Add(UnitTask[AddInput, AddOutput]):
    """The sum of all inputs, as array of two and number."""

    async def run(self, inputs: AddInput) -> AddOutput:
        arrays = [*inputs.items, *([inputs.one] if inputs.one is not None else [])]
        total = (sum(int(array.sum()) for array in arrays) + sum(inputs.numbers) + inputs.more) % MANY
        return AddOutput(y=np.array([total, 0], np.int64), n=total)


class FoldInput(TaskInput):
    parts: Stream[int]
    other: Stream[int] | None = None
    start: int = 0


class FoldOutput(TaskOutput):
    sums: Stream[int]
    n: int
    y: Tensor


class Fold(UnitTask[FoldInput, FoldOutput]):
    """The running sums of a stream on arrival, then the last."""

    async def run(self, inputs: FoldInput) -> AsyncIterator[dict[str, Any]]:
        total = inputs.start
        async for part in inputs.parts:
            total = (total + part) % MANY
            yield {"sums": total}
        if inputs.other is not None:
            async for part in inputs.other:
                total = (total + part) % MANY
        yield {"n": total, "y": np.array([total, 1], np.int64)}


class WordsInput(TaskInput):
    text: str
    loud: bool = False


class Letters(TaskOutput):
    letters: Stream[str]
    count: int


class Spell(UnitTask[WordsInput, Letters]):
    """The letters of a text, one by one."""

    upper: bool = False
    alphabet: tuple[str, ...] = ()

    def run(self, words: WordsInput) -> Letters:
        characters = [letter for letter in words.text if letter in self.alphabet or not self.alphabet]
        output_letters = [letter.upper() for letter in characters] if self.upper or words.loud else characters
        return Letters(letters=output_letters, count=len(output_letters))


class Box(BaseModel):
    """A value with a name, for tasks with more than numbers."""

    value: int
    name: str = ""


class EchoInput(TaskInput):
    what: Any = None
    box: Box | None = None


class EchoOutput(TaskOutput):
    what: Any
    box: Box
    boxes: list[Box]


class Echo(UnitTask[EchoInput, EchoOutput]):
    async def run(self, inputs: EchoInput) -> EchoOutput:
        box = inputs.box or Box(value=0)
        return EchoOutput(what=inputs.what, box=box, boxes=[box, box])


class RollOutput(TaskOutput):
    n: int


class Roll(UnitTask[NumberInput, RollOutput]):
    """A random number below 1000, from the seed of the call, plus ``x``. ``work`` is its engine: see ``hosting``."""

    async def work(self, job: Any) -> None:
        await job.put("n", {"value": job.seed % 1000 + await number_of(job)})


class StrictNumber(UnitTask[NumberInput, RollOutput]):
    """``x``, unless it is odd."""

    kind: ClassVar[str] = "strict"

    async def run(self, inputs: NumberInput) -> RollOutput:
        if inputs.x % 2:
            raise BadRequest(f"{inputs.x} is odd")
        return RollOutput(n=inputs.x)


async def number_of(job: Any) -> int:
    """Return the input ``x``, from a literal or another task."""
    x = await job.value("x")
    return int(x if isinstance(x, int) else x.data["value"])


ONE, TWO, ADD = Number(), Number(scale=2), Add()
FOLD, SPELL, ECHO, ROLL, STRICT = Fold(), Spell(), Echo(), Roll(), StrictNumber()
ALL: tuple[UnitTask, ...] = (ONE, TWO, ADD, FOLD, SPELL, ECHO, ROLL, STRICT)
