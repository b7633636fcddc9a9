"""Run programs directly in Python, to get the expected answer.

This involves no tasks, graphs or systems.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import Any

from tests.property import programs
from tests.property.drawn import effect
from tests.property.programs import BOUND, ROUNDS, Flow, Frame, Program, pick
from tests.unit.task.tasks import MANY

#: Between the seeds of equal calls: see ``omnibus.graph``.
STRIDE = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Made:
    """A value and its result, because two results may have one value."""

    value: Any
    id: int


class Oracle:
    """Reference interpreter; ``chosen`` are choices by place, ``effects`` the expected tool calls."""

    def __init__(self, program: Program, chosen: dict[tuple[int, ...], int]) -> None:
        self.program = program
        self.xs = program.xs
        self.chosen = chosen
        self.effects: Counter[tuple[int, ...]] = Counter()
        self._rolled: Counter[Any] = Counter()
        self._ids = count()

    def answer(self) -> list[Any]:
        frame = Frame()
        self.block(self.program.body, frame, ())
        found: list[Made] = []
        told = []
        for kind, at, how in self.program.returns:
            given = [flow.stream for flow in frame.flows if not flow.read] if kind == "flows" else getattr(frame, kind)
            made = pick(given, at)
            if made is None or made in found:
                continue
            found.append(made)
            doubled = kind == "flows" and how == "transform"
            told.append([part * 2 for part in made.value] if doubled else made.value)
        return told

    def made(self, value: Any) -> Made:
        return Made(value, next(self._ids))

    def block(self, body: Any, frame: Frame, path: tuple[int, ...]) -> None:
        for index, statement in enumerate(body):
            getattr(self, type(statement).__name__.lower())(statement, frame, (*path, index))

    def known(self, given: programs.Expr, frame: Frame) -> int:
        return given.value(self.xs, frame.known)

    # Tasks

    def number(self, given: programs.Number, frame: Frame, _: Any) -> None:
        if frame.spend():
            of = pick(frame.values, given.of)
            x = (self.known(given.x, frame) if of is None else of.value) * (given.which + 1)
            frame.tensors.append(self.made([x, x]))
            frame.values.append(self.made(x))
            frame.flows.append(Flow(self.made([x + each for each in range(x % 4)])))
            frame.lates.append(self.made([x, 1]))

    def add(self, given: programs.Add, frame: Frame, _: Any) -> None:
        if frame.spend():
            items = [pick(frame.tensors, at) for at in given.items if frame.tensors]
            one = pick(frame.tensors, given.one)
            numbers = [pick(frame.values, at).value for at in given.numbers if frame.values]
            total = sum(sum(each.value) for each in [*items, *([one] if one is not None else [])])
            total = (total + sum(numbers) + self.known(given.more, frame)) % MANY
            frame.tensors.append(self.made([total, 0]))
            frame.values.append(self.made(total))

    def fold(self, given: programs.Fold, frame: Frame, _: Any) -> None:
        parts, other = frame.two_flows(given.parts, given.other)
        if parts is not None and frame.spend():
            total, sums = self.known(given.start, frame), []
            for part in parts.stream.value:
                total = (total + part) % MANY
                sums.append(total)
            total = (total + (sum(other.stream.value) if other is not None else 0)) % MANY
            frame.tensors.append(self.made([total, 1]))
            frame.values.append(self.made(total))
            frame.flows.append(Flow(self.made(sums)))

    def spell(self, given: programs.Spell, frame: Frame, _: Any) -> None:
        if frame.spend():
            text = "abcde"[: self.known(given.x, frame) % 6]
            frame.texts.append(self.made(text.upper() if given.loud else text))
            frame.values.append(self.made(len(text)))

    def echo(self, given: programs.Echo, frame: Frame, _: Any) -> None:
        of = pick(frame.values, given.of)
        if of is not None and frame.spend():
            frame.echoes.append(self.made({"value": of.value, "k": [self.known(given.x, frame), {"value": None}]}))

    def roll(self, given: programs.Roll, frame: Frame, _: Any) -> None:
        if frame.alone and frame.spend():
            of = pick(frame.values, given.of)
            x = self.known(given.x, frame) if of is None else of.value
            call = ("literal", x) if of is None else ("result", of.id)
            seed = (self.program.seed + self._rolled[call] * STRIDE) % 2**63
            self._rolled[call] += 1
            frame.values.append(self.made(seed % 1000 + x))

    # Control flow

    def choose(self, given: programs.Choose, frame: Frame, path: tuple[int, ...]) -> None:
        chosen = self.chosen[path]
        assert given.weights[chosen] > 0
        frame.known.append(chosen)

    def loop(self, given: programs.Loop, frame: Frame, path: tuple[int, ...]) -> None:
        for index, x in enumerate(self.xs):
            frame.known.append(x)
            self.block(given.body, frame, (*path, index))

    def nested(self, given: programs.Nested, frame: Frame, path: tuple[int, ...]) -> None:
        self.block(given.body, frame, path)

    def branch(self, given: programs.Branch, frame: Frame, path: tuple[int, ...]) -> None:
        self.block(given.then if self.known(given.x, frame) % 2 else given.other, frame, path)

    def again(self, given: programs.Again, frame: Frame, path: tuple[int, ...]) -> None:
        for turn in range(ROUNDS):
            self.block(given.body, frame, (*path, turn))
            if not frame.spend():
                return
            n = self.known(given.x, frame) + turn
            frame.known.append(n % BOUND)
            if n % 3 == 0:
                return

    def gather(self, given: programs.Gather, frame: Frame, path: tuple[int, ...]) -> None:
        forks = [frame.fork(len(given.bodies)) for _ in given.bodies]
        for index, (body, fork) in enumerate(zip(given.bodies, forks, strict=True)):
            self.block(body, fork, (*path, index))
        frame.join(forks)

    # Reading

    def wait(self, given: programs.Wait, frame: Frame, _: Any) -> None:
        if given.kind != "flows":
            made = pick(getattr(frame, given.kind), given.at)
            if made is not None:
                frame.known.append((made.value if given.kind == "values" else sum(made.value)) % BOUND)
            return
        flow = pick(frame.flows, given.at)
        if flow is not None and not flow.shared and flow.read != "parts":
            flow.read = "whole"
            frame.known.append(sum(flow.stream.value) % BOUND)

    def read(self, given: programs.Read, frame: Frame, _: Any) -> None:
        flow = pick(frame.flows, given.at)
        if flow is not None and not flow.shared and not flow.read:
            flow.read = "parts"
            frame.known.append(sum(flow.stream.value[: given.count]) % BOUND)

    def late(self, given: programs.Late, frame: Frame, _: Any) -> None:
        late = pick(frame.lates, given.at)
        if late is not None:
            frame.known.append(sum(late.value) % BOUND)

    def tool(self, given: programs.Tool, frame: Frame, path: tuple[int, ...]) -> None:
        self.effects[path] += 1
        frame.known.append(effect(self.known(given.x, frame)))

    def strict(self, given: programs.Strict, frame: Frame, _: Any) -> None:
        if frame.alone and frame.spend():
            x = self.known(given.x, frame)
            frame.known.append(x % BOUND)
            frame.known.append(-1 if x % 2 else x)
