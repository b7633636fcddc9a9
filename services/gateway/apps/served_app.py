"""One app at this gateway: what the store says of it, and the worker that serves it."""

import asyncio

from omnibus.app.protocol import Description
from omnibus.app_record import AppRecord
from omnibus.errors import ProblemDetails
from services.gateway.apps.response_schemas import WorkerProblem, WorkerView
from services.gateway.apps.worker_supervisor import WorkerSupervisor


class ServedApp:
    """One app here. ``record`` is what the store says; ``worker`` may still be that of an older ``version``."""

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
        """True if the first attempt to start it is over."""
        return self.worker is not None or self.problem is not None

    def worker_view(self) -> WorkerView:
        """This gateway's worker, for people."""
        problem = None
        if self.problem is not None:
            problem = WorkerProblem(self.record.version, self.problem.code, self.problem.message)
        return WorkerView(self.state, self.serving.version if self.worker else None, problem)


def describe_record(record: AppRecord) -> Description:
    """Description of an app as it was when it was registered."""
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
    )
