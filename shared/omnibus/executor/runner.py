"""Interface for engines: a ``Job`` to work on, and the ``Runner`` that works on it.

An executor process hosts one ``Runner`` per component. The loop around it (``omnibus.executor.loop``) takes invocations
from the bus and opens one ``Job`` for each node of this executor. It delivers inputs, sends outputs, and cancels the
job's task when the invocation ends. A runner therefore handles only values, arrays and streams, without subjects,
messages and handles.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from omnibus.tensors.handle import Item

__all__ = ["Item", "Job", "RowWriter", "Runner"]


class RowWriter(Protocol):
    """A tensor that grows row by row in one preallocated block."""

    def write(self, rows: np.ndarray, data: dict[str, Any] | None = None) -> None:
        """Append ``rows`` ([k, width]) and send them on as one chunk.

        Raises ``ValueError`` when the block is full or the width differs.
        """


class Job(Protocol):
    """One node of one invocation, as its runner sees it."""

    @property
    def invocation(self) -> str:
        """Id of the invocation, which is never reused."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The node's literal inputs as plain JSON values. Inputs that come from other nodes are absent."""

    @property
    def peers(self) -> Sequence[Mapping[str, Any]]:
        """The recorded inputs of this task's calls with a common reader.

        They include this call's.
        """

    def first_equal_call(self, names: Sequence[str]) -> int | None:
        """Return the number of the first call with the same inputs ``names``.

        Only calls of this unit task count. None if the invocation has no other such call.
        """

    @property
    def seed(self) -> int:
        """Seed of the invocation, the same on every replay."""

    @property
    def deadline(self) -> float:
        """Deadline in ``time.time()`` seconds."""

    def has_consumer(self, output: str) -> bool:
        """Return whether a downstream node or the client consumes ``output``."""

    def resume_state(self, output: str) -> Mapping[str, Any]:
        """Return the output that an earlier attempt made; empty if there is nothing to continue.
        Lists and texts are those that the client has (a language model's ``ids``). ``rows`` counts the rows of arrays
        that it has. ``item`` is the last ``Item`` of an output that is retained for this purpose. A runner may start
        after it or anywhere before: chunks that it sends again are skipped.
        """

    def is_local(self, output: str) -> bool:
        """Return whether all consumers of ``output`` run in this executor."""

    async def value(self, name: str) -> Any:
        """Wait for the input ``name``, and resolve every reference to an ``Item``.

        A list input returns a list. Raises ``DeadlineExceeded``.
        """

    def release_input(self, name: str) -> None:
        """Allow early release of the memory of the input ``name``; call it once its arrays were read."""

    def stream(self, name: str) -> AsyncIterator[Item]:
        """Yield the chunks of the streamed input ``name`` until it is closed.

        Raises ``SequenceGap`` and ``DeadlineExceeded``.
        """

    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        """Send the complete value of ``output``."""

    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        """Send one chunk of the streamed ``output``; ``array`` is copied into the arena."""

    async def send_text(self, output: str, data: dict[str, Any]) -> None:
        """Send a piece of the streamed ``output``: texts and lists that may be joined.

        Pieces sent shortly after each other may reach the gateway as one.
        """
        await self.send(output, data)

    def write_text(self, output: str, data: dict[str, Any]) -> None:
        """Send a piece as ``send_text`` does, from code that cannot await."""

    async def open_rows(self, output: str, count: int, width: int, dtype: str) -> RowWriter:
        """Open a streamed tensor ``output`` of at most ``count`` rows, allocated now."""

    def close(self, output: str, data: dict[str, Any] | None = None) -> None:
        """End the streamed ``output``. Closing twice is harmless; a stream may be empty."""


class Runner(Protocol):
    """The engine of one component; all engines implement this protocol.

    ``load`` may take long and runs before the executor becomes ready. ``run`` is called once per job, concurrently. It
    is cancelled when the client disconnects, the deadline passes or the job moves, and must then stop within one step.
    It raises ``Rejected`` for bad input. Any other exception fails this one job as ``StageFailed`` and leaves the
    executor alive.

    Optional members:

    - ``keeps``: property of a runner that caches results by the content of its inputs. Equal inputs are routed to it.
    - ``keeps_prompts``: property of a language model that caches prompts for the next turns of their conversations. It
      then takes the parameter ``prefill_only``.
    - ``batch_counts`` (``BatchCounts``): property of a language model that counts its batches. It accompanies ``busy``,
      which is the same for one sequence as for sixteen.
    - ``switch_role(component, settings) -> Runner``: method of a runner whose engine can serve other components of its
      model with the weights that it has loaded. It makes the runner of ``component`` for an executor with these
      ``ExecutorSettings``, and raises ``BadRequest`` for a component that it cannot serve.
    - ``serving: bool``: attribute of a runner whose engine may stop and return. While it is false, its executor reports
      that it is not ready and answers ``busy``.
    """

    @property
    def busy(self) -> float:
        """Seconds that the engine has computed since it was loaded, without waiting.

        Read with each heartbeat, so make it an attribute that is increased once per batch. A computation for several
        requests counts once. An engine without it is shown as idle.
        """

    async def load(self) -> None: ...

    async def run(self, job: Job) -> None: ...

    async def close(self) -> None: ...

    def stats(self) -> dict[str, Any]:
        """Small JSON for ``nats service stats`` and metrics: parameter count, batch sizes, slots in use."""
