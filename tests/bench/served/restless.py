"""The app that is registered and unregistered, with its own unit task."""

from omnibus.task import TaskInput, TaskOutput, UnitTask


class Word(TaskInput):
    text: str


class Louder(TaskOutput):
    text: str


class Louden(UnitTask[Word, Louder]):
    async def run(self, word: Word) -> Louder:
        return Louder(text=word.text.upper())


LOUDEN = Louden()


async def serve(request: str) -> str:
    return await (await LOUDEN(Word(text=request))).text
