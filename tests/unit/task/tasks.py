"""Small tasks for the tests of this directory: nothing of them is about models."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from omnibus.task import CompositeTask, TaskInput, UnitTask
from omnibus.task.base import STREAM, TENSOR


class StepInput(TaskInput):
    a: Any = None
    b: Any = None
    text: str = ""
    many: list[Any] = Field(default_factory=list)


class Step(UnitTask[StepInput]):
    """Anything in, a tensor and a stream out."""

    kind: ClassVar[str] = "step"
    outputs: ClassVar[Mapping[str, str]] = {"y": TENSOR, "said": STREAM}

    width: int = 1


ONE = Step(model="m", component="one")
TWO = Step(model="m", component="two")


class Both(CompositeTask):
    """``two`` of ``one``."""

    first: Step = ONE
    second: Step = TWO

    def invoke(self, request: Any) -> Any:
        found = self.first.invoke(StepInput(a=request))
        return {"answer": self.second.invoke(StepInput(a=found.y, text="hi")).said}


class Result:
    """What a gateway has in place of a stream: it says where it came from."""

    def __init__(self, node: int, output: str) -> None:
        self.origin = (node, output)
