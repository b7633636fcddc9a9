"""The measured app: one unit task, which returns its input."""

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
    """Input of the app, the same as that of the floor's echo."""

    model_config = ConfigDict(extra="ignore")

    seed: int
    text: str


class Answer(BaseModel):
    seed: int


async def serve(request: Asked) -> Answer:
    return Answer(seed=await (await REPEAT(Number(number=request.seed))).number)
