"""Programs as composite tasks, as a developer would write them.

The task library runs them.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from omnibus.errors import BadRequest
from omnibus.task import CompositeTask, UnitTask, choose, tool
from tests.property import programs
from tests.property.programs import BOUND, ROUNDS, Flow, Frame, Program, pick_one
from tests.unit.task.tasks import (
    ADD,
    ECHO,
    FOLD,
    ONE,
    ROLL,
    SPELL,
    STRICT,
    TWO,
    AddInput,
    Box,
    EchoInput,
    FoldInput,
    Number,
    NumberInput,
    WordsInput,
)


class Log:
    """Events outside of the graph: choices by place in the program, and tool calls."""

    def __init__(self) -> None:
        self.chosen: dict[tuple[int, ...], int] = {}
        self.effects: Counter[tuple[int, ...]] = Counter()

    def chose(self, path: tuple[int, ...], choice: int) -> int:
        assert self.chosen.setdefault(path, choice) == choice, "a replay chose otherwise"
        return choice

    async def effect(self, path: list[int], x: int) -> int:
        await asyncio.sleep(0)
        self.effects[tuple(path)] += 1
        return apply_effect(x)


def apply_effect(x: int) -> int:
    return (x * 7 + 1) % BOUND


class WalkRequest:
    """A program on its way through ``invoke``, also through nested ones."""

    def __init__(
        self, program: Program, log: Log, frame: Frame | None = None, body: Any = None, path: Any = ()
    ) -> None:
        self.program = program
        self.log = log
        self.frame = frame
        self.body = body
        self.path = path


class Tasks(CompositeTask):
    """Tasks that programs call, alone, in a list, and in a dict."""

    numbers: list[Number] = [ONE, TWO]
    others: dict[str, UnitTask] = {"add": ADD, "fold": FOLD, "echo": ECHO}
    spell: Any = SPELL


class Inner(Tasks):
    """A body of a program as a separate task."""

    def invoke(self, request: WalkRequest) -> None:
        run_static(Walk(self, request).block(request.body, request.frame, request.path))


class LiveInner(Tasks):
    async def invoke(self, request: WalkRequest) -> None:
        await Walk(self, request).block(request.body, request.frame, request.path)


class Drawn(Tasks):
    """A whole program; ``inner`` are composites in a list and a dict."""

    inner: list[Inner] = [Inner()]
    more: dict[str, Inner] = {"a": Inner(), "b": Inner()}

    def invoke(self, request: WalkRequest) -> Any:
        frame = Frame()
        run_static(Walk(self, request).block(request.program.body, frame, ()))
        return build_answer(request.program, frame)


class LiveDrawn(Tasks):
    inner: list[LiveInner] = [LiveInner()]
    more: dict[str, LiveInner] = {"a": LiveInner(), "b": LiveInner()}

    async def invoke(self, request: WalkRequest) -> Any:
        frame = Frame()
        await Walk(self, request).block(request.program.body, frame, ())
        return build_answer(request.program, frame)


def run_static(walk: Coroutine[Any, Any, None]) -> None:
    """Run a static coroutine, which never waits."""
    try:
        walk.send(None)
    except StopIteration:
        return
    raise AssertionError("a static program waited")


def build_answer(program: Program, frame: Frame) -> Any:
    """Results in nested containers, each with its way of reading."""
    results: list[tuple[Any, str]] = []
    for kind, at, how in program.returns:
        pool = [flow.stream for flow in frame.flows if not flow.read] if kind == "flows" else getattr(frame, kind)
        result = pick_one(pool, at)
        if result is None or any(result is other for other, _ in results):
            continue
        results.append((result, how if kind == "flows" else "await"))
    return {"first": results[:2], "rest": ({"more": results[2:]},)}


class Walk:
    """Runs statements with the library's tasks; a method for each kind."""

    def __init__(self, tasks: Any, request: WalkRequest) -> None:
        self.tasks = tasks
        self.request = request
        self.xs = request.program.xs

    async def block(self, body: Any, frame: Any, path: tuple[int, ...]) -> None:
        for index, statement in enumerate(body):
            await getattr(self, type(statement).__name__.lower())(statement, frame, (*path, index))

    async def number(self, statement: programs.Number, frame: Frame, _: Any) -> None:
        if frame.spend():
            of = pick_one(frame.values, statement.of)
            x = statement.x.value(self.xs, frame.known) if of is None else of
            self.keep(self.tasks.numbers[statement.which].invoke(NumberInput(x=x)), frame)

    def keep(self, out: Any, frame: Frame) -> None:
        frame.tensors.append(out.y)
        frame.values.append(out.n)
        frame.flows.append(Flow(out.parts))
        frame.lates.append(out.late)

    async def add(self, statement: programs.Add, frame: Frame, _: Any) -> None:
        if frame.spend():
            items = [pick_one(frame.tensors, at) for at in statement.items if frame.tensors]
            numbers = [pick_one(frame.values, at) for at in statement.numbers if frame.values]
            more = statement.more.value(self.xs, frame.known)
            one = pick_one(frame.tensors, statement.one)
            out = self.tasks.others["add"].invoke(AddInput(items=items, one=one, numbers=numbers, more=more), work=7)
            frame.tensors.append(out.y)
            frame.values.append(out.n)

    async def fold(self, statement: programs.Fold, frame: Frame, _: Any) -> None:
        parts, other = frame.two_flows(statement.parts, statement.other)
        if parts is not None and frame.spend():
            start = statement.start.value(self.xs, frame.known)
            fold_input = FoldInput(parts=parts.stream, other=other.stream if other is not None else None, start=start)
            out = self.tasks.others["fold"].invoke(fold_input)
            frame.tensors.append(out.y)
            frame.values.append(out.n)
            frame.flows.append(Flow(out.sums))

    async def spell(self, statement: programs.Spell, frame: Frame, _: Any) -> None:
        if frame.spend():
            text = "abcde"[: statement.x.value(self.xs, frame.known) % 6]
            out = self.tasks.spell.invoke(WordsInput(text=text, loud=statement.loud))
            frame.texts.append(out.letters)
            frame.values.append(out.count)

    async def echo(self, statement: programs.Echo, frame: Frame, _: Any) -> None:
        of = pick_one(frame.values, statement.of)
        if of is not None and frame.spend():
            x = statement.x.value(self.xs, frame.known)
            echo_input = EchoInput(what={"value": of, "k": [x, {"value": None}]}, box=Box(value=x, name="b"))
            frame.echoes.append(self.tasks.others["echo"].invoke(echo_input).what)

    async def roll(self, statement: programs.Roll, frame: Frame, _: Any) -> None:
        if frame.alone and frame.spend():
            of = pick_one(frame.values, statement.of)
            x = statement.x.value(self.xs, frame.known) if of is None else of
            frame.values.append(ROLL.invoke(NumberInput(x=x)).n)

    async def choose(self, statement: programs.Choose, frame: Frame, path: tuple[int, ...]) -> None:
        choice = choose(range(len(statement.weights)), statement.weights)
        frame.known.append(self.request.log.chose(path, choice))

    async def loop(self, statement: programs.Loop, frame: Frame, path: tuple[int, ...]) -> None:
        for index, x in enumerate(self.xs):
            frame.known.append(x)
            await self.block(statement.body, frame, (*path, index))

    async def nested(self, statement: programs.Nested, frame: Frame, path: tuple[int, ...]) -> None:
        request = WalkRequest(self.request.program, self.request.log, frame, statement.body, path)
        inner = getattr(self.tasks, "inner", None)
        if inner is None:  # nested twice: the same composite continues
            await self.block(statement.body, frame, path)
            return
        task = [inner[0], self.tasks.more["a"], self.tasks.more["b"]][statement.where % 3]
        waiting = task.invoke(request)
        if waiting is not None:
            await waiting

    async def wait(self, statement: programs.Wait, frame: Frame, _: Any) -> None:
        if statement.kind != "flows":
            result = pick_one(getattr(frame, statement.kind), statement.at)
            if result is not None:
                value = await result
                frame.known.append(int(value if statement.kind == "values" else value.sum()) % BOUND)
            return
        flow = pick_one(frame.flows, statement.at)
        if flow is not None and not flow.shared and flow.read != "parts":
            flow.read = "whole"
            frame.known.append(sum(await flow.stream) % BOUND)

    async def read(self, statement: programs.Read, frame: Frame, _: Any) -> None:
        flow = pick_one(frame.flows, statement.at)
        if flow is None or flow.shared or flow.read:
            return
        flow.read = "parts"
        count, total = 0, 0
        async for part in flow.stream:
            if count == statement.count:
                break
            count, total = count + 1, total + part
        frame.known.append(total % BOUND)

    async def late(self, statement: programs.Late, frame: Frame, _: Any) -> None:
        late = pick_one(frame.lates, statement.at)
        if late is not None:
            frame.known.append(int((await late).sum()) % BOUND)

    async def again(self, statement: programs.Again, frame: Frame, path: tuple[int, ...]) -> None:
        for turn in range(ROUNDS):
            await self.block(statement.body, frame, (*path, turn))
            if not frame.spend():
                return
            n = await self.tasks.numbers[0].invoke(NumberInput(x=statement.x.value(self.xs, frame.known) + turn)).n
            frame.known.append(n % BOUND)
            if n % 3 == 0:
                return

    async def gather(self, statement: programs.Gather, frame: Frame, path: tuple[int, ...]) -> None:
        forks = [frame.fork(len(statement.bodies)) for _ in statement.bodies]
        await asyncio.gather(
            *(
                self.block(body, fork, (*path, index))
                for index, (body, fork) in enumerate(zip(statement.bodies, forks, strict=True))
            )
        )
        frame.join(forks)

    async def tool(self, statement: programs.Tool, frame: Frame, path: tuple[int, ...]) -> None:
        x = statement.x.value(self.xs, frame.known)
        frame.known.append(await tool(self.request.log.effect, list(path), x))

    async def strict(self, statement: programs.Strict, frame: Frame, _: Any) -> None:
        """A call that may fail, in a separate segment.

        Its failure also cancels calls that run in parallel.
        """
        if not frame.alone or not frame.spend():
            return
        x = statement.x.value(self.xs, frame.known)
        frame.known.append(await self.tasks.numbers[0].invoke(NumberInput(x=x)).n % BOUND)
        try:
            frame.known.append(await STRICT.invoke(NumberInput(x=x)).n)
        except BadRequest:
            frame.known.append(-1)

    async def branch(self, statement: programs.Branch, frame: Frame, path: tuple[int, ...]) -> None:
        branch_body = statement.then if statement.x.value(self.xs, frame.known) % 2 else statement.other
        await self.block(branch_body, frame, path)
