"""Source texts of test apps; ``filled`` replaces ``{name}``."""

from textwrap import dedent

#: A unit task that brings its engine, and an app that calls it.
SHOUT = """
    '''Says it loudly.'''

    from omnibus.task import TaskInput, TaskOutput, UnitTask


    class Words(TaskInput):
        text: str


    class Loud(TaskOutput):
        text: str


    class {cls}(UnitTask[Words, Loud]):
        mark: str = "!"

        async def run(self, words: Words) -> Loud:
            return Loud(text=words.text.upper() + self.mark)


    TASK = {cls}({fields})


    async def serve(request: str) -> str:
        return await (await TASK(Words(text=request))).text + "{by}"
"""

#: Reports its start, waits for permission to continue, and returns its name.
PATIENT = """
    import asyncio
    from pathlib import Path


    async def serve(request):
        Path(request["begun"]).touch()
        while not Path(request["go"]).exists():
            await asyncio.sleep(0.01)
        return "{by}"
"""

#: Says who it is.
PLAIN = """
    async def serve(request):
        return "{by}"
"""

#: An app that fails in the requested way.
WRONG = """
    import asyncio
    import os
    import random
    import time
    from collections.abc import AsyncIterator

    from pydantic import BaseModel

    from omnibus.errors import BadRequest
    from omnibus.task import CompositeTask, Stream, TaskInput, TaskOutput, UnitTask, choose


    class Words(TaskInput):
        text: str


    class Letters(TaskOutput):
        text: str
        letters: Stream[str]


    class {cls}(UnitTask[Words, Letters]):
        async def run(self, words: Words) -> AsyncIterator[dict]:
            yield {"text": words.text}
            for letter in words.text:
                yield {"letters": letter}
                await asyncio.sleep(0)


    SPELL = {cls}()


    class Branch(CompositeTask):
        spell: {cls} = SPELL

        def invoke(self, words):
            out = self.spell.invoke(words)
            return self.spell.invoke(words) if out.text == "a" else out


    class Format(Branch):
        def invoke(self, words):
            return self.spell.invoke(Words(text=f"so {self.spell.invoke(words).text}"))


    class Chance(Branch):
        def invoke(self, words):
            return self.spell.invoke(Words(text=random.choice("ab")))


    class Clock(Branch):
        def invoke(self, words):
            return self.spell.invoke(Words(text=str(time.time())))


    class Forever(Branch):
        def invoke(self, words):
            text = words.text
            while True:
                text = self.spell.invoke(Words(text=text)).text


    async def twice():
        out = await SPELL(Words(text="abc"))
        first = [letter async for letter in out.letters]
        return first + [letter async for letter in out.letters]


    class Asked(BaseModel):
        what: str
        times: int = 1


    async def serve(request: Asked):
        what = request.what
        if what == "value error":
            raise ValueError("a secret of the inside")
        if what == "bad request":
            raise BadRequest("times must be even", param="times")
        if what == "exits":
            os._exit(7)
        if what == "never":
            await asyncio.sleep(1000)
        if what == "blocks":
            print("blocks from now on", flush=True)
            time.sleep(1000)
        if what == "no JSON":
            return object()
        if what == "twice":
            return await twice()
        if what == "fine":
            return await (await SPELL(Words(text="fine"))).text
        tasks = {"branch": Branch, "format": Format, "chance": Chance, "clock": Clock, "forever": Forever}
        return await (await tasks[what]()(Words(text="a"))).text
"""

#: A stream that continues as long as it is read, letter by letter from a separate task.
ENDLESS = """
    import asyncio
    from collections.abc import AsyncIterator

    from omnibus.task import Stream, TaskInput, TaskOutput, UnitTask


    class Start(TaskInput):
        at: int


    class Numbers(TaskOutput):
        numbers: Stream[int]


    class {cls}(UnitTask[Start, Numbers]):
        async def run(self, start: Start) -> AsyncIterator[dict]:
            number = start.at
            while True:
                number += 1
                yield {"numbers": number}
                await asyncio.sleep(0.005)


    COUNT = {cls}()


    async def serve(request: int) -> AsyncIterator[int]:
        async for number in (await COUNT(Start(at=request))).numbers:
            yield number
"""


def fill_text(text: str, **values: str) -> str:
    """``text`` as a module."""
    text = dedent(text)
    for name, value in {"by": "", "fields": "", **values}.items():
        text = text.replace(f"{{{name}}}", value)
    return text
