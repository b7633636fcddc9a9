"""Unit tasks, composite tasks, record and replay."""

from omnibus.task.base import CompositeTask, TaskInput, UnitTask
from omnibus.task.library import MLLM, ChatInput, ChatOutput, Encode, Omni, Talk, Think, Vocode
from omnibus.task.placeholder import Placeholder
from omnibus.task.session import Recording, record, replay

__all__ = [
    "MLLM",
    "ChatInput",
    "ChatOutput",
    "CompositeTask",
    "Encode",
    "Omni",
    "Placeholder",
    "Recording",
    "Talk",
    "TaskInput",
    "Think",
    "UnitTask",
    "Vocode",
    "record",
    "replay",
]
