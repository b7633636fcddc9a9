"""One app at this gateway: its record in the store, and the worker that serves it."""

import asyncio

from omnibus.app.protocol import Description
from omnibus.app_record import AppRecord
from omnibus.errors import ProblemDetails
from omnibus_gateway.apps.response_schemas import WorkerProblem, WorkerView
from omnibus_gateway.apps.worker_supervisor import WorkerSupervisor


class ServedApp:
    """App with its latest ``record`` in the store; ``worker`` may still serve the older ``serving`` record."""

    __slots__ = ("problem", "record", "serving", "starting", "worker")

    def __init__(self, record: AppRecord) -> None:
        self.record = record
        self.serving = record
        self.worker: WorkerSupervisor | None = None
        self.starting: asyncio.Task[None] | None = None
        self.problem: ProblemDetails | None = None

    @property
    def state(self) -> str:
        """``ready``, ``cold`` without a process, ``restarting`` after a crash, ``starting`` or ``broken``."""
        if self.worker is not None and self.worker.is_cold:
            return "cold"
        if self.worker is not None:
            return "ready" if self.worker.is_ready else "restarting"
        return "broken" if self.problem is not None else "starting"

    @property
    def is_settled(self) -> bool:
        """True after the first attempt to start it."""
        return self.worker is not None or self.problem is not None

    def worker_view(self) -> WorkerView:
        """Describe this gateway's worker for clients."""
        problem = None
        if self.problem is not None:
            problem = WorkerProblem(self.record.version, self.problem.code, self.problem.message)
        return WorkerView(self.state, self.serving.version if self.worker else None, problem)


def describe_record(record: AppRecord) -> Description:
    """Return the description of an app at its registration."""
    return Description(
        name=record.name,
        doc=record.doc,
        tasks=record.tasks,
        route=record.route,
        model=record.model,
        request=record.request,
        response=record.response,
        streams=record.streams,
        chat=record.chat,
        routes=record.routes,
        about=record.about,
        invocable=record.invocable,
    )
