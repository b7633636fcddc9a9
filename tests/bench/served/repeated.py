"""The app that is measured: one unit task of its own, which gives back what it is given."""

from pydantic import BaseModel, ConfigDict

from omnibus.task import TaskInput, TaskOutput, UnitTask


class Number(TaskInput):
    number: int


class Same(TaskOutput):
    number: int


class Repeat(UnitTask[Number, Same]):
    async def run(self, given: Number) -> Same:
        return Same(number=given.number)


REPEAT = Repeat()


class Asked(BaseModel):
    """What the echo of the floor takes too."""

    model_config = ConfigDict(extra="ignore")

    seed: int
    text: str


class Answer(BaseModel):
    seed: int


async def serve(request: Asked) -> Answer:
    return Answer(seed=await (await REPEAT(Number(number=request.seed))).number)
