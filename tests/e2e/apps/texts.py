"""Apps that tests register; ``{name}`` in a text stands for what ``filled`` is given."""

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

#: Says that it has begun, waits until it may go on, and says who it is.
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


def filled(text: str, **values: str) -> str:
    """``text`` as a module."""
    text = dedent(text)
    for name, value in {"by": "", "fields": "", **values}.items():
        text = text.replace(f"{{{name}}}", value)
    return text
