"""Thinkers that record their input, and answer with several parts."""

from typing import Any

from omnibus.executor.runner import Item, Job
from omnibus.structured.calls import call_head


class RecordingThinker:
    """A thinker that sends ``chunks``; it records its input."""

    def __init__(self, *chunks: dict[str, Any], finish: str = "stop", **usage: int) -> None:
        self.chunks = list(chunks) or [{"text": "fine"}]
        self.finish = finish
        self.usage = {"prompt_tokens": 7, "completion_tokens": len(self.chunks), **usage}
        self.messages: list[Any] = []
        self.items: list[Any] = []
        self.params: dict[str, Any] = {}

    async def __call__(self, job: Job) -> None:
        self.messages, self.items = await job.value("messages"), await job.value("items")
        params = await job.value("params")
        assert not isinstance(params, Item)
        self.params = params
        for number, chunk in enumerate(self.chunks):
            await job.send("text", {**chunk, "ids": [number]})
        job.close("text", {"finish_reason": self.finish, "usage": self.usage})


#: Reasoning, text and two calls.
CHUNKS: list[dict[str, Any]] = [
    {"reasoning": "let me "},
    {"reasoning": "see"},
    {"text": "I look."},
    {"calls": call_head("weather") + '{"city":'},
    {"calls": '"Rome"}' + call_head("weather") + '{"city":"Bonn"}'},
]
