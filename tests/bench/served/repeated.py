"""The measured app: one unit task, which returns its input."""

from pydantic import BaseModel, ConfigDict

from omnibus.task import TaskInput, TaskOutput, UnitTask


class RepeatedNumber(TaskInput):
    number: int


class Same(TaskOutput):
    number: int


class Repeat(UnitTask[RepeatedNumber, Same]):
    async def run(self, request: RepeatedNumber) -> Same:
        return Same(number=request.number)


REPEAT = Repeat()


class RepeatRequest(BaseModel):
    """Input of the app, the same as that of the floor's echo."""

    model_config = ConfigDict(extra="ignore")

    seed: int
    text: str


class RepeatAnswer(BaseModel):
    seed: int


async def serve(request: RepeatRequest) -> RepeatAnswer:
    return RepeatAnswer(seed=await (await REPEAT(RepeatedNumber(number=request.seed))).number)
