"""Unit tasks and composite tasks: what a model developer writes.

A *unit task* is a typed call of one component; two of the same class with the same field values are
the same task and share executors. A *composite task* is plain Python whose ``invoke`` calls unit tasks.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, field_validator

from omnibus.bus.subjects import token
from omnibus.task.placeholder import Placeholder
from omnibus.task.session import current

TENSOR, STREAM, VALUE = "tensor", "stream", "value"


class TaskInput(BaseModel):
    """Typed and validated input of a unit task. Any field may also hold what another task will produce.

    A frozen dataclass does as well where there is nothing to validate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _not_yet(cls, value: Any, check: Any) -> Any:
        # In replay a result takes the placeholder's place; it says where it comes from.
        return value if isinstance(value, Placeholder) or hasattr(value, "origin") else check(value)


class TaskOutput:
    """Outputs of a unit task, one attribute each: ``embedding``, ``text``, ``audio``."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no output {name!r}; there are {', '.join(self._values)}") from None


In = TypeVar("In")


class UnitTask(BaseModel, Generic[In]):
    """One component of one model, callable from any ``invoke``.

    Subclasses name their ``kind`` and ``outputs`` (name to ``tensor``, ``stream`` or ``value``).
    ``name`` is stable and readable: it becomes a NATS subject and a metrics label.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str]
    outputs: ClassVar[Mapping[str, str]]

    model: str
    component: str

    @cached_property
    def name(self) -> str:
        fields = [str(value) for field, value in self if field not in ("model", "component")]
        return token("-".join([self.kind, self.model, self.component, *fields]))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("name", None)  # with other fields it has another name
        return copy

    def invoke(self, inputs: In) -> TaskOutput:
        """Call the task inside a composite task's ``invoke``; returns at once."""
        return TaskOutput(current().call(self.name, self.component, self.outputs, _flat(inputs)))


class CompositeTask(BaseModel):
    """A graph in plain Python. ``invoke`` must be deterministic: it runs once to record, once to replay."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def invoke(self, request: Any) -> Any:
        raise TypeError(f"{type(self).__name__} has no invoke(self, request): write one that calls its tasks")


def _flat(inputs: Any) -> dict[str, Any]:
    """Fields of ``inputs`` that are set, by name."""
    return {name: value for name, value in inputs.__dict__.items() if value is not None}
