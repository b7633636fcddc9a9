"""The second run of an async ``invoke``: on what the first one saw, with every call compared.

Branches that run side by side may take turns in another order now that all results are there, so calls are
compared branch by branch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec

from omnibus.errors import ReplayMismatch
from omnibus.graph import ref
from omnibus.task.branch_ids import Left, here
from omnibus.task.input_codec import FROM, Refer, plain, returned
from omnibus.task.result import Result, Seen
from omnibus.task.session import Called, Session

#: Where a result stands in an answer: number of its call, output, transforms.
Named = tuple[int, str, int]


class Effect:
    """One call of a tool, and what came of it."""

    def __init__(self) -> None:
        self.ended = False
        self.result: Any = None
        self.error: Exception | None = None


class Trace:
    """Record of what an ``invoke`` did and saw. Calls are numbered over all segments."""

    def __init__(self) -> None:
        self.calls: Left[int] = Left()
        self.chosen: Left[int] = Left()
        self.effects: Left[Effect] = Left()
        self.seen: dict[Named, Seen] = {}
        self.tasks: list[str] = []  # by number

    def called(self, task: str, inputs: str) -> int:
        """Note a call; returns its number."""
        self.tasks.append(task)
        self.calls.put((task, inputs), here(), len(self.tasks) - 1)
        return len(self.tasks) - 1


class Verifier(Session):
    def __init__(self, trace: Trace, scope: object) -> None:
        super().__init__(scope)
        self._trace = trace

    def call(self, task: Called, inputs: dict[str, Any], work: int) -> Any:
        name = task.name
        number = self._trace.calls.take((name, shape(inputs, self._number)))
        if number is None:
            self._differs(f"a call of {name} is not in the record, or got other inputs on replay")
        return task.outputs_type.of(
            {
                output: Result(name, (number, output), kind, element, self, 0, self)
                for output, kind, element in task.outputs_type.told
            }
        )

    def _number(self, result: Result, _: Any) -> Any:
        return ref(*result.origin) if result.maker is self else mark(result)

    def choose(self, count: int, weights: Sequence[float]) -> int:
        chosen = self._trace.chosen.take(count)
        if chosen is None:
            self._differs("`invoke` chose among other options on replay")
        return chosen

    async def effect(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        done = self._trace.effects.take(effect_key(function, arguments))
        if done is None:
            self._differs(f"`invoke` called the tool {_called(function)} on replay, or with other arguments")
        if not done.ended:
            self._differs(f"`invoke` waited for the tool {_called(function)} on replay, and did not before")
        if done.error is not None:
            raise done.error
        return done.result

    def touched(self) -> None:
        here()

    async def bound(self, result: Result) -> None:
        self._differs(f"`invoke` reads {result.shown} on replay, and did not before")

    def observed(self, result: Result, seen: Seen) -> None:
        """Nothing new."""

    def look(self, result: Result, whole: bool) -> Seen | None:
        seen = self._trace.seen.get((*result.origin, result.transforms))
        if seen is not None and seen.whole != whole:
            self.beyond(result)
        return seen

    def beyond(self, result: Result) -> NoReturn:
        self._differs(f"`invoke` reads more of {result.shown} on replay than before")

    def compare(self, before: Sequence[Named], answer: Any) -> None:
        """Raise unless everything was done again, and ``answer`` holds the results that it held ``before``."""
        self.check()
        left = self._trace.calls.all()
        if left:
            tasks = ", ".join(self._trace.tasks[number] for number in left[:5])
            self._differs(f"replay did not call {tasks}, which the record has")
        if list(before) != named(answer, self, lambda result: result.origin[0]):
            self._differs("replay returned other results than the record has")

    def _differs(self, what: str) -> NoReturn:
        raise self.refused(
            ReplayMismatch(
                f"{what}: `invoke` must not depend on time, randomness or anything outside of its request and results; "
                "wrap what does in `tool`"
            )
        )


def named(answer: Any, maker: Session, number: Callable[[Result], int]) -> list[Named]:
    """The results of ``maker`` in an answer, in order."""
    return [
        (number(result), result.origin[1], result.transforms) for result in returned(answer) if result.maker is maker
    ]


def mark(result: Result) -> Any:
    """Return the reference that stands for a result of another graph in a call's shape."""
    return {FROM: [result.step, *result.origin]}


def shape(inputs: dict[str, Any], refer: Refer) -> str:
    """A call's inputs as text, with references to calls by their number in the request."""
    return _sorted.encode({name: plain(value, refer, []) for name, value in inputs.items()}).decode()


_sorted = msgspec.json.Encoder(order="sorted")


def effect_key(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    try:
        shown = _sorted.encode(arguments).decode()
    except TypeError:  # told apart by their order alone
        shown = ""
    return f"{_called(function)}{shown}"


def _called(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"
