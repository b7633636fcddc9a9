"""Unit tasks and composite tasks: the interface for model developers.

A *unit task* is a typed call of one component. Two tasks of the same class with the same field values are the same
task, and share executors. A *composite task* is plain Python whose ``invoke`` calls unit tasks.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, get_args

import msgspec
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar

from omnibus.bus.subjects import subject_token
from omnibus.errors import BadRequest
from omnibus.task.runtime import run
from omnibus.task.session import require_session
from omnibus.task.types import TaskInput, TaskOutput

#: Longest field value that a name contains; longer ones are digested.
_MAX_VALUE_CHARS = 24

# Without arguments, a task has inputs and outputs of any type.
In = TypeVar("In", default=Any)
Out = TypeVar("Out", default=Any)
R = TypeVar("R", default=Any)
A = TypeVar("A", default=Any)


class _Task(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class UnitTask(_Task, Generic[In, Out]):
    """One component of one model, callable from any ``invoke``: ``class Spell(UnitTask[Words, Letters])``.

    ``kind`` names the component's work; the default is the class's name. ``model`` and ``component`` identify the
    component. A class with an async method ``run(self, inputs)`` is its own engine: see ``omnibus.task.execute``.
    ``name`` is stable and readable: it becomes a NATS subject and a metrics label. It contains only fields that differ
    from their default, so that a class may get new fields.
    """

    kind: ClassVar[str] = "unit"
    #: The service that hosts it: ``encoder``, ``llm`` or ``generator``.
    service: ClassVar[str] = "generator"
    own: ClassVar[bool] = False
    inputs_type: ClassVar[Any] = TaskInput
    outputs_type: ClassVar[Any] = TaskOutput
    #: Output name to ``tensor``, ``stream`` or ``value``.
    outputs: ClassVar[Mapping[str, str]] = {}

    model: str = ""
    component: str = ""

    if TYPE_CHECKING:  # of a class that is its own engine

        def run(
            self, inputs: In, /
        ) -> (
            Awaitable[Out | Mapping[str, Any]]
            | AsyncIterator[Mapping[str, Any]]
            | Iterator[Mapping[str, Any]]
            | Mapping[str, Any]
            | Out
        ): ...

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        types = _type_arguments(cls)
        if types is not None:
            cls.inputs_type, cls.outputs_type = types
            cls.outputs = {name: kind for name, (kind, _, _) in types[1].fields.items()}
        if "[" not in cls.__name__ and "kind" not in cls.__dict__:
            cls.kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()
        cls.own = callable(getattr(cls, "run", None))

    @property
    def component_name(self) -> str:
        """The component's name in a plan."""
        return self.component or self.kind

    @cached_property
    def name(self) -> str:
        own_fields = {
            name: field for name, field in type(self).model_fields.items() if name not in ("model", "component")
        }
        own = {name: getattr(self, name) for name in own_fields}
        options = [
            f"{name}_{_short_value(self, name, value)}"
            for name, value in own.items()
            if value != own_fields[name].get_default(call_default_factory=True)
        ]
        return subject_token("-".join(filter(None, [self.kind, self.model, self.component, *options])))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("name", None)  # with other fields it has another name
        return copy

    def invoke(self, inputs: In, *, work: int = 1) -> Out:
        """Call the task inside a composite task's ``invoke``; returns placeholders at once.

        ``work`` is the expected cost of the call in tokens, the unit of executors' loads.
        """
        if not isinstance(inputs, self.inputs_type):
            raise BadRequest(f"{self.name} takes {self.inputs_type.__name__}, not {type(inputs).__name__}")
        optional_names = self.inputs_type.told
        values = {name: value for name, value in inputs.__dict__.items() if value is not None or name in optional_names}
        return require_session().call(self, values, work)

    async def __call__(self, inputs: In) -> Out:
        """Run this task alone, in an app's ``serve``."""
        return await run(self.invoke, inputs)


class CompositeTask(_Task, Generic[R, A]):
    """A graph in plain Python: ``class Caption(CompositeTask[Photo, Title])``.

    It maps a request ``R`` to an answer ``A``. ``invoke`` must be deterministic: it runs once to record, and once to
    replay. ``async def invoke`` may await results and branch on them. Read results in ``A`` with ``await`` and ``async
    for``.
    """

    def invoke(self, request: R, /) -> A | Coroutine[Any, Any, A]:
        raise BadRequest(f"{type(self).__name__} has no invoke(self, request): write one that calls its tasks")

    async def __call__(self, request: R) -> A:
        """Run the graph, in an app's ``serve``; read results with ``await`` and ``async for``."""
        return await run(self.invoke, request)


def tasks_of(value: Any) -> list[UnitTask]:
    """Return the unit tasks in ``value``: a task, or a list or dict of tasks. Equal tasks appear once, in order."""
    tasks: dict[str, UnitTask] = {}
    for task in _walk_tasks(value):
        if tasks.setdefault(task.name, task) != task:
            raise BadRequest(
                f"two different unit tasks are named {task.name!r} ({_class_path(task)}, "
                f"{_class_path(tasks[task.name])}): give one of them another `kind`"
            )
    return list(tasks.values())


def _walk_tasks(value: Any) -> Iterator[UnitTask]:
    if isinstance(value, UnitTask):
        yield value
    elif isinstance(value, CompositeTask):
        for field in type(value).model_fields:
            yield from _walk_tasks(getattr(value, field))
    elif isinstance(value, Mapping):
        for element in value.values():
            yield from _walk_tasks(element)
    elif isinstance(value, list | tuple | set | frozenset):
        for element in value:
            yield from _walk_tasks(element)


def _class_path(task: UnitTask) -> str:
    return f"{type(task).__module__}.{type(task).__qualname__}"


def _type_arguments(cls: type) -> Any:
    """Return ``(In, Out)`` of the ``UnitTask[In, Out]`` that ``cls`` is or derives from."""
    for base in (cls, *cls.__bases__):
        metadata = getattr(base, "__pydantic_generic_metadata__", {})
        types = metadata.get("args") or ()
        if len(types) == 2 and not any(isinstance(each, TypeVar) for each in types):
            return types
    for base in getattr(cls, "__orig_bases__", ()):
        types = get_args(base)
        if len(types) == 2 and not any(isinstance(each, TypeVar) for each in types):
            return types
    return None


def _short_value(task: UnitTask, name: str, value: Any) -> str:
    """Return a field's value for a name: short values unchanged, others as a digest of their JSON."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, str | int | float) and len(text) <= _MAX_VALUE_CHARS and subject_token(text) == text:
        return text
    try:
        body = msgspec.json.encode(value, enc_hook=_encode_hook, order="sorted")
    except TypeError as error:
        raise BadRequest(
            f"{_class_path(task)}.{name} is a {type(value).__name__}: fields are part of a task's name, so they must "
            "be JSON"
        ) from error
    return blake2b(body, digest_size=5).hexdigest()


def _encode_hook(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(type(value).__name__)
