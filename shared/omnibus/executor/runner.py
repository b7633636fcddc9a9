"""Interface for engines: a ``Job`` to work on, and the ``Runner`` that it implements.

An executor process hosts one ``Runner`` per component. The loop around it (``omnibus.executor.loop``)
takes invocations from the bus, opens one ``Job`` per node that this executor is to run, delivers
inputs, sends outputs on, and cancels the job's task when the invocation ends. A runner therefore
knows no subject, no message and no handle: only values, arrays and streams.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from omnibus.tensors.item import Item

__all__ = ["Item", "Job", "RowWriter", "Runner"]


class RowWriter(Protocol):
    """A tensor that grows row by row, in one block of memory that is allocated once."""

    def write(self, rows: np.ndarray, data: dict[str, Any] | None = None) -> None:
        """Append ``rows`` ([k, width]) and send them on as one chunk.

        Raises ``ValueError`` when the block is full or the width differs.
        """


class Job(Protocol):
    """One node of one invocation, as its runner sees it."""

    @property
    def invocation(self) -> str:
        """Id of the invocation; unique for ever."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The node's literal inputs as plain JSON values. Inputs that come from other nodes are absent."""

    @property
    def peers(self) -> Sequence[Mapping[str, Any]]:
        """The inputs of all calls of this unit task that are read together, this one's among them, as recorded."""

    def first_equal_call(self, names: Sequence[str]) -> int | None:
        """Return the number of the invocation's first call of this unit task whose inputs ``names`` are those of this
        one; None if there is no other such call.
        """

    @property
    def seed(self) -> int:
        """Seed of the invocation, the same on every replay."""

    @property
    def deadline(self) -> float:
        """Absolute end in ``time.time()`` seconds."""

    def has_consumer(self, output: str) -> bool:
        """Return whether anybody consumes ``output``: a node downstream, or the client."""

    def resume_state(self, output: str) -> Mapping[str, Any]:
        """Return what an earlier attempt of this node gave of ``output``; empty when there is nothing to continue.

        Lists and texts are those that the client has (a language model's ``ids``), ``rows`` counts the rows of arrays
        that it has, and ``item`` is the last ``Item`` of an output that is retained for this purpose. A runner may
        begin after it or anywhere before: what it sends again is skipped.
        """

    def is_local(self, output: str) -> bool:
        """Return whether everybody who consumes ``output`` runs in this executor."""

    async def value(self, name: str) -> Any:
        """Wait for the input ``name`` and return it with every reference resolved to an ``Item``.

        A list input gives a list. Raises ``DeadlineExceeded``.
        """

    def release_input(self, name: str) -> None:
        """The arrays of the input ``name`` were read: their memory may be given back before the job ends."""

    def stream(self, name: str) -> AsyncIterator[Item]:
        """The chunks of the streamed input ``name`` in order, until the producer closes it.

        Raises ``SequenceGap`` and ``DeadlineExceeded``.
        """

    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        """Send the complete value of ``output``."""

    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        """Send one chunk of the streamed ``output``; ``array`` is copied into the arena."""

    async def send_text(self, output: str, data: dict[str, Any]) -> None:
        """Send a piece of the streamed ``output``, texts and lists that mean the same however they are cut.

        Pieces that follow each other within a moment may reach the gateway as one.
        """
        await self.send(output, data)

    def write_text(self, output: str, data: dict[str, Any]) -> None:
        """Send a piece as ``send_text`` does, from where nothing can be awaited."""

    async def open_rows(self, output: str, count: int, width: int, dtype: str) -> RowWriter:
        """Open a streamed tensor ``output`` of at most ``count`` rows, allocated at once."""

    def close(self, output: str, data: dict[str, Any] | None = None) -> None:
        """End the streamed ``output``. Closing twice is harmless; a stream may be empty."""


class Runner(Protocol):
    """The engine behind one component (design: one engine protocol for all engines).

    ``load`` may take long and runs before the executor becomes ready. ``run`` is called once per job,
    concurrently; it is cancelled when the client leaves, the deadline passes or the job moves, and must
    then stop within one step. It raises ``Rejected`` for bad input; any other exception fails this one
    job as ``StageFailed`` and leaves the executor alive. One that keeps results by the content of its inputs
    says so by a property ``keeps``: equal inputs are routed to it.

    A language model that keeps prompts for the next turns of their conversations says so by ``keeps_prompts``: then it
    takes the parameter ``prefill_only``.

    A language model whose engine knows its batches has a property ``batch_counts`` (``BatchCounts``), which goes with
    ``busy``: how long it is busy says little of one that batches, as it is for one sequence as for sixteen.

    A runner whose engine serves other components of its model with what it has loaded has a method
    ``switch_role(component, settings) -> Runner``, which makes the runner of another one for an executor with these
    ``ExecutorSettings``, and raises ``BadRequest`` for one that it cannot serve.

    A runner whose engine may come and go also has ``serving: bool``. While that is false its executor says
    that it is not ready and answers ``busy``.
    """

    @property
    def busy(self) -> float:
        """Seconds that the engine has computed since it was loaded, waiting for work left out.

        Read with each heartbeat: an attribute that grows by one number per batch. What computes for several
        requests at once counts once. An engine without it is shown as idle.
        """

    async def load(self) -> None: ...

    async def run(self, job: Job) -> None: ...

    async def close(self) -> None: ...

    def stats(self) -> dict[str, Any]:
        """Small JSON for ``nats service stats`` and metrics: parameter count, batch sizes, slots in use."""
