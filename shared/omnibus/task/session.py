"""Base of an ``invoke``'s runs, and its functions ``choose`` and ``pinned``."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextvars import ContextVar, Token
from typing import Any, Protocol, Self, TypeVar

import msgspec

from omnibus.errors import BadRequest, OmnibusError, PlaceholderError, TooLarge
from omnibus.graph import GraphNode

T = TypeVar("T")

#: Most graphs of one request, and most calls of one graph.
MAX_SEGMENTS, MAX_CALLS = 256, 512


class Segment(msgspec.Struct, frozen=True):
    """One recorded graph. ``work`` are expected tokens and ``pins`` fission flags, per node."""

    nodes: tuple[GraphNode, ...]
    outputs: tuple[tuple[int, str], ...]
    work: tuple[int, ...] = ()
    pins: tuple[str, ...] = ()
    choices: tuple[int, ...] = ()


def graph_size_error() -> TooLarge:
    """Return the error of a request with too many graphs or calls."""
    return TooLarge(
        f"a request may have {MAX_SEGMENTS} segments of {MAX_CALLS} calls each: loop less, or split the request"
    )


class RecordableTask(Protocol):
    """Interface of a unit task in a session."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def component_name(self) -> str: ...
    @property
    def outputs_type(self) -> Any: ...


class Session(ABC):
    """One run of an ``invoke``. ``scope`` is the client's request, or None if unknown."""

    def __init__(self, scope: object = None) -> None:
        self.scope = scope
        self.drawing = False
        self.fault: OmnibusError | None = None
        self._around: Token[Session | None] | None = None

    def __enter__(self) -> Self:
        """Start the session of an ``invoke`` that runs inside of the block."""
        self._around = _current.set(self)
        self.drawing = True
        return self

    def __exit__(self, *_: object) -> None:
        self.drawing = False
        if self._around is not None:
            _current.reset(self._around)

    @abstractmethod
    def call(self, task: RecordableTask, inputs: dict[str, Any], work: int) -> Any:
        """Record or verify one call of a unit task; returns its outputs."""

    @abstractmethod
    def choose(self, count: int, weights: Sequence[float]) -> int:
        """Return one of ``count`` choices, the same when ``invoke`` runs again."""

    def remember_error(self, error: OmnibusError) -> OmnibusError:
        """Return ``error`` and keep it, since ``invoke`` may swallow it."""
        self.fault = self.fault or error
        return error

    def raise_remembered_error(self) -> None:
        """Raise the first error that ``invoke`` swallowed."""
        if self.fault is not None:
            raise self.fault


_current: ContextVar[Session | None] = ContextVar("omnibus_session", default=None)
#: Path of the calls made here; every branch of an ``invoke`` has its own.
pin: ContextVar[str] = ContextVar("omnibus_pin", default="")


def require_session() -> Session:
    session = _current.get()
    if session is None or not session.drawing:
        raise PlaceholderError(
            "call `.invoke`, `choose` and `pinned` inside of a composite task's `invoke`, while it runs; in an app's "
            "`serve`, await the task itself as `await task(...)`"
        )
    return session


def current_session() -> Session | None:
    """Return the session of the running ``invoke``, if any."""
    return _current.get()


class pinned:
    """Request a path for the calls made inside.

    It is ``apart``, ``together`` or ``path:<name>``; with an empty one, the plan decides.
    """

    __slots__ = ("_around", "_path")

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        require_session()
        self._around = pin.set(self._path or pin.get())

    def __exit__(self, *_: object) -> None:
        pin.reset(self._around)


def choose(options: Sequence[T], weights: Sequence[float] | None = None) -> T:
    """Choose one of ``options`` by ``weights``, the same on replay.

    Over many requests, the choices are in proportion to the weights. The choice is part of the recorded invocation.
    Source: Cornserve listing 2, ``replayable_choice``.
    """
    parsed_weights = [1.0] * len(options) if weights is None else [float(weight) for weight in weights]
    total = sum(parsed_weights)
    if (
        len(parsed_weights) != len(options)
        or not all(weight >= 0 for weight in parsed_weights)
        or not 0 < total < math.inf
    ):
        raise BadRequest(
            "choose needs at least one option, and as many weights, if any: finite, not negative, and not all 0"
        )
    return options[require_session().choose(len(options), parsed_weights)]
