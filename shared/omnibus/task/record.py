"""Record and replay. Source: Cornserve section 5.2, made safe by verifying every call.

``record`` runs ``invoke`` with placeholders and returns the graph, a ``Segment``. ``replay`` runs it again with the
results. Each call is compared with the record (position, task, inputs), and a mismatch raises ``ReplayMismatch`` before
any result is returned. An async ``invoke`` that awaits results runs as several segments: see ``dynamic``.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from omnibus.errors import BadRequest, GraphError, OmnibusError, PlaceholderError, ReplayMismatch, StreamConsumed
from omnibus.graph import GraphNode, call_digest
from omnibus.task.input_codec import FROM, encode_literal, make_reference, returned_results
from omnibus.task.result import STREAM, Result
from omnibus.task.session import (
    MAX_CALLS,
    RecordableTask,
    Segment,
    Session,
    choose,
    graph_size_error,
    pin,
    pinned,
    require_session,
)

__all__ = ["FROM", "Recorder", "Segment", "choose", "encode_literal", "pinned", "record", "replay", "require_session"]


class Recorder(Session):
    """Collects the calls of one segment. ``point(site)`` in [0, 1) decides the ``site``-th choice.

    ``calls`` counts equal calls. Graphs of a request that share it count them together.
    """

    def __init__(
        self,
        step: int = 0,
        point: Callable[[int], float] | None = None,
        scope: object = None,
        calls: dict[str, int] | None = None,
    ) -> None:
        super().__init__(scope)
        self.step = step
        self.nodes: list[GraphNode] = []
        self.work: list[int] = []
        self.pins: list[str] = []
        self.choices: list[int] = []
        self._point = point
        self._equal = {} if calls is None else calls

    def call(self, task: RecordableTask, inputs: dict[str, Any], work: int) -> Any:
        index = self.add_call(task, inputs, work)
        name, step, output_type = task.name, self.step, task.outputs_type
        return output_type.of(
            {
                output: Result(name, (index, output), kind, element, self, step)
                for output, kind, element in output_type.told
            }
        )

    def add_call(self, task: RecordableTask, inputs: dict[str, Any], work: int, call: str = "") -> int:
        """Record a call; returns its index. ``call`` is equal for equal calls; by default the inputs decide."""
        uses: list[tuple[int, str]] = []
        inner = self._encode_inner_result
        encoded_inputs = {
            name: self.encode_result(value, uses) if type(value) is Result else encode_literal(value, inner, uses)
            for name, value in inputs.items()
        }
        name = task.name
        try:
            digest = self.digest_call(name, encoded_inputs)
        except TypeError as error:
            raise BadRequest(f"an input of {name} cannot be JSON ({error}): keys of dicts must be text") from error
        call = call or digest
        salt = self._equal.get(call, 0)
        self._equal[call] = salt + 1
        used_outputs = tuple(uses) if len(uses) < 2 else tuple(dict.fromkeys(uses))
        if len(used_outputs) < len(uses):
            _check_streams(name, inputs)
        self.nodes.append(GraphNode(name, task.component_name, encoded_inputs, digest, used_outputs, task.model, salt))
        self.work.append(work)
        self.pins.append(pin.get())
        index = len(self.nodes) - 1
        if index >= MAX_CALLS:  # at once, as an `invoke` may loop forever
            raise self.remember_error(graph_size_error())
        return index

    def digest_call(self, task: str, inputs: dict[str, Any]) -> str:
        """Return the digest of a call. Raises ``TypeError`` for inputs that cannot be JSON."""
        return call_digest(task, inputs)

    def encode_result(self, result: Result, uses: list[tuple[int, str]]) -> Any:
        """Return the JSON for ``result`` in the inputs of a call."""
        return make_reference(result, uses, self)

    def _encode_inner_result(self, result: Result, uses: list[tuple[int, str]]) -> Any:
        if result.kind == STREAM:
            raise PlaceholderError(
                f"{result.display_name} is inside of another value: a stream needs its own field, annotated `Stream`"
            )
        return self.encode_result(result, uses)

    def choose(self, count: int, weights: Sequence[float]) -> int:
        if self._point is None:
            raise GraphError("choose needs a request: run the task by an app, or give `record` a `point`")
        mark = self._point(len(self.choices)) * sum(weights)
        choice = max(index for index in range(count) if weights[index] > 0)
        for index, weight in enumerate(weights):
            mark -= weight
            if mark < 0:
                choice = index
                break
        self.choices.append(choice)
        return choice

    def build_segment(self, outputs: Sequence[tuple[int, str]]) -> Segment:
        return Segment(tuple(self.nodes), tuple(outputs), tuple(self.work), tuple(self.pins), tuple(self.choices))


def _check_streams(task: str, inputs: dict[str, Any]) -> None:
    used_streams: set[tuple[int, tuple[int, str]]] = set()
    for result in inputs.values():
        if type(result) is Result and result.kind == STREAM:
            if (result.step, result.origin) in used_streams:
                raise StreamConsumed(
                    f"{result.display_name} is given to two inputs of one call of {task}: it is read once"
                )
            used_streams.add((result.step, result.origin))


class ReplaySession(Session):
    def __init__(
        self, segment: Segment, results: Mapping[tuple[int, str], Any], step: int, scope: object = None
    ) -> None:
        super().__init__(scope)
        self.position = 0
        self._nodes = segment.nodes
        self._outputs = segment.outputs
        self._choices = iter(segment.choices)
        self._results = results
        self._step = step

    def call(self, task: RecordableTask, inputs: dict[str, Any], work: int) -> Any:
        index = self.position
        self.position += 1
        node = self._nodes[index] if index < len(self._nodes) else None
        refer, uses = self._encode_result, list[tuple[int, str]]()
        encoded_inputs = {name: encode_literal(value, refer, uses) for name, value in inputs.items()}
        name = task.name
        if node is None or node.task != name or node.inputs != encoded_inputs:
            raise self.remember_error(ReplayMismatch(_describe_difference(index, node, name, encoded_inputs)))
        output_type = task.outputs_type
        return output_type.of(
            {
                output: self._bind_result(name, (index, output), kind, element)
                for output, kind, element in output_type.told
            }
        )

    def _encode_result(self, result: Result, uses: list[tuple[int, str]]) -> Any:
        return make_reference(result, uses, self)

    def _bind_result(self, task: str, origin: tuple[int, str], kind: str, element: Any) -> Result:
        result = Result(task, origin, kind, element, self, self._step)
        result.source = self._results.get(origin)
        return result

    def choose(self, count: int, weights: Sequence[float]) -> int:
        choice = next(self._choices, count)
        if choice >= count:
            raise self.remember_error(
                ReplayMismatch("`invoke` chose among other options on replay: they must depend only on its request")
            )
        return choice

    def verify_end(self, answer: Any) -> None:
        """Raise ``ReplayMismatch`` unless ``invoke`` repeated all calls and returned the same results."""
        self.raise_remembered_error()
        if self.position != len(self._nodes):
            raise ReplayMismatch(
                f"replay made {self.position} calls, the record has {len(self._nodes)}: `invoke` must not depend on "
                "time, randomness or anything outside of its request"
            )
        if answer_outputs(answer, self) != self._outputs:
            raise ReplayMismatch("replay returned other results than the record has: `invoke` must be deterministic")


def record(
    invoke: Callable[[Any], Any],
    request: Any,
    point: Callable[[int], float] | None = None,
    step: int = 0,
    *,
    scope: object = None,
    calls: dict[str, int] | None = None,
) -> Segment:
    """Run ``invoke`` with placeholders, and return its graph.

    Raises ``GraphError`` for an ``invoke`` that fails or calls no task, and ``TooLarge`` for one with too many calls.
    ``scope`` is the client's request, and ``calls`` its count of equal calls, for a request with several graphs.
    """
    recorder = Recorder(step, point, scope, calls)
    with recorder:
        answer = call_invoke(invoke, request)
    recorder.raise_remembered_error()
    if not recorder.nodes:
        raise GraphError(f"{invoke_name(invoke)} called no unit task, so there is nothing to run")
    return recorder.build_segment(answer_outputs(answer, recorder))


def replay(
    invoke: Callable[[Any], Any],
    request: Any,
    segment: Segment,
    results: Mapping[tuple[int, str], Any],
    step: int = 0,
    *,
    scope: object = None,
) -> Any:
    """Run ``invoke`` again with ``results``; returns its answer.

    ``results`` are sources by (node, output).
    """
    replayer = ReplaySession(segment, results, step, scope)
    with replayer:
        answer = call_invoke(invoke, request)
    replayer.verify_end(answer)
    return answer


def answer_outputs(answer: Any, maker: Session) -> tuple[tuple[int, str], ...]:
    """Return the outputs of ``maker``'s graph in ``answer``, in order."""
    return tuple(dict.fromkeys([result.origin for result in returned_results(answer) if result.maker is maker]))


