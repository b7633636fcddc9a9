"""Unit tasks, composite tasks, record and replay: the interface for model developers.

The tasks of supported components and models are in ``omnibus.task.library``.
"""

from omnibus.task.base import CompositeTask, UnitTask, tasks_of
from omnibus.task.library import MLLM, Audio, ChatInput, ChatOutput, Encode, Omni, Talk, TextChunk, Think, Vocode
from omnibus.task.media import Media
from omnibus.task.record import Segment, choose, pinned, record, replay
from omnibus.task.result import Part, Result, Source
from omnibus.task.runtime import Runtime, merged, run, tool, use
from omnibus.task.types import OnDemand, Stream, TaskInput, TaskOutput, Tensor, Tensors, Value

__all__ = [
    "MLLM",
    "Audio",
    "ChatInput",
    "ChatOutput",
    "CompositeTask",
    "Encode",
    "Media",
    "Omni",
    "OnDemand",
    "Part",
    "Result",
    "Runtime",
    "Segment",
    "Source",
    "Stream",
    "Talk",
    "TaskInput",
    "TaskOutput",
    "Tensor",
    "Tensors",
    "TextChunk",
    "Think",
    "UnitTask",
    "Value",
    "Vocode",
    "choose",
    "merged",
    "pinned",
    "record",
    "replay",
    "run",
    "tasks_of",
    "tool",
    "use",
]
