"""A ``Job`` in memory: inputs from literals and pipes, outputs into pipes that another job can read."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np

from omnibus.executor.runner import Item, Job, RowWriter, Runner


class MemoryPipe:
    """One output of one node, kept whole for any number of readers."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.closed = False
        self._news = asyncio.Condition()

    def feed(self, item: Item, last: bool = False) -> None:
        if self.closed:
            return
        self.items.append(item)
        self.closed = last
        self._schedule_notify()

    def close(self, data: dict[str, Any] | None = None) -> None:
        if data is not None:
            self.feed(Item(data), last=True)
        self.closed = True
        self._schedule_notify()

    async def read(self) -> AsyncIterator[Item]:
        at = 0
        while len(await self.until(at + 1)) > at:
            yield self.items[at]
            at += 1

    async def until(self, count: int) -> list[Item]:
        """Wait for ``count`` items, or for the end."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.items) >= count or self.closed)
        return self.items

    def _schedule_notify(self) -> None:
        task = asyncio.get_running_loop().create_task(self._notify_readers())
        task.add_done_callback(lambda done: done.result())

    async def _notify_readers(self) -> None:
        async with self._news:
            self._news.notify_all()


class MemoryJob(Job):
    """A job in memory; ``inputs`` maps names to JSON, to an ``Item``, to a ``Pipe``, or to lists of these.

    ``near`` are outputs only read in this process, ``beside`` inputs of calls read with this one. ``asked`` and
    ``read`` list the inputs that the runner requested and released.
    """

    def __init__(
        self,
        inputs: dict[str, Any],
        wants: tuple[str, ...] = (),
        seed: int = 7,
        near: tuple[str, ...] = (),
        invocation: str = "",
        beside: Sequence[Mapping[str, Any]] = (),
        resumes: Mapping[str, Mapping[str, Any]] = {},
        first_equal: int | None = None,
    ) -> None:
        self._first_equal = first_equal
        self._invocation = invocation or f"memory-{id(self)}"
        self._inputs = inputs
        self._near = near
        self._beside = beside
        self._resumes = resumes
        self.read: list[str] = []
        self.asked: list[str] = []
        self._wants = wants
        self._seed = seed
        self.outputs: dict[str, MemoryPipe] = defaultdict(MemoryPipe)
        self.allocated: dict[str, tuple[int, int]] = {}

    @property
    def invocation(self) -> str:
        return self._invocation

    @property
    def inputs(self) -> Mapping[str, Any]:
        return {name: value for name, value in self._inputs.items() if not isinstance(value, MemoryPipe | Item)}

    @property
    def peers(self) -> Sequence[Mapping[str, Any]]:
        own = {name: value.data if isinstance(value, Item) else value for name, value in self._inputs.items()}
        return [own, *self._beside]

    def first_equal_call(self, names: Sequence[str]) -> int | None:
        return self._first_equal

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def deadline(self) -> float:
        return time.time() + 60.0

    def has_consumer(self, output: str) -> bool:
        return output in self._wants

    def is_local(self, output: str) -> bool:
        return output in self._near

    def resume_state(self, output: str) -> Mapping[str, Any]:
        return self._resumes.get(output, {})

    async def value(self, name: str) -> Any:
        self.asked.append(name)
        return await self._resolve_value(self._inputs.get(name))

    def release_input(self, name: str) -> None:
        self.read.append(name)

    async def _resolve_value(self, value: Any) -> Any:
        if isinstance(value, MemoryPipe):
            return (await value.until(1))[0]
        if isinstance(value, list):
            return [await self._resolve_value(element) for element in value]
        return value

    def stream(self, name: str) -> AsyncIterator[Item]:
        return self._inputs[name].read()

    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        self.outputs[output].feed(Item(data, _copy_array(array)), last=True)

    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        self.outputs[output].feed(Item(data, _copy_array(array)))

    def write_text(self, output: str, data: dict[str, Any]) -> None:
        self.outputs[output].feed(Item(data))

    async def open_rows(self, output: str, count: int, width: int, dtype: str) -> "MemoryRows":
        self.allocated[output] = (count, width)
        return MemoryRows(self.outputs[output], np.empty((count, width), dtype))

    def close(self, output: str, data: dict[str, Any] | None = None) -> None:
        self.outputs[output].close(data)

    # Accessors for tests

    @property
    def text(self) -> str:
        return "".join(item.data.get("text", "") for item in self.outputs["text"].items)

    @property
    def ids(self) -> list[int]:
        return [token for item in self.outputs["text"].items for token in item.data.get("ids", [])]

    @property
    def codes(self) -> list[int]:
        return [code for item in self.outputs["codes"].items for code in item.data.get("codes", [])]

    def end(self, output: str) -> dict[str, Any]:
        """Return the data with which ``output`` was closed."""
        pipe = self.outputs[output]
        assert pipe.closed
        return pipe.items[-1].data

    def end_of_answer(self, output: str) -> dict[str, Any]:
        """Return the same without ``cached_tokens``, which depend on the engine's cache."""
        end = dict(self.end(output))
        end["usage"] = {name: count for name, count in end["usage"].items() if name != "cached_tokens"}
        return end

    def array(self, output: str) -> np.ndarray:
        """Return the array of an output with one value."""
        [item] = self.outputs[output].items
        assert item.array is not None
        return item.array

    def whole(self, output: str) -> np.ndarray:
        """Return the arrays of a stream, concatenated."""
        return np.concatenate([item.array for item in self.outputs[output].items if item.array is not None])


class MemoryRows(RowWriter):
    """A growing tensor; readers get read-only views of it, as from an arena."""

    def __init__(self, pipe: MemoryPipe, block: np.ndarray) -> None:
        self._pipe = pipe
        self._block = block
        self._view = block.view()
        self._view.setflags(write=False)
        self._cursor = 0

    def write(self, rows: np.ndarray, data: dict[str, Any] | None = None) -> None:
        start, end = self._cursor, self._cursor + len(rows)
        if end > len(self._block) or rows.shape[1:] != self._block.shape[1:]:
            raise ValueError(f"rows {rows.shape} at {start} do not fit a block of {self._block.shape}")
        self._block[start:end] = rows
        self._cursor = end
        self._pipe.feed(Item(data or {}, self._view[start:end]))


async def finish_job(runner: Runner, job: MemoryJob, within: float = 60.0) -> MemoryJob:
    """Run one job to its end and return it."""
    async with asyncio.timeout(within):
        await runner.run(job)
    return job


def _copy_array(array: np.ndarray | None) -> np.ndarray | None:
    if array is None:
        return None
    copy = array.copy()
    copy.setflags(write=False)
    return copy