def call_invoke(invoke: Callable[[Any], Any], request: Any) -> Any:
    """Run ``invoke``. Raises its own errors as typed errors."""
    try:
        answer = invoke(request)
    except OmnibusError:
        raise
    except Exception as error:
        raise invoke_error(invoke, error) from error
    if inspect.iscoroutine(answer):
        answer.close()
        raise GraphError(f"{invoke_name(invoke)} returned a coroutine: make it `async def`, and `await` its calls")
    return answer


def invoke_error(invoke: Callable[[Any], Any], error: Exception) -> OmnibusError:
    """Return ``invoke``'s own error as a typed error; of several, the first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OmnibusError):
        return error
    message = _error_text(error).strip().replace("\n", " ")[:400]
    if isinstance(error, AttributeError) and type(error.obj) is Result:
        return PlaceholderError(f"{invoke_name(invoke)}: {message}")
    if isinstance(error, TypeError) and Result.__name__ in message:
        message += "; a result has no value while the graph is recorded: pass it to a task unread, or return it"
    return GraphError(f"{invoke_name(invoke)} failed while its graph was recorded ({type(error).__name__}: {message})")


def _error_text(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{error.title}.{'.'.join(map(str, first['loc']))}: {first['msg']}"


def invoke_name(invoke: Any) -> str:
    owner = getattr(invoke, "__self__", None)
    return f"{type(owner).__name__}.invoke" if owner is not None else getattr(invoke, "__qualname__", "invoke")


def _describe_difference(index: int, node: GraphNode | None, task: str, inputs: dict[str, Any]) -> str:
    if node is None:
        return f"call {index} of {task} is not in the record: `invoke` made more calls on replay"
    if node.task != task:
        return f"call {index} was {node.task} when recorded and is {task} on replay"
    changed_names = sorted(
        name for name in node.inputs.keys() | inputs.keys() if node.inputs.get(name) != inputs.get(name)
    )
    return f"call {index} of {task} got other inputs on replay: {', '.join(changed_names)}"
