"""Runs a set of processes as one: starts them in order, keeps them running, stops them without a trace."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from graphlib import TopologicalSorter
from types import TracebackType
from typing import Any, TypeVar

from omnibus.process.logs import Log
from omnibus.process.restart import RestartPolicy
from omnibus.process.spec import ProcessSpec
from omnibus.process.supervise import OnExit, ProcessKeeper
from omnibus.up.shm import remove_shared_memory

_Result = TypeVar("_Result")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """An async context: inside it every process runs; afterwards none is left.

    Use it from the main thread. The first SIGINT, SIGTERM or SIGHUP stops everything in order, a second
    one kills it. A process that has served is restarted for ever. One that never has, and fails for good,
    is forgotten and may be added again; if it is vital, it ends the context with its error, until
    ``confirm_all``. Shared-memory files whose name begins with ``shm_prefix`` are removed at the end.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec] = (),
        *,
        log: Log | None = None,
        policy: RestartPolicy | None = None,
        on_exit: OnExit | None = None,
        shm_prefix: str = "",
    ) -> None:
        self._specs = _in_order(specs)
        self._log = log or Log()
        self._policy = policy or RestartPolicy()
        self._on_exit = on_exit
        self._shm_prefix = shm_prefix
        self._keepers: dict[str, ProcessKeeper] = {}
        self._stopping = False
        self._up = False

    @property
    def pids(self) -> dict[str, int]:
        """Name to process id of everything that runs at this moment."""
        return {name: keeper.pid for name, keeper in self._keepers.items() if keeper.pid is not None}

    @property
    def specs(self) -> dict[str, ProcessSpec]:
        """Everything that is kept running, also what is between two lives or being stopped."""
        return {name: keeper.spec for name, keeper in self._keepers.items()}

    async def __aenter__(self) -> "Supervisor":
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[int] = self._loop.create_future()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP: so do we
                self._loop.add_signal_handler(number, self._on_signal, number)
        try:
            await self.unless_over(self._start_processes(self._specs))
        except BaseException:
            await self._stop_everything()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_everything()

    async def run_until_signal(self) -> int:
        """Wait for a signal, return its number. Raises the ``Fatal`` of a process that was given up."""
        return await asyncio.shield(self._over)

    def kill(self, name: str) -> None:
        """KILL the process ``name`` and its group now; it is restarted as any that ends by itself."""
        if name in self._keepers:
            self._keepers[name].kill()

    def terminate(self, name: str) -> None:
        """Ask the process ``name`` to end, so that it is restarted."""
        if name in self._keepers:
            self._keepers[name].terminate()

    def change_spec(self, spec: ProcessSpec) -> None:
        """Keep the process of this name running as ``spec`` from its next start on; what runs goes on."""
        if spec.name in self._keepers:
            self._keepers[spec.name].spec = spec

    def confirm(self, name: str) -> None:
        """The process ``name`` has served: it is restarted for ever from now on."""
        if name in self._keepers:
            self._keepers[name].confirm()

    def confirm_all(self) -> None:
        """Everything serves: from now on no process that fails ends the others."""
        self._up = True
        for keeper in self._keepers.values():
            keeper.confirm()

    async def add(self, *specs: ProcessSpec) -> None:
        """Start more processes and wait until they are ready; ``after`` may name running ones.

        Either all of them run afterwards, or none and the first error is raised. A signal does not end
        the wait: see ``unless_over``.
        """
        for spec in specs:
            if spec.name in self._keepers:
                raise ValueError(f"a process named {spec.name} runs already; remove it first")
        try:
            await self._start_processes(_in_order(specs, known=self._keepers))
        except BaseException:
            await self.remove(*(spec.name for spec in specs))
            raise

    async def remove(self, *names: str) -> None:
        """Stop these processes: TERM, grace, KILL; dependants before what they need.

        Their names are free afterwards. When this is cancelled, what it has begun to stop goes on ending.
        """
        keepers = {name: self._keepers[name] for name in names if name in self._keepers}
        needs = _process_dependencies(keeper.spec for keeper in keepers.values())
        needed_by = {name: [other for other, wants in needs.items() if name in wants] for name in needs}
        try:
            await _walk_dependencies(needed_by, lambda name: keepers[name].stop())
        finally:
            for keeper in keepers.values():
                if keeper.has_ended:
                    self._forget_keeper(keeper)

    async def _start_processes(self, specs: Sequence[ProcessSpec]) -> None:
        for spec in specs:
            self._log.register(spec.name)
            self._keepers[spec.name] = ProcessKeeper(spec, self._log, self._policy, self._on_exit)
        await _walk_dependencies(_process_dependencies(specs), lambda name: self._start_keeper(self._keepers[name]))

    async def _start_keeper(self, keeper: ProcessKeeper) -> None:
        await keeper.start(partial(self._on_keeper_end, keeper))

    async def _stop_everything(self) -> None:
        self._stopping = True
        try:
            await self.remove(*self._keepers)
        finally:
            for number in SIGNALS:
                self._loop.remove_signal_handler(number)
            if not self._over.done():
                self._over.cancel()
            elif not self._over.cancelled():
                self._over.exception()  # seen: it was raised to whoever waited, or came too late to matter
            remove_shared_memory(self._shm_prefix)

    def _on_signal(self, number: int) -> None:
        if self._over.done() or self._stopping:
            for keeper in self._keepers.values():
                keeper.kill()
        else:
            self._over.set_result(number)

    def _on_keeper_end(self, keeper: ProcessKeeper, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if self._up or not keeper.spec.vital:
            self._log.write_line(keeper.spec.name, "given up; everything else runs on without it")
            self._forget_keeper(keeper)
        elif not self._over.done():
            self._over.set_exception(error)

    def _forget_keeper(self, keeper: ProcessKeeper) -> None:
        if self._keepers.get(keeper.spec.name) is keeper:
            del self._keepers[keeper.spec.name]

    async def unless_over(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of ``work``, which is cancelled when a signal comes or a process fails for good.

        Then raises ``SystemExit`` or the ``Fatal`` of the process: what waits for processes inside the
        context is to be wrapped in this.
        """
        task = asyncio.ensure_future(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self._over}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if self._over.done() and task.cancelled():
            raise SystemExit(128 + self._over.result())
        return task.result()


def _in_order(specs: Sequence[ProcessSpec], known: Iterable[str] = ()) -> list[ProcessSpec]:
    """``specs`` sorted so that each comes after what it needs. Raises ``ValueError``."""
    by_name = {spec.name: spec for spec in specs}
    if len(by_name) < len(specs):
        raise ValueError(f"process names must differ: {sorted(spec.name for spec in specs)}")
    for spec in specs:
        if missing := set(spec.after) - {*by_name, *known}:
            raise ValueError(f"{spec.name} is to start after {sorted(missing)}, which is not started")
    order = TopologicalSorter({spec.name: spec.after for spec in specs}).static_order()
    return [by_name[name] for name in order if name in by_name]


def _process_dependencies(specs: Iterable[ProcessSpec]) -> dict[str, list[str]]:
    after = {spec.name: spec.after for spec in specs}
    return {name: [other for other in others if other in after] for name, others in after.items()}


async def _walk_dependencies(needs: Mapping[str, list[str]], act: Callable[[str], Awaitable[None]]) -> None:
    """Call ``act`` for every name, at once where nothing stands in between, after what it needs.

    The first failure cancels the rest and is raised.
    """
    done = {name: asyncio.Event() for name in needs}

    async def visit(name: str) -> None:
        for other in needs[name]:
            await done[other].wait()
        await act(name)
        done[name].set()

    try:
        async with asyncio.TaskGroup() as group:
            for name in needs:
                group.create_task(visit(name))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
