"""Record and replay. Source: Cornserve section 5.2, made safe by verifying every call.

``record`` runs ``invoke`` with placeholders and returns the graph. ``replay`` runs it again with the
results: each call is compared with the record (position, task, inputs), and a mismatch raises
``ReplayMismatch`` before any result is returned.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import msgspec

from omnibus.errors import BadRequest, PlaceholderError, ReplayMismatch
from omnibus.graph import Node, digest, ref
from omnibus.task.placeholder import Placeholder


class Session(Protocol):
    def call(self, task: str, component: str, outputs: Mapping[str, str], inputs: dict[str, Any]) -> dict[str, Any]:
        """One call of a unit task: returns a value per output."""


class Recording(NamedTuple):
    """Nodes in the order of their calls, and the outputs that ``invoke`` returned."""

    nodes: tuple[Node, ...]
    outputs: tuple[tuple[int, str], ...]


_current: ContextVar[Session | None] = ContextVar("omnibus_session", default=None)


def current() -> Session:
    session = _current.get()
    if session is None:
        raise PlaceholderError("a unit task was called outside of a composite task: call it in `invoke`, run by an app")
    return session


@contextmanager
def _session(session: Session) -> Iterator[None]:
    token = _current.set(session)
    try:
        yield
    finally:
        _current.reset(token)


class _Recorder:
    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def call(self, task: str, component: str, outputs: Mapping[str, str], inputs: dict[str, Any]) -> dict[str, Any]:
        index = len(self.nodes)
        uses: list[tuple[int, str]] = []
        plain = {name: _plain(value, uses) for name, value in inputs.items()}
        self.nodes.append(Node(task, component, plain, digest(task, plain), tuple(dict.fromkeys(uses))))
        return {name: Placeholder(index, name, task, kind) for name, kind in outputs.items()}


class _Replayer:
    def __init__(self, nodes: Sequence[Node], results: Mapping[tuple[int, str], Any]) -> None:
        self.nodes = nodes
        self.results = results
        self.position = 0

    def call(self, task: str, component: str, outputs: Mapping[str, str], inputs: dict[str, Any]) -> dict[str, Any]:
        index = self.position
        self.position += 1
        recorded = self.nodes[index] if index < len(self.nodes) else None
        plain = {name: _plain(value, []) for name, value in inputs.items()}
        if recorded is None or recorded.task != task or recorded.inputs != plain:
            raise ReplayMismatch(_difference(index, recorded, task, plain))
        return {
            name: self.results[index, name] if (index, name) in self.results else Placeholder(index, name, task, kind)
            for name, kind in outputs.items()
        }


def record(invoke: Callable[[Any], Any], request: Any) -> Recording:
    """Run ``invoke`` with placeholders. Raises ``BadRequest`` for an ``invoke`` that calls no task."""
    recorder = _Recorder()
    with _session(recorder):
        answer = invoke(request)
    if not recorder.nodes:
        raise BadRequest("the composite task called no unit task, so there is nothing to run")
    return Recording(tuple(recorder.nodes), tuple(dict.fromkeys(_returned(answer))))


def replay(
    invoke: Callable[[Any], Any], request: Any, nodes: Sequence[Node], results: Mapping[tuple[int, str], Any]
) -> Any:
    """Run ``invoke`` again with ``results`` by (node, output) and return its answer."""
    replayer = _Replayer(nodes, results)
    with _session(replayer):
        answer = invoke(request)
    if replayer.position != len(nodes):
        raise ReplayMismatch(
            f"replay made {replayer.position} calls, the record has {len(nodes)}: `invoke` must not depend on "
            "time, randomness or anything outside of its request"
        )
    return answer


def _plain(value: Any, uses: list[tuple[int, str]]) -> Any:
    """A literal as JSON values, with each not-yet value as a reference that is added to ``uses``."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return [_plain(element, uses) for element in value]
    if kind is dict:
        return {key: _plain(element, uses) for key, element in value.items()}
    origin = getattr(value, "origin", None)
    if origin is None:
        return msgspec.to_builtins(value)
    uses.append(origin)
    return ref(*origin)


#: Types that are their own JSON; ``Raw`` is JSON that was encoded before and holds no placeholder.
_ATOMS = frozenset({str, int, float, bool, type(None), msgspec.Raw})


def _returned(answer: Any) -> Iterator[tuple[int, str]]:
    """Placeholders anywhere in what ``invoke`` returned."""
    if isinstance(answer, Placeholder):
        yield answer.node, answer.output
    elif isinstance(answer, dict):
        for element in answer.values():
            yield from _returned(element)
    elif isinstance(answer, list | tuple):
        for element in answer:
            yield from _returned(element)
    elif hasattr(answer, "__dict__"):
        yield from _returned(vars(answer))


def _difference(index: int, recorded: Node | None, task: str, inputs: dict[str, Any]) -> str:
    if recorded is None:
        return f"call {index} of {task} is not in the record: `invoke` made more calls on replay"
    if recorded.task != task:
        return f"call {index} was {recorded.task} when recorded and is {task} on replay"
    changed = sorted(
        name for name in recorded.inputs.keys() | inputs.keys() if recorded.inputs.get(name) != inputs.get(name)
    )
    return f"call {index} of {task} got other inputs on replay: {', '.join(changed)}"
