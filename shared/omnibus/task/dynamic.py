"""Graphs that grow while they run: an async ``invoke`` may await results and branch on them.

At an ``await``, the calls recorded so far are sent as one segment; ``invoke`` continues with their results. Loops on
outputs (agents, tool calls, best-of-n) are part of the graph, and every segment is recorded. At the end, ``invoke``
runs again on the same results (``verify_replay``), before any result is returned.

Ids for concurrent branches of an ``invoke``, equal in every run.

Second run of an async ``invoke``: on the results of the first, comparing every call.

Concurrent branches may run in another order now that all results exist, so calls are compared branch by branch.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import msgspec

from omnibus.errors import OmnibusError, ReplayMismatch
from omnibus.graph import GraphNode, as_ref, call_digest, make_ref
from omnibus.task.input_codec import FROM, Refer, encode_literal, make_reference, returned_results
from omnibus.task.record import Recorder, invoke_error
from omnibus.task.result import STREAM, Observation, Result, Source
from omnibus.task.session import RecordableTask, Segment, Session

T = TypeVar("T")

#: Child numbers from the root; () is ``invoke`` itself.
Path = tuple[int, ...]


class _Branch:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.task = asyncio.current_task()
        self.children = 0


_branch: ContextVar[_Branch | None] = ContextVar("omnibus_branch", default=None)


@contextmanager
def enter_root_branch() -> Iterator[None]:
    """Start ``invoke`` in the current task."""
    token = _branch.set(_Branch(()))
    try:
        yield
    finally:
        _branch.reset(token)


def current_branch() -> Path:
    """Return the branch of the current task.

    Tasks inherit their creator's context, so a task that finds another task's branch is its child. Children are
    numbered at their first call, which is the order of their creation.
    """
    branch = _branch.get()
    if branch is None:
        return ()
    if branch.task is not asyncio.current_task():
        branch.children += 1
        branch = _Branch((*branch.path, branch.children))
        _branch.set(branch)
    return branch.path


class PendingActions(Generic[T]):
    """Actions of an earlier run that must be repeated.

    Each branch takes its own actions first, then an equal one of another branch: workers that share a queue may swap
    their actions.
    """

    def __init__(self) -> None:
        self._by_key: dict[Hashable, list[tuple[Path, T]]] = {}

    def put(self, key: Hashable, path: Path, action: T) -> None:
        self._by_key.setdefault(key, []).append((path, action))

    def take(self, key: Hashable) -> T | None:
        left = self._by_key.get(key, [])
        if not left:
            return None
        path = current_branch()
        own = next((index for index, (by, _) in enumerate(left) if by == path), 0)
        return left.pop(own)[1]

    def remaining_actions(self) -> list[T]:
        return [action for left in self._by_key.values() for _, action in left]


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


#: A node of a segment: (step, index).
Place = tuple[int, int]


class SegmentSubmitter(Protocol):
    """Interface of the request that a live session belongs to."""

    #: Number of equal calls so far, by call.
    calls: dict[str, int]

    def next_step(self) -> int:
        """Return the number of the next segment."""

    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], Source]: ...


class LiveSession(Recorder):
    """Records segment after segment while ``invoke`` runs."""

    def __init__(self, segments: SegmentSubmitter, point: Callable[[int], float]) -> None:
        super().__init__(segments.next_step(), point, segments, segments.calls)
        self.trace = Trace()
        self._segments = segments
        self._recorded: dict[int, Segment] = {}
        self._wanted: dict[int, list[Result]] = {}
        self._sent: dict[int, asyncio.Future[None]] = {}
        self._referred: dict[int, set[int]] = {}  # earlier segments whose results a segment uses, by step
        self._refused: set[int] = set()
        self._numbers: dict[Place, int] = {}
        self._copies: dict[Place, int] = {}

    # What `invoke` calls

    def call(self, task: RecordableTask, inputs: dict[str, Any], work: int) -> Any:
        text = call_shape(inputs, self._shape_reference)
        index = self.add_call(task, inputs, work, f"{task.name}{text}")
        step, name, output_type = self.step, task.name, task.outputs_type
        self._numbers[step, index] = self.trace.record_call(name, text)
        results = {
            output: Result(name, (index, output), kind, element, self, step, self)
            for output, kind, element in output_type.told
        }
        # Later reads are unknown: request all outputs except those on demand.
        self._request_outputs(*(result for output, result in results.items() if not output_type.fields[output][2]))
        return output_type.of(results)

    def _shape_reference(self, result: Result, _: Any) -> Any:
        """Return the JSON of ``result`` in a shape: a reference by its call's number in the request."""
        if result.maker is self:
            return make_ref(self.call_number(result), result.origin[1])
        return foreign_reference(result)

    def call_number(self, result: Result) -> int:
        """Return the number of the result's call in the request."""
        return self._numbers[result.step, result.origin[0]]

    def choose(self, count: int, weights: Sequence[float]) -> int:
        choice = super().choose(count, weights)
        self.trace.chosen.put(count, current_branch(), choice)
        return choice

    async def effect(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        effect_record = Effect()
        self.trace.effects.put(effect_key(function, arguments), current_branch(), effect_record)
        try:
            result = function(*arguments)
            effect_record.result = await result if inspect.isawaitable(result) else result
        except Exception as error:
            effect_record.error, effect_record.ended = error, True
            raise
        effect_record.ended = True
        return effect_record.result

    # What results call

    def register_branch(self) -> None:
        current_branch()

    async def ensure_source(self, result: Result) -> None:
        if result.source is not None:
            return
        if result.step == self.step:
            await asyncio.sleep(0)  # calls of concurrent branches join the segment
        if result.step == self.step:
            self._request_outputs(result)
            self._send_segment()
        await self._wait_for_sources(result.step)
        if result.source is None:
            await self._rerun_late_output(result)

    async def _wait_for_sources(self, step: int) -> None:
        try:
            await asyncio.shield(self._sent[step])
        except Exception:
            self._refused.add(step)  # `invoke` gets the error, and may continue without it
            raise

    def record_observation(self, result: Result, observation: Observation) -> None:
        self.trace.seen[self.call_number(result), result.origin[1], result.transform_count] = observation

    def earlier_observation(self, result: Result, whole: bool) -> Observation | None:
        return None

    def raise_read_beyond(self, result: Result) -> NoReturn:
        raise ReplayMismatch(f"{result.display_name} was read before")

    async def _rerun_late_output(self, result: Result) -> None:
        """Run a node again for an output that was requested too late.

        The copy runs in the current segment.
        """
        again = self._copy_result(result)
        self._send_segment()
        await self._wait_for_sources(again.step)
        _move_result(result, again)

    def _copy_result(self, result: Result) -> Result:
        """Return ``result`` of a copy of its node in the current segment."""
        index = self._copy_node(result.step, result.origin[0])
        again = Result(result.task, (index, result.origin[1]), result.kind, result.element, self, self.step)
        self._request_outputs(again)
        return again

    # Segments

    def _request_outputs(self, *results: Result) -> None:
        requests = self._wanted.setdefault(self.step, [])
        requests += [result for result in results if not any(result is request for request in requests)]

    def _send_segment(self) -> None:
        """Send the recorded calls; later calls belong to the next segment."""
        outputs = dict.fromkeys(result.origin for result in self._wanted.get(self.step, ()))
        segment = self._recorded[self.step] = self.build_segment(tuple(outputs))
        submission = self._sent[self.step] = asyncio.ensure_future(self._submit_segment(segment, self.step))
        submission.add_done_callback(_ignore_failure)
        self.step = self._segments.next_step()
        self.nodes, self.work, self.pins, self.choices = [], [], [], []
        self._copies.clear()

    async def _submit_segment(self, segment: Segment, step: int) -> None:
        # Branches send segments concurrently: one may still wait for its inputs when the next refers to its results.
        for earlier in sorted(self._referred.pop(step, ())):
            await asyncio.shield(self._sent[earlier])
        sources = await self._segments.submit(segment, step)
        for result in self._wanted.get(step, ()):
            result.source = sources.get(result.origin)

    async def send_remaining(self, answer: Any) -> None:
        """Send the remaining calls, so that every returned result gets a source."""
        again: list[tuple[Result, Result]] = []
        for result in {
            id(each.base_result): each.base_result for each in returned_results(answer) if each.maker is self
        }.values():
            if result.step == self.step:
                self._request_outputs(result)
            elif result.origin not in self._recorded[result.step].outputs:
                again.append((result, self._copy_result(result)))
        if self.nodes:
            self._send_segment()
        for step in sorted(self._sent.keys() - self._refused):
            await self._wait_for_sources(step)
        for result, anew in again:
            _move_result(result, anew)

    # References to earlier segments

    def encode_result(self, result: Result, uses: list[tuple[int, str]]) -> Any:
        if result.maker is not self or result.step == self.step or result.is_transformed:
            return make_reference(result, uses, self)
        return self._encode_earlier_output(result.step, result.origin, result.kind == STREAM, uses)

    def _encode_earlier_output(
        self, step: int, origin: tuple[int, str], stream: bool, uses: list[tuple[int, str]]
    ) -> Any:
        """Return an output of an earlier segment: its value if it was kept, else of a copy of its node."""
        if not stream and origin in self._recorded[step].outputs:
            self._referred.setdefault(self.step, set()).add(step)
            return {FROM: [step, *origin]}
        here = (self._copy_node(step, origin[0]), origin[1])
        uses.append(here)
        return make_ref(*here)

    def _copy_node(self, step: int, index: int) -> int:
        """Copy an earlier segment's node into the current one, at most once.

        The copy has equal inputs and seed. Returns its index.
        """
        if (step, index) not in self._copies:
            segment = self._recorded[step]
            old, uses = segment.nodes[index], list[tuple[int, str]]()
            inputs = self._move_references(old.inputs, step, uses)
            digest, used_outputs = call_digest(old.task, inputs), tuple(dict.fromkeys(uses))
            self.nodes.append(GraphNode(old.task, old.component, inputs, digest, used_outputs, old.model, old.salt))
            self.work.append(segment.work[index])
            self.pins.append(segment.pins[index])
            self._copies[step, index] = len(self.nodes) - 1
            self._numbers[self.step, len(self.nodes) - 1] = self._numbers[step, index]
        return self._copies[step, index]

    def _move_references(self, value: Any, step: int, uses: list[tuple[int, str]]) -> Any:
        origin = as_ref(value)
        if origin is not None:
            streams = (each.kind == STREAM for each in self._wanted.get(step, ()) if each.origin == origin)
            return self._encode_earlier_output(step, origin, next(streams, True), uses)
        if type(value) is list:
            return [self._move_references(element, step, uses) for element in value]
        if type(value) is dict:
            return {key: self._move_references(element, step, uses) for key, element in value.items()}
        return value


async def run_live(
    segments: SegmentSubmitter, point: Callable[[int], float], invoke: Callable[[Any], Awaitable[Any]], request: Any
) -> Any:
    """Run an async ``invoke``; returns its answer, whose results may still be arriving."""
    live = LiveSession(segments, point)
    verifier = Verifier(live.trace, segments)
    try:
        with live, enter_root_branch():
            answer = await invoke(request)
        live.raise_remembered_error()
        await live.send_remaining(answer)
        before = named_results(answer, live, live.call_number)
        with verifier, enter_root_branch():
            again = await invoke(request)
    except OmnibusError:
        raise
    except Exception as error:
        raise invoke_error(invoke, error) from error
    verifier.verify_answer(before, again)
    return answer


def _move_result(result: Result, again: Result) -> None:
    result.step, result.origin, result.source = again.step, again.origin, again.source


def _ignore_failure(future: "asyncio.Future[None]") -> None:
    """Retrieve the exception, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()
