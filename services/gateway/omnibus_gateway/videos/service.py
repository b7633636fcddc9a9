"""Operations on videos at any gateway, and this gateway's work on them.

Finished videos in a bucket: any gateway serves them, even if their own gateway is gone.

An object is ``results/videos/<id>.mp4``, with a thumbnail next to it. It is kept for ``settings.video_kept`` seconds
after it was written. Until then, a video is a draft on the disk of its gateway, and clients never see a part of it.
"""

import asyncio
import logging
import secrets
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from omnibus.errors import BadRequest, Overloaded, ProtocolError, StoreUnavailable, TooLarge, storage_error
from omnibus.metrics import GATEWAY
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus.store import OVERHEAD_BYTES, JobRecord, Store
from omnibus_gateway.core import RequestFactory
from omnibus_gateway.http.content import Content
from omnibus_gateway.media.files import new_secret_id, remove_older
from omnibus_gateway.media.inspect import InspectedMedia
from omnibus_gateway.media.object_storage import ObjectStorage
from omnibus_gateway.media.peers import KeptFile, MediaPeers
from omnibus_gateway.openai.videos import REFERENCE, ListQuery, Variant, Video, VideoList, VideoRequest
from omnibus_gateway.pricing.meter import NO_PRICES, PriceOptions
from omnibus_gateway.tenancy.tenant import DeferredWork, current_tenant, put_counted_job, tenant_account
from omnibus_gateway.videos import job_payload
from omnibus_gateway.videos.generate import VideoGenerator
from omnibus_gateway.videos.job_payload import KIND, video_not_found
from omnibus_gateway.videos.mirror import JobMirror
from omnibus_gateway.videos.storage import (
    DRAFT,
    DRAFT_TTL_SECONDS,
    FILE_EXTENSIONS,
    FILE_GRACE_SECONDS,
    RETRY_AFTER_SECONDS,
    VideoFiles,
    VideoStorage,
)
from omnibus_gateway.videos.worker import VideoWorker

PREFIX = "results/videos"


