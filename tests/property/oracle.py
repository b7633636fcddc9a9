"""Run programs directly in Python, to get the expected answer.

This involves no tasks, graphs or systems.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import Any

from tests.property import programs
from tests.property.drawn import apply_effect
from tests.property.programs import BOUND, ROUNDS, Flow, Frame, Program, pick_one
from tests.unit.task.tasks import MANY

#: Between the seeds of equal calls: see ``omnibus.graph``.
STRIDE = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class OracleValue:
    """A value and its result, because two results may have one value."""

    value: Any
    id: int


class Oracle:
    """Reference interpreter; ``choices`` are choices by place, ``effects`` the expected tool calls."""

    def __init__(self, program: Program, choices: dict[tuple[int, ...], int]) -> None:
        self.program = program
        self.xs = program.xs
        self.chosen = choices
        self.effects: Counter[tuple[int, ...]] = Counter()
        self._rolled: Counter[Any] = Counter()
        self._ids = count()

    def answer(self) -> list[Any]:
        frame = Frame()
        self.block(self.program.body, frame, ())
        results: list[OracleValue] = []
        answers = []
        for kind, at, how in self.program.returns:
            pool = [flow.stream for flow in frame.flows if not flow.read] if kind == "flows" else getattr(frame, kind)
            result = pick_one(pool, at)
            if result is None or result in results:
                continue
            results.append(result)
            is_doubled = kind == "flows" and how == "transform"
            answers.append([part * 2 for part in result.value] if is_doubled else result.value)
        return answers

    def make_value(self, value: Any) -> OracleValue:
        return OracleValue(value, next(self._ids))

    def block(self, body: Any, frame: Frame, path: tuple[int, ...]) -> None:
        for index, statement in enumerate(body):
            getattr(self, type(statement).__name__.lower())(statement, frame, (*path, index))

    def known(self, statement: programs.Expr, frame: Frame) -> int:
        return statement.value(self.xs, frame.known)

    # Tasks

    def number(self, statement: programs.Number, frame: Frame, _: Any) -> None:
        if frame.spend():
            of = pick_one(frame.values, statement.of)
            x = (self.known(statement.x, frame) if of is None else of.value) * (statement.which + 1)
            frame.tensors.append(self.make_value([x, x]))
            frame.values.append(self.make_value(x))
            frame.flows.append(Flow(self.make_value([x + each for each in range(x % 4)])))
            frame.lates.append(self.make_value([x, 1]))

    def add(self, statement: programs.Add, frame: Frame, _: Any) -> None:
        if frame.spend():
            items = [pick_one(frame.tensors, at) for at in statement.items if frame.tensors]
            one = pick_one(frame.tensors, statement.one)
            numbers = [pick_one(frame.values, at).value for at in statement.numbers if frame.values]
            total = sum(sum(each.value) for each in [*items, *([one] if one is not None else [])])
            total = (total + sum(numbers) + self.known(statement.more, frame)) % MANY
            frame.tensors.append(self.make_value([total, 0]))
            frame.values.append(self.make_value(total))

    def fold(self, statement: programs.Fold, frame: Frame, _: Any) -> None:
        parts, other = frame.two_flows(statement.parts, statement.other)
        if parts is not None and frame.spend():
            total, sums = self.known(statement.start, frame), []
            for part in parts.stream.value:
                total = (total + part) % MANY
                sums.append(total)
            total = (total + (sum(other.stream.value) if other is not None else 0)) % MANY
            frame.tensors.append(self.make_value([total, 1]))
            frame.values.append(self.make_value(total))
            frame.flows.append(Flow(self.make_value(sums)))

    def spell(self, statement: programs.Spell, frame: Frame, _: Any) -> None:
        if frame.spend():
            text = "abcde"[: self.known(statement.x, frame) % 6]
            frame.texts.append(self.make_value(text.upper() if statement.loud else text))
            frame.values.append(self.make_value(len(text)))

    def echo(self, statement: programs.Echo, frame: Frame, _: Any) -> None:
        of = pick_one(frame.values, statement.of)
        if of is not None and frame.spend():
            frame.echoes.append(
                self.make_value({"value": of.value, "k": [self.known(statement.x, frame), {"value": None}]})
            )

    def roll(self, statement: programs.Roll, frame: Frame, _: Any) -> None:
        if frame.alone and frame.spend():
            of = pick_one(frame.values, statement.of)
            x = self.known(statement.x, frame) if of is None else of.value
            call = ("literal", x) if of is None else ("result", of.id)
            seed = (self.program.seed + self._rolled[call] * STRIDE) % 2**63
            self._rolled[call] += 1
            frame.values.append(self.make_value(seed % 1000 + x))

    # Control flow

    def choose(self, statement: programs.Choose, frame: Frame, path: tuple[int, ...]) -> None:
        choice = self.chosen[path]
        assert statement.weights[choice] > 0
        frame.known.append(choice)

    def loop(self, statement: programs.Loop, frame: Frame, path: tuple[int, ...]) -> None:
        for index, x in enumerate(self.xs):
            frame.known.append(x)
            self.block(statement.body, frame, (*path, index))

    def nested(self, statement: programs.Nested, frame: Frame, path: tuple[int, ...]) -> None:
        self.block(statement.body, frame, path)

    def branch(self, statement: programs.Branch, frame: Frame, path: tuple[int, ...]) -> None:
        self.block(statement.then if self.known(statement.x, frame) % 2 else statement.other, frame, path)

    def again(self, statement: programs.Again, frame: Frame, path: tuple[int, ...]) -> None:
        for turn in range(ROUNDS):
            self.block(statement.body, frame, (*path, turn))
            if not frame.spend():
                return
            n = self.known(statement.x, frame) + turn
            frame.known.append(n % BOUND)
            if n % 3 == 0:
                return

    def gather(self, statement: programs.Gather, frame: Frame, path: tuple[int, ...]) -> None:
        forks = [frame.fork(len(statement.bodies)) for _ in statement.bodies]
        for index, (body, fork) in enumerate(zip(statement.bodies, forks, strict=True)):
            self.block(body, fork, (*path, index))
        frame.join(forks)

    # Reading

    def wait(self, statement: programs.Wait, frame: Frame, _: Any) -> None:
        if statement.kind != "flows":
            result = pick_one(getattr(frame, statement.kind), statement.at)
            if result is not None:
                frame.known.append((result.value if statement.kind == "values" else sum(result.value)) % BOUND)
            return
        flow = pick_one(frame.flows, statement.at)
        if flow is not None and not flow.shared and flow.read != "parts":
            flow.read = "whole"
            frame.known.append(sum(flow.stream.value) % BOUND)

    def read(self, statement: programs.Read, frame: Frame, _: Any) -> None:
        flow = pick_one(frame.flows, statement.at)
        if flow is not None and not flow.shared and not flow.read:
            flow.read = "parts"
            frame.known.append(sum(flow.stream.value[: statement.count]) % BOUND)

    def late(self, statement: programs.Late, frame: Frame, _: Any) -> None:
        late = pick_one(frame.lates, statement.at)
        if late is not None:
            frame.known.append(sum(late.value) % BOUND)

    def tool(self, statement: programs.Tool, frame: Frame, path: tuple[int, ...]) -> None:
        self.effects[path] += 1
        frame.known.append(apply_effect(self.known(statement.x, frame)))

    def strict(self, statement: programs.Strict, frame: Frame, _: Any) -> None:
        if frame.alone and frame.spend():
            x = self.known(statement.x, frame)
            frame.known.append(x % BOUND)
            frame.known.append(-1 if x % 2 else x)
