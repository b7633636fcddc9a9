"""Second run of an async ``invoke``: on the results of the first, comparing every call.

Concurrent branches may run in another order now that all results exist, so calls are compared branch by branch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec

from omnibus.errors import ReplayMismatch
from omnibus.graph import make_ref
from omnibus.task.branch_ids import PendingActions, current_branch
from omnibus.task.input_codec import FROM, Refer, encode_literal, returned_results
from omnibus.task.result import Observation, Result
from omnibus.task.session import RecordableTask, Session

#: Place of a result in an answer: number of its call, output, transforms.
Named = tuple[int, str, int]


class Effect:
    """One call of a tool, and its result."""

    def __init__(self) -> None:
        self.ended = False
        self.result: Any = None
        self.error: Exception | None = None


class Trace:
    """Record of the actions and results of an ``invoke``. Calls are numbered over all segments."""

    def __init__(self) -> None:
        self.calls: PendingActions[int] = PendingActions()
        self.chosen: PendingActions[int] = PendingActions()
        self.effects: PendingActions[Effect] = PendingActions()
        self.seen: dict[Named, Observation] = {}
        self.tasks: list[str] = []  # by number

    def record_call(self, task: str, inputs: str) -> int:
        """Record a call; returns its number."""
        self.tasks.append(task)
        self.calls.put((task, inputs), current_branch(), len(self.tasks) - 1)
        return len(self.tasks) - 1


class Verifier(Session):
    def __init__(self, trace: Trace, scope: object) -> None:
        super().__init__(scope)
        self._trace = trace

    def call(self, task: RecordableTask, inputs: dict[str, Any], work: int) -> Any:
        name = task.name
        number = self._trace.calls.take((name, call_shape(inputs, self._shape_reference)))
        if number is None:
            self._raise_mismatch(f"a call of {name} is not in the record, or got other inputs on replay")
        return task.outputs_type.of(
            {
                output: Result(name, (number, output), kind, element, self, 0, self)
                for output, kind, element in task.outputs_type.told
            }
        )

    def _shape_reference(self, result: Result, _: Any) -> Any:
        return make_ref(*result.origin) if result.maker is self else foreign_reference(result)

    def choose(self, count: int, weights: Sequence[float]) -> int:
        choice = self._trace.chosen.take(count)
        if choice is None:
            self._raise_mismatch("`invoke` chose among other options on replay")
        return choice

    async def effect(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        effect_record = self._trace.effects.take(effect_key(function, arguments))
        if effect_record is None:
            self._raise_mismatch(
                f"`invoke` called the tool {_function_name(function)} on replay, or with other arguments"
            )
        if not effect_record.ended:
            self._raise_mismatch(
                f"`invoke` waited for the tool {_function_name(function)} on replay, and did not before"
            )
        if effect_record.error is not None:
            raise effect_record.error
        return effect_record.result

    def register_branch(self) -> None:
        current_branch()

    async def ensure_source(self, result: Result) -> None:
        self._raise_mismatch(f"`invoke` reads {result.display_name} on replay, and did not before")

    def record_observation(self, result: Result, observation: Observation) -> None:
        """Do nothing: the first run recorded it."""

    def earlier_observation(self, result: Result, whole: bool) -> Observation | None:
        observation = self._trace.seen.get((*result.origin, result.transform_count))
        if observation is not None and observation.whole != whole:
            self.raise_read_beyond(result)
        return observation

    def raise_read_beyond(self, result: Result) -> NoReturn:
        self._raise_mismatch(f"`invoke` reads more of {result.display_name} on replay than before")

    def verify_answer(self, before: Sequence[Named], answer: Any) -> None:
        """Raise unless all calls were repeated and ``answer`` equals ``before``."""
        self.raise_remembered_error()
        left = self._trace.calls.remaining_actions()
        if left:
            tasks = ", ".join(self._trace.tasks[number] for number in left[:5])
            self._raise_mismatch(f"replay did not call {tasks}, which the record has")
        if list(before) != named_results(answer, self, lambda result: result.origin[0]):
            self._raise_mismatch("replay returned other results than the record has")

    def _raise_mismatch(self, text: str) -> NoReturn:
        raise self.remember_error(
            ReplayMismatch(
                f"{text}: `invoke` must not depend on time, randomness or anything outside of its request and results; "
                "wrap such code in `tool`"
            )
        )


def named_results(answer: Any, maker: Session, number: Callable[[Result], int]) -> list[Named]:
    """Return the results of ``maker`` in an answer, in order."""
    return [
        (number(result), result.origin[1], result.transform_count)
        for result in returned_results(answer)
        if result.maker is maker
    ]


def foreign_reference(result: Result) -> Any:
    """Return the reference to another graph's result in a call's shape."""
    return {FROM: [result.step, *result.origin]}


def call_shape(inputs: dict[str, Any], refer: Refer) -> str:
    """Return a call's inputs as text, with call numbers as references."""
    return _sorted.encode({name: encode_literal(value, refer, []) for name, value in inputs.items()}).decode()


_sorted = msgspec.json.Encoder(order="sorted")


def effect_key(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    try:
        arguments_text = _sorted.encode(arguments).decode()
    except TypeError:  # distinguished only by their order
        arguments_text = ""
    return f"{_function_name(function)}{arguments_text}"


def _function_name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"
