"""Random programs for a composite task, as data.

Two interpreters run them: ``drawn`` and ``oracle``. Statements refer to existing values by a number, modulo their
count, so every program has a meaning. ``Frame`` contains the existing values.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

#: Calls that one program may make, and rounds of its loops.
BUDGET, ROUNDS = 24, 3
#: Numbers that are read from results stay below.
BOUND = 100

Body = tuple[Any, ...]


@dataclass(frozen=True)
class Expr:
    """A known number: a literal, one of the request, or one read from a result."""

    kind: str
    at: int

    def value(self, xs: tuple[int, ...], known_values: list[int]) -> int:
        pool = {"literal": (), "argument": xs, "known": tuple(known_values)}[self.kind]
        return pool[self.at % len(pool)] % BOUND if pool else self.at


@dataclass(frozen=True)
class Number:
    which: int
    x: Expr
    of: int  # a value in place of ``x``; -1 for none


@dataclass(frozen=True)
class Add:
    items: tuple[int, ...]
    one: int
    numbers: tuple[int, ...]
    more: Expr


@dataclass(frozen=True)
class Fold:
    parts: int
    other: int
    start: Expr


@dataclass(frozen=True)
class Spell:
    x: Expr
    loud: bool


@dataclass(frozen=True)
class Echo:
    of: int
    x: Expr


@dataclass(frozen=True)
class Roll:
    x: Expr
    of: int


@dataclass(frozen=True)
class Branch:
    x: Expr
    then: Body
    other: Body


@dataclass(frozen=True)
class Loop:
    body: Body


@dataclass(frozen=True)
class Choose:
    weights: tuple[int, ...]


@dataclass(frozen=True)
class Nested:
    body: Body
    where: int


# Only where results may be awaited


@dataclass(frozen=True)
class Wait:
    kind: str
    at: int


@dataclass(frozen=True)
class Read:
    at: int
    count: int


@dataclass(frozen=True)
class Late:
    at: int


@dataclass(frozen=True)
class Again:
    body: Body
    x: Expr


@dataclass(frozen=True)
class Gather:
    bodies: tuple[Body, ...]


@dataclass(frozen=True)
class Tool:
    x: Expr


@dataclass(frozen=True)
class Strict:
    x: Expr


@dataclass(frozen=True)
class Program:
    """A program; ``returns`` are (kind, index, way of reading)."""

    xs: tuple[int, ...]
    body: Body
    returns: tuple[tuple[str, int, str], ...]
    live: bool
    seed: int


# What there is


@dataclass
class Flow:
    """A stream, and whether ``invoke`` has read it.

    ``shared``: other branches may read it, so this branch must not.
    """

    stream: Any
    read: str = ""
    shared: bool = False


@dataclass
class Frame:
    tensors: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    lates: list[Any] = field(default_factory=list)
    texts: list[Any] = field(default_factory=list)
    echoes: list[Any] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    budget: int = BUDGET
    alone: bool = True

    def spend(self) -> bool:
        """Return True if one more call is allowed."""
        self.budget -= 1
        return self.budget >= 0

    def two_flows(self, one: int, other: int) -> tuple[Flow | None, Flow | None]:
        """Draw two different streams, because a call cannot use one twice."""
        first, second = pick_one(self.flows, one), pick_one(self.flows, other)
        return first, second if second is None or second.stream is not first.stream else None

    def fork(self, branches: int) -> "Frame":
        flows = [Flow(flow.stream, flow.read, shared=True) for flow in self.flows]
        lists = {name: list(getattr(self, name)) for name in LISTS}
        return Frame(**{**lists, "flows": flows, "budget": self.budget // branches, "alone": False})

    def join(self, forks: "list[Frame]") -> None:
        """Adopt the results of branches in their order."""
        before = {name: len(getattr(self, name)) for name in LISTS}
        self.budget -= sum(self.budget // len(forks) - max(fork.budget, 0) for fork in forks)
        for fork in forks:
            for name, count in before.items():
                getattr(self, name).extend(getattr(fork, name)[count:])


LISTS = ("tensors", "values", "flows", "lates", "texts", "echoes", "known")


def pick_one(pool: list[Any], at: int) -> Any:
    """Return one of ``pool``, or None if empty or chosen so."""
    return pool[at % len(pool)] if pool and at >= 0 else None


# Drawing

_at = st.integers(0, 7)
_maybe = st.integers(-2, 5).map(lambda at: max(at, -1))
_several = st.lists(_at, max_size=3).map(tuple)
_expr = st.builds(Expr, st.sampled_from(["literal", "argument", "known"]), st.integers(0, 9))
_how = st.sampled_from(["await", "iterate", "transform"])
_kinds = st.sampled_from(["tensors", "values", "flows", "lates", "texts", "echoes"])

_calls = (
    st.builds(Number, st.integers(0, 1), _expr, _maybe),
    st.builds(Add, _several, _maybe, _several, _expr),
    st.builds(Fold, _at, _maybe, _expr),
    st.builds(Spell, _expr, st.booleans()),
    st.builds(Echo, _at, _expr),
    st.builds(Roll, st.builds(Expr, st.just("literal"), st.integers(0, 1)), _maybe),
    st.builds(Choose, st.lists(st.integers(0, 3), min_size=1, max_size=3).filter(any).map(tuple)),
)
_reads = (
    st.builds(Wait, st.sampled_from(["tensors", "values", "flows"]), _at),
    st.builds(Read, _at, st.integers(0, 3)),
    st.builds(Late, _at),
    st.builds(Tool, _expr),
    st.builds(Strict, _expr),
)


def _draw_bodies(live: bool, depth: int, least: int, most: int) -> st.SearchStrategy[Body]:
    kinds = [*_calls, *(_reads if live else ())]
    if depth:
        inner = _draw_bodies(live, depth - 1, 1, 4)
        kinds += [st.builds(Branch, _expr, inner, inner), st.builds(Loop, inner), st.builds(Nested, inner, _at)]
        if live:
            kinds += [
                st.builds(Again, inner, _expr),
                st.builds(Gather, st.lists(inner, min_size=2, max_size=3).map(tuple)),
            ]
    return st.lists(st.one_of(kinds), min_size=least, max_size=most).map(tuple)


_BODIES = {live: _draw_bodies(live, 2, 4, 9) for live in (False, True)}


@st.composite
def draw_programs(draw: Any, static: bool = False) -> Program:
    live = not static and draw(st.sampled_from([True, True, False]))
    first = Number(0, draw(_expr), -1)
    return Program(
        xs=tuple(draw(st.lists(st.integers(0, 9), max_size=3))),
        body=(first, *draw(_BODIES[live])),
        returns=tuple(draw(st.lists(st.tuples(_kinds, _at, _how), min_size=2, max_size=6))),
        live=live,
        seed=draw(st.integers(0, 5)),
    )
