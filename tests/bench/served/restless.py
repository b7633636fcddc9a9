"""The app that is registered and unregistered, with its own unit task."""

from omnibus.task import TaskInput, TaskOutput, UnitTask


class LoudWord(TaskInput):
    text: str


class Louder(TaskOutput):
    text: str


class Louden(UnitTask[LoudWord, Louder]):
    async def run(self, word: LoudWord) -> Louder:
        return Louder(text=word.text.upper())


LOUDEN = Louden()


async def serve(request: str) -> str:
    return await (await LOUDEN(LoudWord(text=request))).text
