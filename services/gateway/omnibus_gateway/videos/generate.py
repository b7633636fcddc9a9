"""Generation of one video: submits its graph, and writes the results to a file.

Writer of a video file. A separate thread encodes it, so that the event loop can continue.
"""

import asyncio
from collections.abc import AsyncIterable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from omnibus.encoding import image
from omnibus.encoding.video import VideoWriter
from omnibus.errors import BadRequest, Conflict, NotFound, StageFailed
from omnibus.families import catalog
from omnibus.metrics import GATEWAY
from omnibus.store import JobRecord, Store
from omnibus.store.lease import JobLease
from omnibus.task import record, use
from omnibus.task.library import VideoGeneration, VideoOutput
from omnibus.task.runtime import merged
from omnibus.task.runtime import run as run_task
from omnibus_gateway.core import ClientRequest, RequestFactory
from omnibus_gateway.openai.videos import REFERENCE
from omnibus_gateway.pricing.meter import PriceOptions
from omnibus_gateway.tasks.prepared_chat import TaskCache
from omnibus_gateway.tasks.resolve import IMAGE, build_request, create_video_task, rename_params, request_class
from omnibus_gateway.tenancy.tenant import DeferredWork, acting_as
from omnibus_gateway.videos import job_payload
from omnibus_gateway.videos.job_payload import ActiveInvocation, VideoJobSpec
from omnibus_gateway.videos.storage import VideoFiles

#: Quality of the thumbnail in percent.
_QUALITY_PERCENT = 85


class VideoFileWriter:
    """Writes a video to ``path``, see ``VideoWriter``. Always call ``discard_unfinished`` at the end."""

    def __init__(self, path: Path, fps: float, sound: bool) -> None:
        self._about = (path, fps, sound)
        self._film: VideoWriter | None = None
        self._first: NDArray[np.uint8] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="film")
        self.count = 0

    async def write_frames(self, pixels: NDArray[np.uint8]) -> None:
        await self._run_in_thread(self._write_frames, pixels)
        self.count += len(pixels)

    async def write_audio(self, samples: NDArray[np.float32], rate: int) -> None:
        await self._run_in_thread(self._write_audio, samples, rate)

    async def close(self) -> bytes:
        """Complete the file; return its first frame as an image file."""
        return await self._run_in_thread(self._finish_file)

    async def discard_unfinished(self) -> None:
        """Remove an incomplete file."""
        await self._run_in_thread(self._discard_unfinished)
        self._thread.shutdown(wait=False)

    async def _run_in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _open_encoder(self) -> VideoWriter:
        if self._film is None:
            self._film = VideoWriter(*self._about)
        return self._film

    def _write_frames(self, pixels: NDArray[np.uint8]) -> None:
        self._open_encoder().add_frames(pixels)
        if self._first is None and len(pixels):
            self._first = pixels[0].copy()

    def _write_audio(self, samples: NDArray[np.float32], rate: int) -> None:
        self._open_encoder().add_audio(samples, rate)

    def _finish_file(self) -> bytes:
        if self._first is None:
            raise StageFailed("the model made no frames: retry the request")
        self._open_encoder().close()
        self._film = None
        return image.encode_image(self._first, "webp", _QUALITY_PERCENT)

    def _discard_unfinished(self) -> None:
        if self._film is not None:
            self._film.abort()
        self._about[0].unlink(missing_ok=True)  # a complete file already has another name


APP = "videos"

#: Client names of task fields, if they differ.
_CLIENT_PARAM_NAMES = {
    "width": "size",
    "height": "size",
    "frames": "seconds",
    **dict.fromkeys(("image", "media"), REFERENCE),
}
#: Progress in percent after the last step; the rest is for the frames.
_DENOISED_PERCENT = 90


