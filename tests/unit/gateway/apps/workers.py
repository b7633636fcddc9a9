"""Apps in real worker processes, and runs that evaluate their graphs locally."""

import asyncio
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from omnibus.app_record import AppSource
from omnibus.errors import OmnibusError
from omnibus.graph import HANDLE, as_ref
from omnibus.process.supervise import RestartPolicy
from omnibus.task import Segment
from omnibus.tensors.handle import Item
from omnibus_gateway.apps.worker_supervisor import WorkerLimits, WorkerSupervisor
from omnibus_gateway.dispatch.streams import ItemStream

PATIENCE = 20.0  # seconds
#: No test waits long for a worker to start again.
CALM = WorkerLimits(cancel_within=PATIENCE, stop_within=1.0, restart=RestartPolicy(first=0.01))
#: Nor for one that has to be forced.
QUICK = WorkerLimits(cancel_within=0.3, stop_within=1.0, restart=RestartPolicy(first=0.01))

HEAD = """
import asyncio, os, sys, time
from collections.abc import AsyncIterator
from typing import Any
from omnibus.app import App
from omnibus.errors import BadRequest, NotFound, OmnibusError
from omnibus.task import (
    Audio, ChatInput, ChatOutput, CompositeTask, OnDemand, Stream, TaskInput, TaskOutput, Tensor, TextChunk, UnitTask, choose
)
import numpy as np

class Words(TaskInput):
    text: str

class Letters(TaskOutput):
    letters: Stream[str]
    count: int
    codes: OnDemand[Tensor]

class Spell(UnitTask[Words, Letters]):
    upper: bool = False

class Codes(TaskInput):
    codes: Tensor

class Total(TaskOutput):
    sum: int

class Add(UnitTask[Codes, Total]): ...

class Says(TaskOutput):
    text: Stream[TextChunk]
    audio: Stream[Audio]

class Media(TaskInput):
    media: Any

class Say(UnitTask[Media, Says]): ...

SPELL, LOUD, ADD, SAY = Spell(), Spell(upper=True), Add(), Say()

class Sum(CompositeTask):
    spell: Spell = Spell()
    add: Add = Add()
    def invoke(self, request):
        return self.add.invoke(Codes(codes=self.spell.invoke(request).codes))

SUM = Sum()
"""

ECHO = "async def serve(request):\n    return request\n"
SPELLS = """
class Told(TaskOutput):
    letters: str
    count: int

async def serve(request: Words) -> dict[str, Any]:
    out = await SPELL(request)
    return {"letters": await out.letters, "count": await out.count}
"""


class Abacus:
    """A run that evaluates each segment at once. ``status`` is its outcome."""

    def __init__(self, seconds: float = PATIENCE) -> None:
        self.id = "gw-1"
        self.logs_calls = True
        self.deadline = time.time() + seconds
        self.status = ""
        self.failure: OmnibusError | None = None
        self.segments: dict[int, Segment] = {}
        self.placed: list[bytes] = []
        self.streams: dict[tuple[int, int, str], ItemStream] = {}
        self.refuses: Exception | None = None
        #: Called with each stream instead of filling it.
        self.fills: Callable[[str, ItemStream], None] | None = None

    async def submit(self, segment: Segment, step: int) -> dict[tuple[int, str], ItemStream]:
        if self.refuses is not None:
            raise self.refuses
        self.segments[step] = segment
        values: dict[tuple[int, str], Any] = {}
        for index, node in enumerate(segment.nodes):
            inputs = {name: values[found] if (found := as_ref(value)) else value for name, value in node.inputs.items()}
            values.update({(index, name): value for name, value in evaluate_task(node.task, inputs).items()})
        output_streams = {output: self._stream(output[1], values[output]) for output in segment.outputs}
        self.streams.update({(step, *output): stream for output, stream in output_streams.items()})
        return output_streams

    async def place_input(self, data: bytes, about: tuple[str, str, str]) -> dict[str, Any]:
        self.placed.append(data)
        return {HANDLE: len(self.placed), "modality": about[0], "mime": about[1], "sha256": about[2]}

    def _stream(self, name: str, value: Any) -> ItemStream:
        stream = ItemStream()
        if self.fills is not None:
            self.fills(name, stream)
            return stream
        for part in value if isinstance(value, list) else [value]:
            stream.add_item(
                part
                if isinstance(part, Item)
                else Item({}, part)
                if isinstance(part, np.ndarray)
                else Item({"value": part})
            )
        stream.end()
        return stream

    def fail(self, error: OmnibusError) -> None:
        self.failure = self.failure or error
        for stream in self.streams.values():
            if not stream.ended:
                stream.fail(error)

    def end(self, status: str) -> None:
        assert not self.status, f"ended as {self.status}, and again as {status}"
        self.status = status


def evaluate_task(task: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of a task of ``HEAD``."""
    if task == "add":
        return {"sum": int(inputs["codes"].sum())}
    if task == "say":
        return {
            "text": [Item({"text": "saw "}), Item({"text": inputs["media"]["modality"], "ids": [1]})],
            "audio": [Item({"rate": 16000}, np.ones(3, np.float32))],
        }
    text = inputs["text"].upper() if "upper" in task else inputs["text"]
    codes = np.array([ord(letter) for letter in text], np.int64)
    return {"letters": list(text), "count": len(text), "codes": codes}


def write_app(root: Path, text: str, name: str = "sample_app") -> AppSource:
    """Write an app of ``text`` after the usual imports into a directory."""
    (root / f"{name}.py").write_text(HEAD + textwrap.dedent(text))
    return AppSource("directory", name, str(root))


@asynccontextmanager
async def run_worker(source: AppSource, text: str = "", rules: WorkerLimits = CALM) -> AsyncIterator[WorkerSupervisor]:
    """Yield a started worker and stop it at the end; each step is limited to ``PATIENCE``."""
    host = WorkerSupervisor(source, HEAD + textwrap.dedent(text) if text else "", rules)
    async with asyncio.timeout(PATIENCE * 2):
        try:
            await host.start()
            yield host
        finally:
            await host.stop()


async def wait_until_true(there: Callable[[], Any]) -> None:
    """Wait until ``there()`` is true, within the tests' patience."""
    async with asyncio.timeout(PATIENCE):
        while not there():
            await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Return True if the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
