"""One video: its graph is sent on its way, and what comes of it becomes a file."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel, ValidationError

from omnibus.errors import BadRequest, DeadlineExceeded, Fatal, OmnibusError, Rejected
from omnibus.metrics import GATEWAY
from omnibus.store import JobRecord
from omnibus.task import CompositeTask, use
from omnibus.task.library import VideoGeneration, VideoOutput
from omnibus.task.runtime import merged
from omnibus.task.runtime import run as run_task
from services.gateway.request.request import Run, Runs
from services.gateway.tasks.resolve import Known, filmer, request_of
from services.gateway.tenancy.tenant import Tenant, acting
from services.gateway.videos import job_payload
from services.gateway.videos.job_payload import Sent, Work
from services.gateway.videos.lease import Lease
from services.gateway.videos.storage import Films
from services.gateway.videos.writer import Reel

APP = "videos"

#: What clients call the fields of a task's request, where that differs.
_CALLED = {"width": "size", "height": "size", "frames": "seconds"}
#: Percent of a video that is done once its last step is; the rest are its frames.
_STEPS = 90


class Filming:
    """Makes videos with models of the plan, and has ``films`` keep them for ``seconds``."""

    def __init__(self, runs: Runs, films: Films, seconds: float) -> None:
        self._runs = runs
        self._films = films
        self._seconds = seconds
        self._tasks = Known(runs.router, filmer)

    @property
    def ready(self) -> bool:
        """True if it is known which models there are."""
        return self._runs.router.plan is not None

    def request(self, model: str, wish: dict[str, Any]) -> BaseModel:
        """Return the request for the task of ``model``: the fields of ``wish``, and the task's defaults for all others.

        Raises ``NotFound``, and ``BadRequest`` for a model that makes no videos, or not such ones.
        """
        task = self._tasks.task(model)
        if isinstance(task, VideoGeneration):
            if wish.get("sound") and task.sound is None:
                raise BadRequest(f"{model} makes no sound: leave it out", param="sound")
            wish = {"sound": task.sound is not None, **wish}
        return _request(model, task, wish)

    def stop(self, job: JobRecord) -> None:
        """Stop what is under way for ``job``: whoever began it may not be there any more to do so."""
        for sent in job_payload.traced(job):
            self._runs.dispatcher.stop(sent.id, sent.executors)

    async def make(self, job: JobRecord, lease: Lease) -> None:
        """Make the video of ``job``, which is held by ``lease``. Raises ``OmnibusError``."""
        asked = job_payload.decode(job)
        task = self._tasks.task(asked.model)
        request = _request(asked.model, task, asked.wish)
        with acting(Tenant(asked.tenant, asked.weight)):
            run = self._runs.open(APP, asked.model, seed=asked.wish["seed"], pinned=asked.path)
        run.wait_patiently()
        run.deadline = job.until
        try:
            async with _ending(run):
                with use(run):
                    output: VideoOutput = await run_task(task.invoke, request)
                lease.begin(lambda: _trace(run))
                await self._film(run, job, asked, output, lease)
        except Rejected as error:
            error.param = _CALLED.get(error.param, error.param)
            raise

    async def _film(self, run: Run, job: JobRecord, asked: Work, output: VideoOutput, lease: Lease) -> None:
        draft = await self._films.draft(job.id)
        reel = Reel(draft, asked.wish["fps"], output.audio is not None)
        try:
            await _record(run, output, reel, lease, asked.wish["seconds"] * asked.wish["fps"])
            thumbnail = await reel.close()
            await lease.confirm()
            await self._films.keep(job.id, draft, thumbnail, self._seconds)
        finally:
            await reel.leave()


async def _record(run: Run, output: VideoOutput, reel: Reel, lease: Lease, frames: float) -> None:
    """Frames and sound as they come; ``frames`` are about as many as there will be."""
    streams: dict[str, AsyncIterable[Any]] = {
        name: stream for name in ("frames", "audio", "progress") if (stream := getattr(output, name, None)) is not None
    }
    async for name, part in merged(streams):
        if name == "progress":
            lease.tell(_STEPS * part.step // max(1, part.steps))
        elif name == "audio":
            if part.array is not None:
                await reel.sound(part.array, part.rate)
        else:
            if not reel.count:
                GATEWAY.first_output(run.model, "video").observe(run.age)
            await reel.frames(part)
            lease.tell(min(99, _STEPS + int((100 - _STEPS) * reel.count / max(1.0, frames))))


def _trace(run: Run) -> bytes:
    """Return the invocations of ``run`` that are not over, encoded, each with its executors."""
    sent = [each.invocation for each in run.segments if not each.over]
    return job_payload.encode([Sent(one.id, tuple(dict.fromkeys(one.route))) for one in sent])


def _request(model: str, task: CompositeTask, wish: dict[str, Any]) -> BaseModel:
    try:
        made: BaseModel = request_of(task)(**wish)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        param = _CALLED.get(name, name)
        if first["type"] == "extra_forbidden":
            raise BadRequest(f"{model} does not support the parameter {name!r}: leave it out", param=param) from None
        raise BadRequest(f"{name}: {first['msg']}", param=param) from None
    return made


@asynccontextmanager
async def _ending(run: Run) -> AsyncIterator[None]:
    """See ``run`` to its one end, however the block is left; its deadline holds inside."""
    try:
        async with asyncio.timeout(max(0.0, run.left)):
            yield
    except TimeoutError:
        run.expire()
        run.end("expired")
        raise DeadlineExceeded("the video took longer than its deadline, waiting included") from None
    except asyncio.CancelledError:
        run.fail(Fatal("the video was removed, or another gateway goes on with it"))
        run.end("cancelled")
        raise
    except BaseException as error:
        if isinstance(error, OmnibusError):
            run.fail(error)
        run.end("failed")
        raise
    run.end("done")
    GATEWAY.seconds(run.model).observe(run.age)
