"""Graphs that grow while they run: an async ``invoke`` may await results and decide on them.

What it recorded up to an ``await`` is sent off as one segment, the results come back, and it goes on:
loops on outputs (agents, tool calls, best-of-n) are part of the graph, and every segment is recorded. In
the end ``invoke`` runs again on what it saw (``verify``), before any result is returned.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from omnibus.errors import OmnibusError, ReplayMismatch
from omnibus.graph import Node, as_ref, digest, ref
from omnibus.task.branch_ids import here, trunk
from omnibus.task.input_codec import FROM, reference, returned
from omnibus.task.record import Recorder, failed
from omnibus.task.result import STREAM, Result, Seen, Source
from omnibus.task.session import Called, Segment
from omnibus.task.verify_replay import Effect, Trace, Verifier, effect_key, mark, named, shape

#: A node of a certain segment: (step, index).
Place = tuple[int, int]


class Segments(Protocol):
    """Interface that a live session needs of the request that it belongs to."""

    #: How often equal calls were made.
    calls: dict[str, int]

    def step(self) -> int:
        """Number of the next segment."""

    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], Source]: ...


class Live(Recorder):
    """Records segment after segment while ``invoke`` runs."""

    def __init__(self, segments: Segments, point: Callable[[int], float]) -> None:
        super().__init__(segments.step(), point, segments, segments.calls)
        self.trace = Trace()
        self._segments = segments
        self._recorded: dict[int, Segment] = {}
        self._wanted: dict[int, list[Result]] = {}
        self._sent: dict[int, asyncio.Future[None]] = {}
        self._refused: set[int] = set()
        self._numbers: dict[Place, int] = {}
        self._copies: dict[Place, int] = {}

    # What `invoke` calls

    def call(self, task: Called, inputs: dict[str, Any], work: int) -> Any:
        text = shape(inputs, self._number)
        index = self.add(task, inputs, work, f"{task.name}{text}")
        step, name, made = self.step, task.name, task.outputs_type
        self._numbers[step, index] = self.trace.called(name, text)
        results = {
            output: Result(name, (index, output), kind, element, self, step, self)
            for output, kind, element in made.told
        }
        # Who knows what will be read later: all but what is made on demand is asked for.
        self._want(*(result for output, result in results.items() if not made.fields[output][2]))
        return made.of(results)

    def _number(self, result: Result, _: Any) -> Any:
        """Return the JSON for ``result`` in a shape: a reference by the number of its call in the request."""
        if result.maker is self:
            return ref(self.number(result), result.origin[1])
        return mark(result)

    def number(self, result: Result) -> int:
        """Of its call in the request."""
        return self._numbers[result.step, result.origin[0]]

    def choose(self, count: int, weights: Sequence[float]) -> int:
        chosen = super().choose(count, weights)
        self.trace.chosen.put(count, here(), chosen)
        return chosen

    async def effect(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        done = Effect()
        self.trace.effects.put(effect_key(function, arguments), here(), done)
        try:
            result = function(*arguments)
            done.result = await result if inspect.isawaitable(result) else result
        except Exception as error:
            done.error, done.ended = error, True
            raise
        done.ended = True
        return done.result

    # What results ask

    def touched(self) -> None:
        here()

    async def bound(self, result: Result) -> None:
        if result.source is not None:
            return
        if result.step == self.step:
            await asyncio.sleep(0)  # calls of branches that run beside this one join the segment
        if result.step == self.step:
            self._want(result)
            self._send()
        await self._arrival(result.step)
        if result.source is None:
            await self._late(result)

    async def _arrival(self, step: int) -> None:
        try:
            await asyncio.shield(self._sent[step])
        except Exception:
            self._refused.add(step)  # `invoke` knows, and may go on without it
            raise

    def observed(self, result: Result, seen: Seen) -> None:
        self.trace.seen[self.number(result), result.origin[1], result.transforms] = seen

    def look(self, result: Result, whole: bool) -> Seen | None:
        return None

    def beyond(self, result: Result) -> NoReturn:
        raise ReplayMismatch(f"{result.shown} was read before")

    async def _late(self, result: Result) -> None:
        """An output that was not asked for in time: its node runs again, in the present segment."""
        again = self._anew(result)
        self._send()
        await self._arrival(again.step)
        _moves(result, again)

    def _anew(self, result: Result) -> Result:
        """``result``, of a copy of its node in the present segment."""
        index = self._again(result.step, result.origin[0])
        again = Result(result.task, (index, result.origin[1]), result.kind, result.element, self, self.step)
        self._want(again)
        return again

    # Segments

    def _want(self, *results: Result) -> None:
        wanted = self._wanted.setdefault(self.step, [])
        wanted += [result for result in results if not any(result is known for known in wanted)]

    def _send(self) -> None:
        """Send off what was recorded; what follows belongs to the next segment."""
        outputs = dict.fromkeys(result.origin for result in self._wanted.get(self.step, ()))
        segment = self._recorded[self.step] = self.segment(tuple(outputs))
        sent = self._sent[self.step] = asyncio.ensure_future(self._submit(segment, self.step))
        sent.add_done_callback(_retrieved)
        self.step = self._segments.step()
        self.nodes, self.work, self.pins, self.choices = [], [], [], []
        self._copies.clear()

    async def _submit(self, segment: Segment, step: int) -> None:
        sources = await self._segments.submit(segment, step)
        for result in self._wanted.get(step, ()):
            result.source = sources.get(result.origin)

    async def finish(self, answer: Any) -> None:
        """Send what is left: every result that is returned gets a source."""
        again: list[tuple[Result, Result]] = []
        for result in {id(each.base): each.base for each in returned(answer) if each.maker is self}.values():
            if result.step == self.step:
                self._want(result)
            elif result.origin not in self._recorded[result.step].outputs:
                again.append((result, self._anew(result)))
        if self.nodes:
            self._send()
        for step in sorted(self._sent.keys() - self._refused):
            await self._arrival(step)
        for result, anew in again:
            _moves(result, anew)

    # References to earlier segments

    def refer(self, result: Result, uses: list[tuple[int, str]]) -> Any:
        if result.maker is not self or result.step == self.step or result.transformed:
            return reference(result, uses, self)
        return self._bring(result.step, result.origin, result.kind == STREAM, uses)

    def _bring(self, step: int, origin: tuple[int, str], stream: bool, uses: list[tuple[int, str]]) -> Any:
        """An output of an earlier segment: by value when it was kept, else by running its node again."""
        if not stream and origin in self._recorded[step].outputs:
            return {FROM: [step, *origin]}
        here = (self._again(step, origin[0]), origin[1])
        uses.append(here)
        return ref(*here)

    def _again(self, step: int, index: int) -> int:
        """Copy an earlier segment's node into the present one, once, with equal inputs and seed; returns its index."""
        if (step, index) not in self._copies:
            segment = self._recorded[step]
            old, uses = segment.nodes[index], list[tuple[int, str]]()
            inputs = self._moved(old.inputs, step, uses)
            found, known = digest(old.task, inputs), tuple(dict.fromkeys(uses))
            self.nodes.append(Node(old.task, old.component, inputs, found, known, old.model, old.salt))
            self.work.append(segment.work[index])
            self.pins.append(segment.pins[index])
            self._copies[step, index] = len(self.nodes) - 1
            self._numbers[self.step, len(self.nodes) - 1] = self._numbers[step, index]
        return self._copies[step, index]

    def _moved(self, value: Any, step: int, uses: list[tuple[int, str]]) -> Any:
        origin = as_ref(value)
        if origin is not None:
            streams = (each.kind == STREAM for each in self._wanted.get(step, ()) if each.origin == origin)
            return self._bring(step, origin, next(streams, True), uses)
        if type(value) is list:
            return [self._moved(element, step, uses) for element in value]
        if type(value) is dict:
            return {key: self._moved(element, step, uses) for key, element in value.items()}
        return value


async def run_live(
    segments: Segments, point: Callable[[int], float], invoke: Callable[[Any], Awaitable[Any]], request: Any
) -> Any:
    """Run an async ``invoke``; returns its answer, whose results are on their way."""
    live = Live(segments, point)
    verifier = Verifier(live.trace, segments)
    try:
        with live, trunk():
            answer = await invoke(request)
        live.check()
        await live.finish(answer)
        before = named(answer, live, live.number)
        with verifier, trunk():
            again = await invoke(request)
    except OmnibusError:
        raise
    except Exception as error:
        raise failed(invoke, error) from error
    verifier.compare(before, again)
    return answer


def _moves(result: Result, again: Result) -> None:
    result.step, result.origin, result.source = again.step, again.origin, again.source


def _retrieved(done: "asyncio.Future[None]") -> None:
    """A failure that nobody waits for any more needs no log."""
    if not done.cancelled():
        done.exception()
