"""Requests and responses of ``/v1/batches``. Source: the types of the ``openai`` package, 3.52."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest
from omnibus_gateway.openai.files import ExpiresAfter
from omnibus_gateway.openai.parse import decode_body, invalid_request

BATCHES, BATCH, CANCEL = "/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


class BatchRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/batches``."""

    input_file_id: Annotated[str, Meta(min_length=1, max_length=128)]
    endpoint: Annotated[str, Meta(min_length=1, max_length=128)]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchLine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of an input file, which is one request."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class LineResponse(Struct, frozen=True, kw_only=True):
    """The response to a line, as its route returned it."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(Struct, frozen=True, kw_only=True):
    """The reason why a line was not sent."""

    code: str
    message: str


class ResultLine(Struct, frozen=True, kw_only=True):
    """One line of an output file, or of an error file."""

    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineError | None = None


class BatchError(Struct, frozen=True, kw_only=True):
    """An error in an input file. Line numbers start at 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(Struct, frozen=True, kw_only=True):
    data: list[BatchError]
    object: Literal["list"] = "list"


class RequestCounts(Struct, frozen=True, kw_only=True):
    """Counts of all lines, the completed lines and the failed lines."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(Struct, frozen=True, kw_only=True):
    """A batch. Times are Unix seconds."""

    id: str
    endpoint: str
    input_file_id: str
    status: Status
    created_at: int
    expires_at: int
    request_counts: RequestCounts
    completion_window: Literal["24h"] = "24h"
    in_progress_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: BatchErrors | None = None
    metadata: dict[str, str] | None = None
    object: Literal["batch"] = "batch"


class BatchList(Struct, frozen=True, kw_only=True):
    data: list[Batch]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class BatchQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of ``GET /v1/batches``: at most ``limit`` batches, starting after the id ``after``."""

    after: Annotated[str, Meta(max_length=128)] = ""
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


_DECODER = msgspec.json.Decoder(BatchRequest)
_LINE = msgspec.json.Decoder(BatchLine)


def parse_batch_request(body: bytes, endpoints: tuple[str, ...]) -> BatchRequest:
    """Decode and check a request. Raises ``BadRequest`` with ``param``."""
    request = decode_body(_DECODER, body)
    if request.endpoint not in endpoints:
        raise BadRequest(f"endpoint must be one of {', '.join(endpoints)}.", param="endpoint")
    return request


def parse_query(query: dict[str, str]) -> BatchQuery:
    """Raises ``BadRequest`` with ``param``."""
    try:
        return msgspec.convert(query, BatchQuery, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), BatchQuery) from None


def parse_lines(data: bytes, endpoint: str, most: int) -> tuple[list[BatchLine], list[BatchError]]:
    """Return the lines of an input file, and at most 100 errors."""
    lines: list[BatchLine] = []
    errors: list[BatchError] = []
    custom_ids: set[str] = set()
    for number, text in enumerate(data.split(b"\n"), 1):
        if not text.strip() or len(errors) >= 100:
            continue
        try:
            line = _LINE.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            errors.append(BatchError(code="invalid_line", message=str(error)[:200], line=number))
            continue
        if line.url != endpoint:
            errors.append(_line_error("mismatched_url", f"url must be {endpoint}", number, "url"))
        elif line.custom_id in custom_ids:
            errors.append(_line_error("duplicate_custom_id", "another line has this custom_id", number, "custom_id"))
        custom_ids.add(line.custom_id)
        lines.append(line)
    if not errors and not lines:
        errors.append(BatchError(code="empty_file", message="the input file has no lines"))
    if len(lines) > most:
        errors.append(BatchError(code="too_many_lines", message=f"the input file has more than {most} lines"))
    return lines, errors


def _line_error(code: str, message: str, line: int, param: str) -> BatchError:
    return BatchError(code=code, message=message, line=line, param=param)


def decode_body_fields(body: msgspec.Raw) -> Any:
    """Return the decoded body of a line, or None for invalid JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
