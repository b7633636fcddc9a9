"""Record of a batch in its job, and its outcome."""

import re

import msgspec
from msgspec import Struct

from omnibus.errors import NotFound, ProtocolError
from omnibus.store import JobRecord
from omnibus_gateway.openai.batches import Batch, BatchErrors, RequestCounts, Status
from omnibus_gateway.openai.batches import BatchError as InputError

#: Kind of these jobs in the store.
KIND = "batch"
_ID = re.compile(r"batch_[0-9a-f]{48}")


class BatchSpec(Struct, frozen=True, kw_only=True):
    """Work of a batch, with its tenant and the tenant's ``weight``."""

    endpoint: str
    input_file_id: str
    metadata: dict[str, str] | None = None
    output_seconds: float = 0.0
    tenant: str = ""
    weight: float = 1.0


class BatchProgress(Struct, frozen=True, kw_only=True):
    """Counts of lines of a running batch, and its start time."""

    counts: RequestCounts = RequestCounts()
    began: float = 0.0


class BatchOutcome(Struct, frozen=True, kw_only=True):
    """The end of a batch."""

    status: Status
    counts: RequestCounts
    began: float
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[InputError] = []


encode = msgspec.json.Encoder().encode


def decode_spec(job: JobRecord) -> BatchSpec:
    """Raises ``ProtocolError`` for a record of another build."""
    try:
        return msgspec.json.decode(job.request, type=BatchSpec)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"{job.id} was stored by another build: {error}") from error


def batch_view(job: JobRecord, cancelled: bool) -> Batch:
    """Return a batch as clients see it, ``cancelled`` or not. Raises ``ProtocolError``."""
    spec = decode_spec(job)
    status, outcome = _status(job, cancelled)
    progress = _decode_progress(job) if outcome is None else BatchProgress(counts=outcome.counts, began=outcome.began)
    ended_at = int(job.ended)
    return Batch(
        id=job.id,
        endpoint=spec.endpoint,
        input_file_id=spec.input_file_id,
        status=status,
        created_at=int(job.created),
        expires_at=int(job.until),
        request_counts=progress.counts,
        in_progress_at=int(progress.began) or None,
        completed_at=ended_at if status == "completed" else None,
        failed_at=ended_at if status == "failed" else None,
        expired_at=ended_at if status == "expired" else None,
        cancelled_at=ended_at if status == "cancelled" else None,
        output_file_id=outcome.output_file_id if outcome is not None else None,
        error_file_id=outcome.error_file_id if outcome is not None else None,
        errors=BatchErrors(data=outcome.errors) if outcome is not None and outcome.errors else None,
        metadata=spec.metadata,
    )


def check_batch_id(id: str) -> str:
    """Return ``id`` if it has a batch id's format. Raises ``NotFound``.

    The check prevents that any other text becomes a key.
    """
    if not _ID.fullmatch(id):
        raise batch_not_found()
    return id


def batch_not_found() -> NotFound:
    return NotFound("batch not found: unknown or expired id", param="batch_id")


def _status(job: JobRecord, cancelled: bool) -> tuple[Status, BatchOutcome | None]:
    if job.is_over:
        outcome = _decode_outcome(job)
        return outcome.status, outcome
    if cancelled:
        return "cancelling", None
    return ("validating" if job.status == "queued" and not job.attempt else "in_progress"), None


def _decode_outcome(job: JobRecord) -> BatchOutcome:
    try:
        return msgspec.json.decode(job.outcome, type=BatchOutcome)
    except msgspec.MsgspecError:
        fault = InputError(code=ProtocolError.code, message="the batch ended at a gateway of another build")
        return BatchOutcome(status="failed", counts=RequestCounts(), began=job.created, errors=[fault])


def _decode_progress(job: JobRecord) -> BatchProgress:
    try:
        return msgspec.json.decode(job.trace, type=BatchProgress) if job.trace else BatchProgress()
    except msgspec.MsgspecError:
        return BatchProgress()