class VideoObjects:
    """Stores videos by id, in a bucket for all gateways."""

    def __init__(self, settings: GatewaySettings, storage: ObjectStorage) -> None:
        self._storage = storage
        self._limit = settings.video_bytes
        self._tenant_limit = int(settings.video_bytes * settings.tenant_share)
        self._seconds = settings.video_kept
        self._drafts = Path(settings.media_dir) / "videos" if settings.media_dir else None
        self._own_drafts: Path | None = None  # without a media directory

    async def check_capacity(self, own: Collection[str] | None = None) -> None:
        """Check that there is room for another video; ``own`` are the ids of its tenant's videos, if it has a share.

        Raises ``Overloaded`` without room, ``StoreUnavailable`` and ``Forbidden``.
        """
        sizes = {each.key.rpartition("/")[2]: each.nbytes for each in await self._storage.list(PREFIX)}
        if sum(sizes.values()) > self._limit:
            raise Overloaded("stored videos use all available space: delete some", retry_after=RETRY_AFTER_SECONDS)
        if own is not None and sum(sizes.get(f"{id}.mp4", 0) for id in own) > self._tenant_limit:
            raise Overloaded(
                "your videos use all the space of one tenant: delete some", retry_after=RETRY_AFTER_SECONDS
            )

    async def new_draft(self, id: str) -> Path:
        """Return the path of a draft file for a new video."""
        try:
            directory = await asyncio.to_thread(self._open_drafts)
        except OSError as error:
            raise storage_error("the directory of drafts", error) from error
        return directory / f"{id}.{token_hex(4)}{DRAFT}"

    async def store_video(self, id: str, draft: Path, thumbnail: bytes, seconds: float) -> None:
        """Store a draft as video ``id``, unless it exists. Raises ``StoreUnavailable`` and ``Forbidden``."""
        await self._remove_expired()
        if await self._storage.find(_key(id, "video")) is not None:
            return
        await self._storage.put(_key(id, "thumbnail"), thumbnail)
        await self._storage.put_file(_key(id, "video"), draft)  # last: it makes the video complete

    async def find_file(self, id: str, variant: Variant) -> Content:
        """Return the content of a finished video. Raises ``NotFound``, ``StoreUnavailable`` and ``Forbidden``."""
        stored_object = await self._storage.find(_key(id, variant))
        if stored_object is None:
            raise video_not_found()
        return Content(stored_object.nbytes, f'"{id}-{variant}"', partial(self._storage.get_range, stored_object.key))

    async def expiry_time(self, id: str) -> float:
        """Return the Unix seconds until which video ``id`` is kept; 0 without one. Raises as ``find_file``."""
        stored_object = await self._storage.find(_key(id, "video"))
        return stored_object.modified + self._seconds if stored_object is not None else 0.0

    async def remove_files(self, id: str) -> None:
        """Remove the objects of ``id`` if there are any."""
        for variant in FILE_EXTENSIONS:
            await self._storage.delete(_key(id, variant))

    async def close(self) -> None:
        if self._own_drafts is not None:
            await asyncio.to_thread(shutil.rmtree, self._own_drafts, ignore_errors=True)
            self._own_drafts = None

    def _open_drafts(self) -> Path:
        """Return the directory of drafts, and remove abandoned ones."""
        if self._drafts is None:
            self._own_drafts = self._own_drafts or Path(tempfile.mkdtemp(prefix="omnibus-videos-"))
            return self._own_drafts
        self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._drafts.glob(f"video_*{DRAFT}"):
            remove_older(path, time.time() - DRAFT_TTL_SECONDS)
        return self._drafts

    async def _remove_expired(self) -> None:
        oldest = time.time() - self._seconds - FILE_GRACE_SECONDS
        for each in await self._storage.list(PREFIX):
            if each.modified < oldest:
                await self._storage.delete(each.key)


def _key(id: str, variant: Variant) -> str:
    return f"{PREFIX}/{id}{FILE_EXTENSIONS[variant]}"


log = logging.getLogger(__name__)

#: Maximum bytes of a first image, which is in the store until the video is over.
_MAX_IMAGE_BYTES = 8 << 20
#: Seconds that a first image is kept after its video's deadline.
_IMAGE_GRACE_SECONDS = 60.0
#: Seconds between two attempts while the store is unavailable.
_RETRY_PAUSE_SECONDS = 0.5


