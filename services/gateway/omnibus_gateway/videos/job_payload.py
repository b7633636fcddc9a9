"""Record of a requested video: all inputs, so that any gateway can make it."""

import re
from typing import Any

import msgspec
from msgspec import Struct

from omnibus.errors import NotFound, ProblemDetails, ProtocolError, from_problem
from omnibus.graph import UNREADABLE
from omnibus.store import JobRecord
from omnibus_gateway.openai.videos import Video, VideoFault

#: Kind of these jobs in the store.
KIND = "video"
#: Incremented when older builds cannot make the videos of newer ones. Videos with a first image have a separate
#: version, so that older builds leave them to others.
_VERSION, _IMAGE_VERSION = 1, 2
#: Pattern of ids: nothing else may become a key or a path.
_ID = re.compile(r"video_[0-9a-f]{48}")


class VideoJobSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Video for ``model``, along ``path`` if the client named one. ``wish`` is the complete request of its task.

    ``tenant`` requested it, and it waits with the ``weight`` of that tenant. Empty if the gateway has no API keys.
    """

    model: str
    wish: dict[str, Any]
    path: str = ""
    tenant: str = ""
    weight: float = 1.0
    v: int = _VERSION

    @property
    def image(self) -> dict[str, Any] | None:
        """First image: its modality, type, SHA-256 and number of bytes."""
        image_info: dict[str, Any] | None = self.wish.get("image")
        return image_info


def build_job_spec(model: str, wish: dict[str, Any], path: str, tenant: str, weight: float) -> VideoJobSpec:
    """Build the record of a video; an image of None is omitted from ``wish``."""
    wish = {name: value for name, value in wish.items() if name != "image" or value is not None}
    version = _IMAGE_VERSION if "image" in wish else _VERSION
    return VideoJobSpec(model=model, wish=wish, path=path, tenant=tenant, weight=weight, v=version)


class ActiveInvocation(Struct, frozen=True):
    """Invocation in progress for a job, with its executors."""

    id: str
    executors: tuple[str, ...]


_work = msgspec.json.Decoder(VideoJobSpec).decode
_sent = msgspec.json.Decoder(list[ActiveInvocation]).decode
_problem = msgspec.json.Decoder(ProblemDetails).decode
encode = msgspec.json.Encoder().encode


def decode_job(job: JobRecord) -> VideoJobSpec:
    """Decode a job. Raises ``ProtocolError`` for the format of another build."""
    try:
        work = _work(job.request)
    except UNREADABLE as error:
        raise ProtocolError(f"{job.id} was written down by another build: {error}") from error
    if work.v not in (_VERSION, _IMAGE_VERSION):
        raise ProtocolError(f"{job.id} was written down by another build: version {work.v}, this is {_IMAGE_VERSION}")
    return work


def decode_trace(job: JobRecord) -> list[ActiveInvocation]:
    """Decode the invocations in progress for a job; empty if another build wrote them."""
    try:
        return _sent(job.trace) if job.trace else []
    except UNREADABLE:
        return []


def video_view(job: JobRecord) -> Video:
    """Return a job as clients see it. Raises ``ProtocolError``."""
    work = decode_job(job)
    wish = work.wish
    return Video(
        id=job.id,
        model=work.model,
        status=job.status,
        progress=job.progress,
        created_at=int(job.created),
        completed_at=int(job.ended) if job.status == "completed" else None,
        expires_at=int(job.expires) if job.is_over else None,
        prompt=wish["prompt"],
        seconds=f"{wish['seconds']:g}",
        size=f"{wish['width']}x{wish['height']}",
        seed=wish["seed"],
        fps=wish["fps"],
        error=_decode_fault(job.outcome) if job.status == "failed" else None,
    )


def check_video_id(id: str) -> str:
    """Return ``id`` if it can be a video's. Raises ``NotFound``."""
    if not _ID.fullmatch(id):
        raise video_not_found()
    return id


def video_not_found() -> NotFound:
    return NotFound("video not found: unknown or expired id", param="video_id")


def _decode_fault(outcome: bytes) -> VideoFault:
    try:
        problem = _problem(outcome)
    except UNREADABLE:
        return VideoFault(code=ProtocolError.code, message="it failed at a gateway of another build")
    return VideoFault(
        code=problem.code, message=problem.message, param=problem.param or None, type=from_problem(problem).kind
    )
