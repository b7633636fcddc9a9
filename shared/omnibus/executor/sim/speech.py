"""Simulated speech: a thinker's outputs for a talker, and the talker."""

import asyncio
from collections.abc import AsyncIterator
from math import inf

import msgspec

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item, Job, RowWriter
from omnibus.executor.sim.async_device import WorkTicket
from omnibus.executor.sim.device import SimSequence
from omnibus.executor.sim.distributions import Count, SizeDistribution
from omnibus.executor.sim.runner import SimulatedRunner, blank_array, read_params

#: Codes of a talker are less than this.
CODE_COUNT = 1024
#: Position axes of a prompt's layout.
AXES = 3


class SimTalkParams(msgspec.Struct, frozen=True):
    """Request parameters that determine the length of speech; all others are ignored."""

    max_codes: Count | None = None


class SimTalkerInputs:
    """Outputs of a thinker for a talker: the prompt's rows and positions, then answer rows.

    The answer has a row for each token but the first.
    """

    def __init__(self, job: Job, prompt: int, answer: int, width: int) -> None:
        self._job = job
        self._prompt = prompt
        self._most = max(1, answer - 1)
        self._width = width
        self._writer: RowWriter | None = None
        self._written = 0

    async def send_rows(self, tokens: int) -> None:
        """Send the prompt once, and the rows of the answer's first ``tokens``."""
        if self._writer is None:
            await send_prompt(self._job, self._prompt, self._width)
            self._writer = await self._job.open_rows("rows", self._most, self._width, "float32")
        rows = tokens - 1 - self._written
        if rows > 0:
            self._writer.write(blank_array((rows, self._width), "float32"))
            self._written += rows


async def send_prompt(job: Job, prompt: int, width: int) -> None:
    """Send a talker's inputs for a ``prompt`` of that many tokens."""
    await job.put("layout", {}, blank_array((AXES, prompt), "int32"))
    await job.put("prompt", {}, blank_array((prompt + AXES, width), "float32"))


class SimulatedTalker(SimulatedRunner):
    """Reads ``prompt``, ``layout`` and ``rows`` as they arrive, makes ``codes``.

    It makes one code a step, no sooner than its row arrives.
    """

    needs = ("step",)
    steps = True
    chunk = 12

    async def run(self, job: Job) -> None:
        stream = job.stream("rows")
        first = await anext(stream, None)
        if first is None or first.array is None:
            job.close("codes", {"finish_reason": "stop"})
            return
        prompt = await job.value("prompt")
        await job.value("layout")
        if not isinstance(prompt, Item) or prompt.array is None:
            raise BadRequest("a talker's input came without its tensor", param="prompt")
        speaking = SimTalkerAnswer(self, job, prompt.array.shape[0])
        speaking.add_rows(len(first.array))
        with self._machine.admit_work(self.lane, speaking.sequence) as ticket:
            pump = asyncio.create_task(speaking.follow_rows(stream, ticket), name="rows")
            try:
                await speaking.send_codes(ticket)
            finally:
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)
        job.close("codes", {"finish_reason": speaking.finish_reason})

    def extend_sequence(self, sequence: SimSequence, allowed: float, limit: float) -> None:
        self._machine.extend_sequence(self.lane, sequence, allowed, limit)


class SimTalkerAnswer:
    """One answer of a talker. If its length depends on the thinker's rows, it is known when they end."""

    def __init__(self, talk: SimulatedTalker, job: Job, tokens: int) -> None:
        self._talk = talk
        self._job = job
        self._draw = talk.make_draw(job, tokens)
        self._start = self._draw.integer_below(CODE_COUNT)
        self._most = read_params(job, SimTalkParams).max_codes or inf
        self._size: SizeDistribution = talk.part.steps_size
        self._rows = 0
        wanted = inf if self._size.per else self._size.draw_size(self._draw)
        every = talk.part.chunk or talk.chunk
        limit = min(wanted, self._most)
        #: Codes of an earlier attempt, after which this one starts, without the last one, which may have been the final
        #: code.
        self._resumed = int(min(max(0, len(job.resume_state("codes").get("codes", ())) - 1), limit - 1))
        self.sequence = SimSequence(
            tokens + self._resumed,
            talk.jitter_factor(self._draw),
            limit=limit - self._resumed,
            allowed=0,
            first=every,
            every=every,
        )

    @property
    def finish_reason(self) -> str:
        return "length" if self._resumed + self.sequence.done >= self._most else "stop"

    def add_rows(self, rows: int) -> None:
        """Add ``rows`` of the thinker; each allows one more code."""
        self._rows += rows
        self._talk.extend_sequence(self.sequence, self._rows - self._resumed, self.sequence.limit)

    async def follow_rows(self, stream: AsyncIterator[Item], ticket: WorkTicket) -> None:
        """Read the rows to their end."""
        try:
            async for item in stream:
                if item.array is not None:  # the thinker's last message has no row
                    self.add_rows(len(item.array))
            limit = self.sequence.limit
            if self._size.per:
                whole = min(max(self._rows, self._size.draw_size(self._draw, self._rows)), self._most)
                limit = whole - self._resumed
            self._talk.extend_sequence(self.sequence, inf, limit)
        except Exception as error:  # noqa: BLE001 - a task boundary: raised again in ``news``
            ticket.fail(error)

    async def send_codes(self, ticket: WorkTicket) -> None:
        sent = 0
        while not self.sequence.is_finished:
            await ticket.wait_for_update()
            if (made := self._resumed + self.sequence.done) > sent:
                codes = [(self._start + at) % CODE_COUNT for at in range(sent, made)]
                await self._job.send("codes", {"codes": codes})
                sent = made
