"""A custom model of two components: one capitalizes a text, the other echoes it."""

from collections.abc import AsyncIterator

from omnibus.task import CompositeTask, Stream, TaskInput, TaskOutput, UnitTask


class Said(TaskInput):
    text: str


class Loud(TaskOutput):
    text: str


class Echoes(TaskOutput):
    words: Stream[str]


class Shout(UnitTask[Said, Loud]):
    async def run(self, said: Said) -> Loud:
        return Loud(text=said.text.upper() + "!")


class Echo(UnitTask[Said, Echoes]):
    times: int = 2

    async def run(self, said: Said) -> AsyncIterator[dict[str, str]]:
        for _ in range(self.times):
            for word in said.text.split():
                yield {"words": word + " "}


class Canyon(CompositeTask[Said, Echoes]):
    shout: Shout = Shout()
    echo: Echo = Echo()

    def invoke(self, said: Said) -> Echoes:
        return self.echo.invoke(Said(text=self.shout.invoke(said).text))


CANYON = Canyon()


async def serve(request: Said) -> AsyncIterator[str]:
    async for word in (await CANYON(request)).words:
        yield word