class VideoGenerator:
    """Generates videos with models of the plan; ``films`` stores them for ``seconds``.

    First images of videos are in ``store``.
    """

    def __init__(
        self, runs: RequestFactory, store: Store, films: VideoFiles, seconds: float, deferred_work: DeferredWork
    ) -> None:
        self._deferred = deferred_work
        self._runs = runs
        self._store = store
        self._films = films
        self._seconds = seconds
        self._tasks = TaskCache(runs.router, create_video_task)

    @property
    def is_ready(self) -> bool:
        """True if the models are known."""
        return self._runs.router.plan is not None

    def build_request(self, model: str, wish: dict[str, Any]) -> BaseModel:
        """Build the request for the task of ``model`` from ``wish`` and defaults.

        Raises ``NotFound``, and ``BadRequest`` for a model that cannot make such a video.
        """
        task = self._tasks.get_task(model)
        if isinstance(task, VideoGeneration):
            if wish.get("sound") and task.sound is None:
                raise BadRequest(f"{model} has no audio output: omit `sound`", param="sound")
            wish = {"sound": task.sound is not None, **wish}
        with rename_params(_CLIENT_PARAM_NAMES):
            return build_request(model, task, wish)

    def require_first_frame(self, model: str) -> None:
        """Check that the model accepts a first image. Raises ``BadRequest`` and ``NotFound``."""
        task = self._tasks.get_task(model)
        takes_image = IMAGE in request_class(task).model_fields
        if not takes_image or (isinstance(task, VideoGeneration) and task.frame_encoder is None):
            raise BadRequest(
                f"{model} does not accept a first image: omit '{REFERENCE}', and describe it in 'prompt'",
                param=REFERENCE,
            )

    def check_family_limits(self, model: str, request: Any) -> None:
        """Check the limits of the model's family. Raises ``BadRequest`` with those limits."""
        limits = catalog.find_video_limits(self._runs.router.get_model(model).family)
        if limits is None:
            return
        with rename_params(_CLIENT_PARAM_NAMES):
            limits.check_frames(request.width, request.height, request.frames, request.fps)
            limits.check_steps(request.steps)

    async def choose_path(self, model: str, request: BaseModel, pinned_path: str, prices: PriceOptions) -> str:
        """Return the path for ``request`` under its ``prices``; ``pinned_path`` if they do not restrict it.

        Raises as ``Quotes.open_check`` and ``PriceCheck.choose_path``.
        """
        task = self._tasks.get_task(model)
        check = self._runs.quotes.open_check(prices, task)
        if check is None:
            return pinned_path
        run = self._runs.open_request(APP, model)
        return await check.choose_path(model, record(task.invoke, request, run.choice_point), pinned_path)

    def stop_invocations(self, job: JobRecord) -> None:
        """Stop invocations in progress for ``job``. Their gateway may have died."""
        for active_invocation in job_payload.decode_trace(job):
            self._runs.dispatcher.stop_invocation(active_invocation.id, active_invocation.executors)

    async def make_video(self, job: JobRecord, lease: JobLease) -> None:
        """Make the video of ``job`` with its ``lease``, as its client's tenant. Raises ``OmnibusError``."""
        job_spec = job_payload.decode_job(job)
        tenant = self._deferred.find_tenant(job_spec.tenant, job_spec.weight, job.key)
        self._deferred.check_room(tenant)
        with self._deferred.counted(tenant), acting_as(tenant):
            await self._make_for_tenant(job, job_spec, lease)

    async def wait_revoked(self, job: JobRecord) -> None:
        """Return when the key of ``job`` is revoked. Raises as ``DeferredWork.find_tenant``."""
        job_spec = job_payload.decode_job(job)
        await self._deferred.wait_revoked(self._deferred.find_tenant(job_spec.tenant, job_spec.weight, job.key))

    async def _make_for_tenant(self, job: JobRecord, job_spec: VideoJobSpec, lease: JobLease) -> None:
        task = self._tasks.get_task(job_spec.model)
        run = self._runs.open_request(APP, job_spec.model, seed=job_spec.wish["seed"], pinned_path=job_spec.path)
        run.disable_queue_limit()
        run.deadline = job.until
        with rename_params(_CLIENT_PARAM_NAMES, REFERENCE if job_spec.image else ""):
            async with run.until_end(Conflict("the video was removed, or another gateway continues it")):
                request = build_request(
                    job_spec.model, task, {**job_spec.wish, **await self._place_image(run, job, job_spec)}
                )
                with use(run):
                    output: VideoOutput = await run_task(task.invoke, request)
                lease.set_trace(lambda: _encode_trace(run))
                try:
                    await self._write_video(run, job, job_spec, output, lease)
                finally:
                    lease.is_suspect = any(each.died_with for each in run.segments)

    async def _place_image(self, run: ClientRequest, job: JobRecord, job_spec: VideoJobSpec) -> dict[str, Any]:
        """Place the first image, and return its field. Raises ``NotFound`` if the store has lost it."""
        about = job_spec.image
        if about is None:
            return {}
        data = await self._store.job_file(job_payload.KIND, job.id)
        if data is None:
            raise NotFound("the store has lost the first image of the video: send it again", param=IMAGE)
        return {IMAGE: await run.place_input(data, (about["modality"], about["mime"], about["sha256"]))}

    async def _write_video(
        self, run: ClientRequest, job: JobRecord, job_spec: VideoJobSpec, output: VideoOutput, lease: JobLease
    ) -> None:
        draft = await self._films.new_draft(job.id)
        reel = VideoFileWriter(draft, job_spec.wish["fps"], output.audio is not None)
        try:
            await _write_streams(run, output, reel, lease, job_spec.wish["seconds"] * job_spec.wish["fps"])
            thumbnail = await reel.close()
            await lease.confirm()
            await self._films.store_video(job.id, draft, thumbnail, self._seconds)
        finally:
            await reel.discard_unfinished()


async def _write_streams(
    run: ClientRequest, output: VideoOutput, reel: VideoFileWriter, lease: JobLease, frames: float
) -> None:
    """Write frames and audio as they arrive; ``frames`` is the approximate total."""
    streams: dict[str, AsyncIterable[Any]] = {
        name: stream for name in ("frames", "audio", "progress") if (stream := getattr(output, name, None)) is not None
    }
    async for name, part in merged(streams):
        if name == "progress":
            lease.report_progress(_DENOISED_PERCENT * part.step // max(1, part.steps))
        elif name == "audio":
            if part.array is not None:
                await reel.write_audio(part.array, part.rate)
        else:
            if not reel.count:
                GATEWAY.first_output(run.model, "video").observe(run.age_seconds)
            await reel.write_frames(part)
            lease.report_progress(
                min(99, _DENOISED_PERCENT + int((100 - _DENOISED_PERCENT) * reel.count / max(1.0, frames)))
            )


def _encode_trace(run: ClientRequest) -> bytes:
    """Encode the invocations of ``run`` in progress with their executors."""
    invocations = [each.invocation for each in run.segments if not each.over]
    return job_payload.encode([ActiveInvocation(one.id, tuple(dict.fromkeys(one.route))) for one in invocations])
