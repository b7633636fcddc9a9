"""Common base of the runs of an ``invoke``, and what it may call besides tasks: ``choose`` and ``pinned``."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextvars import ContextVar, Token
from typing import Any, Protocol, Self, TypeVar

import msgspec

from omnibus.errors import BadRequest, OmnibusError, PlaceholderError, TooLarge
from omnibus.graph import GraphNode

T = TypeVar("T")

#: Graphs that one request may have, and calls of one graph.
MAX_SEGMENTS, MAX_CALLS = 256, 512


class Segment(msgspec.Struct, frozen=True):
    """One recorded graph. ``work`` are expected tokens and ``pins`` fission flags, per node."""

    nodes: tuple[GraphNode, ...]
    outputs: tuple[tuple[int, str], ...]
    work: tuple[int, ...] = ()
    pins: tuple[str, ...] = ()
    choices: tuple[int, ...] = ()


def graph_size_error() -> TooLarge:
    """The error of a request with more graphs, or calls in one, than it may have."""
    return TooLarge(
        f"a request may have {MAX_SEGMENTS} segments of {MAX_CALLS} calls each: loop less, or split the request"
    )


class RecordableTask(Protocol):
    """A unit task as a session sees it."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def component_name(self) -> str: ...
    @property
    def outputs_type(self) -> Any: ...


class Session(ABC):
    """One run of an ``invoke``. ``scope`` is the client's request that it belongs to, None when nobody says."""

    def __init__(self, scope: object = None) -> None:
        self.scope = scope
        self.drawing = False
        self.fault: OmnibusError | None = None
        self._around: Token[Session | None] | None = None

    def __enter__(self) -> Self:
        """``invoke`` runs inside."""
        self._around = _current.set(self)
        self.drawing = True
        return self

    def __exit__(self, *_: object) -> None:
        self.drawing = False
        if self._around is not None:
            _current.reset(self._around)

    @abstractmethod
    def call(self, task: RecordableTask, inputs: dict[str, Any], work: int) -> Any:
        """One call of a unit task: returns its outputs."""

    @abstractmethod
    def choose(self, count: int, weights: Sequence[float]) -> int:
        """One of ``count`` ways, the same when ``invoke`` runs again."""

    def remember_error(self, error: OmnibusError) -> OmnibusError:
        """``error``, kept: ``invoke`` may swallow it."""
        self.fault = self.fault or error
        return error

    def raise_remembered_error(self) -> None:
        """Raise what ``invoke`` swallowed."""
        if self.fault is not None:
            raise self.fault


_current: ContextVar[Session | None] = ContextVar("omnibus_session", default=None)
#: How calls are pinned here; every branch of an ``invoke`` has its own.
pin: ContextVar[str] = ContextVar("omnibus_pin", default="")


def require_session() -> Session:
    found = _current.get()
    if found is None or not found.drawing:
        raise PlaceholderError(
            "`.invoke`, `choose` and `pinned` belong inside of a composite task's `invoke`, while it runs; in an app's "
            "`serve` call the task itself: `await task(...)`"
        )
    return found


def current_session() -> Session | None:
    """The session of the ``invoke`` that is running, if one is."""
    return _current.get()


class pinned:
    """Calls made inside ask for a path: ``apart``, ``together``, ``path:<name>``; empty leaves it to the plan."""

    __slots__ = ("_around", "_path")

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        require_session()
        self._around = pin.set(self._path or pin.get())

    def __exit__(self, *_: object) -> None:
        pin.reset(self._around)


def choose(options: Sequence[T], weights: Sequence[float] | None = None) -> T:
    """One of ``options``, in proportion to ``weights`` over many requests, and the same on replay.

    The choice is part of the recorded invocation. Source: Cornserve listing 2, ``replayable_choice``.
    """
    given = [1.0] * len(options) if weights is None else [float(weight) for weight in weights]
    total = sum(given)
    if len(given) != len(options) or not all(weight >= 0 for weight in given) or not 0 < total < math.inf:
        raise BadRequest(
            "choose needs at least one option, and as many weights, if any: not negative, not infinite, not all 0"
        )
    return options[require_session().choose(len(options), given)]