class Videos:
    """Video jobs in the store, with files in a directory or bucket."""

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        runs: RequestFactory,
        peers: MediaPeers | None = None,
        deferred_work: DeferredWork | None = None,
    ) -> None:
        deferred_work = deferred_work or DeferredWork()
        self._settings = settings
        self.store = self._store = store
        objects = ObjectStorage.of_results(settings)
        self._films: VideoFiles = VideoStorage(settings, peers) if objects is None else VideoObjects(settings, objects)
        self._filming = VideoGenerator(runs, store, self._films, settings.video_kept, deferred_work)
        self._worker = VideoWorker(settings, store, self._films, self._filming, self._on_job_ended)
        self._mirror = JobMirror(store, self._films, settings.videos_kept, settings.video_lease)
        self._tasks: list[asyncio.Task[None]] = []

    def startup(self) -> None:
        """Start the worker, and follow the jobs in the store."""
        GATEWAY.videos.set_value(lambda: len(self._worker.running_jobs))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow_jobs()), loop.create_task(self._worker.serve())]

    async def shutdown(self) -> None:
        """Stop, and release running jobs for other gateways."""
        for task in reversed(self._tasks):
            await until_cancelled(task)
        await self._films.close()

    async def locate(self, name: str) -> KeptFile | None:
        """Return a file of this gateway's directory for other gateways; they read a bucket themselves."""
        return await self._films.locate(name) if isinstance(self._films, VideoStorage) else None

    # Clients

    def require_first_frame(self, model: str) -> None:
        """Check that the model accepts a first image. Raises ``BadRequest`` and ``NotFound``."""
        self._filming.require_first_frame(model)

    async def create(
        self,
        video_request: VideoRequest,
        pinned_path: str,
        prices: PriceOptions = NO_PRICES,
        first: InspectedMedia | None = None,
    ) -> Video:
        """Create a job for a video within its ``prices``; a worker makes it later.

        ``first`` is the first image. Raises ``OmnibusError``, and ``QuoteReady``.
        """
        wish = {"seed": secrets.randbits(62), **video_request.task_fields(), **_image_field(first)}
        request = self._filming.build_request(video_request.model, wish)
        self._check_limits(request)
        self._filming.check_family_limits(video_request.model, request)
        pinned_path = await self._filming.choose_path(video_request.model, request, pinned_path, prices)
        tenant, key = current_tenant().name, current_tenant().key
        await self._films.check_capacity(self._mirror.ids_of(tenant) if tenant else None)
        now = time.time()
        until = now + self._settings.video_deadline
        job = JobRecord(
            id=new_secret_id("video_"),
            request=job_payload.encode(
                job_payload.build_job_spec(
                    video_request.model, request.model_dump(), pinned_path, tenant, current_tenant().weight
                )
            ),
            created=now,
            until=until,
            expires=until + self._settings.video_kept,
            tenant=tenant,
            key=key.sha256 if key is not None else "",
        )
        await self._put_job(job, first)
        self._mirror.put(job)
        self._worker.wake()
        return job_payload.video_view(job)

    async def _put_job(self, job: JobRecord, first: InspectedMedia | None) -> None:
        """Store the first image, then ``job``. Raises ``Overloaded`` and ``LimitReached``."""
        settings = self._settings
        if first is not None:
            seconds, account = job.until - job.created + _IMAGE_GRACE_SECONDS, tenant_account(settings, job.tenant)
            await self._store.reserve(account, _image_member(job.id), len(first.data) + OVERHEAD_BYTES, seconds)
            await self._store.put_job_file(KIND, job.id, first.data, seconds)
        try:
            await put_counted_job(settings, self._store, KIND, job, settings.videos_open, settings.videos_kept)
        except BaseException:
            await self._drop_image(job)
            raise

    async def _drop_image(self, job: JobRecord) -> None:
        with suppress(StoreUnavailable):  # it expires
            await self._store.drop_job_file(KIND, job.id)
            await self._store.release(job.tenant, _image_member(job.id))

    async def show_video(self, id: str) -> Video:
        """Return a video. Raises ``NotFound``."""
        return job_payload.video_view(await self._find_job(id))

    async def list_videos(self, query: ListQuery) -> VideoList:
        """List videos in the order of their creation. Raises ``NotFound`` for an unknown ``after``."""
        after = (await self._find_job(query.after)).id if query.after else ""
        views: list[Video] = []
        more = True
        while more and len(views) < query.limit:  # videos of other tenants are skipped
            page = await self._store.jobs(KIND, query.limit - len(views), after, query.order == "desc")
            if page is None:
                raise job_payload.video_not_found()
            views += _visible_videos(page.jobs)
            more = page.more and bool(page.jobs)
            after = page.jobs[-1].id if page.jobs else after
        first, last = (views[0].id, views[-1].id) if views else (None, None)
        return VideoList(data=views, has_more=more, first_id=first, last_id=last)

    async def remove_video(self, id: str) -> None:
        """Remove a video, and stop its generation. Raises ``NotFound``."""
        job = await self._find_job(id)
        if not await self._store.drop_job(KIND, id):
            raise job_payload.video_not_found()
        await self._drop_image(job)
        await self._store.release(job.tenant, f"job:{KIND}:{id}")
        self._filming.stop_invocations(job)
        self._mirror.remove(id)
        self._worker.lose_lease(id)
        await self._films.remove_files(id)

    async def find_content(self, id: str, variant: Variant) -> tuple[JobRecord, Path | Content]:
        """Return a completed job and its file. Raises ``NotFound``, and ``BadRequest`` before that."""
        job = await self._find_job(id)
        if job.status != "completed":
            advice = "it failed, see its error" if job.status == "failed" else "poll its status until it is"
            raise BadRequest(f"the video is not completed: {advice}", param="video_id")
        return job, await self._films.find_file(id, variant)

    async def _find_job(self, id: str) -> JobRecord:
        job = await self._store.job(KIND, job_payload.check_video_id(id))
        if job is None and id in self._mirror:  # the store has lost it, or it has just been removed
            await self._synchronise_jobs()
            job = await self._store.job(KIND, id)
        asking = current_tenant()
        if job is None or (asking.name and not asking.owns(job_payload.decode_job(job).tenant)):
            raise job_payload.video_not_found()
        return job

    def _check_limits(self, request: Any) -> None:
        """Raise ``TooLarge`` for a video over the limits of this gateway."""
        limits = self._settings
        frames = int(getattr(request, "frames", request.seconds * request.fps))
        pixels = request.width * request.height
        for name, value, most, unit in (
            ("seconds", request.seconds, limits.video_seconds, "seconds"),
            ("seconds", frames, limits.video_frames, "frames"),
            ("size", pixels, limits.video_frame, "pixels in a frame"),
            ("size", pixels * frames, limits.video_pixels, "pixels in all its frames"),
        ):
            if value > most:
                raise TooLarge(f"a video may have at most {most:.16g} {unit}, not {value:.16g}", param=name)

    # Changes of jobs

    async def _follow_jobs(self) -> None:
        async for _ in self._store.job_changes(KIND):
            self._worker.wake()
            while not await self._try_synchronise():  # noqa: ASYNC110 - nothing announces that a store is back
                await asyncio.sleep(_RETRY_PAUSE_SECONDS)

    async def _try_synchronise(self) -> bool:
        try:
            await self._synchronise_jobs()
        except StoreUnavailable as error:
            log.warning("videos: %s", error)
            return False
        return True

    async def _synchronise_jobs(self) -> None:
        """Renew leases that the store may have lost, and restore lost jobs."""
        running = self._worker.running_jobs
        for id in running.keys() - await self._store.held_jobs(KIND, running):
            self._worker.renew_lease(id)
        await self._mirror.synchronise(running)

    async def _on_job_ended(self, job: JobRecord, ours: bool) -> None:
        """Clean up after a job; if it is no longer ``ours`` and is gone, remove its video, too."""
        if ours and job_payload.decode_job(job).image is not None:
            await self._drop_image(job)
        if ours:
            self._mirror.put(job)
        elif await self._store.job(KIND, job.id) is None:
            await self._films.remove_files(job.id)


def _image_member(id: str) -> str:
    return f"jobfile:{KIND}:{id}"


def _image_field(first: InspectedMedia | None) -> dict[str, Any]:
    """Return the task field for a first image. Raises ``TooLarge``."""
    if first is None:
        return {}
    info = first.info
    if info.nbytes > _MAX_IMAGE_BYTES:
        raise TooLarge(f"the image has {info.nbytes} bytes, at most {_MAX_IMAGE_BYTES} are allowed", param=REFERENCE)
    return {"image": {"modality": info.modality, "mime": info.mime, "sha256": info.sha256, "nbytes": info.nbytes}}


def _visible_videos(jobs: Iterable[JobRecord]) -> Iterator[Video]:
    """Yield the videos among ``jobs`` that belong to the current tenant."""
    for job in jobs:
        try:
            if current_tenant().owns(job_payload.decode_job(job).tenant):
                yield job_payload.video_view(job)
        except ProtocolError as error:
            log.error("a video is omitted from a list: %s", error)
