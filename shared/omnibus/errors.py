"""Every error that Omnibus raises on purpose, as one tree.

    OmnibusError
    ├── Rejected            the request is invalid: HTTP 4xx, never retried
    │   ├── BadRequest        400  malformed JSON, wrong type, wrong value
    │   ├── BadMedia          400  an image, audio or video that cannot be used
    │   ├── ContextTooLong    400  the prompt does not fit the model
    │   ├── Unauthorized      401  no API key, or one that is not valid
    │   │   └── KeyRevoked    401  the API key was revoked during the request, which stopped
    │   ├── CostLimitExceeded 402  the expected cost is over the client's limit, or unknown
    │   ├── Forbidden         403  switched off here; names the setting
    │   ├── NotFound          404  unknown model, invocation or route
    │   ├── Conflict          409  the name is in use, or another request changed it first
    │   ├── TooLarge          413  over a limit in bytes, pixels, seconds or items
    │   │   ├── LimitReached  413  the tenant's storage limit is reached: delete objects, or wait until some expire
    │   │   └── HeadTooLarge  431  a request's headers, in bytes or lines
    │   ├── TooSlow           408  the request did not arrive in time
    │   ├── ClientClosed      499  the client disconnected before the response completed
    │   └── BadInput          422  an input that crashed executors, rejected for a while
    ├── Retryable           another try, or another replica, may succeed
    │   ├── Overloaded        429  no credit left; carries ``retry_after`` in seconds
    │   ├── StageUnavailable  503  no live executor for a stage; names the stage
    │   ├── GatewayStopping   503  the gateway is stopping; another one answers after ``retry_after`` seconds
    │   ├── ArenaFull         503  the node's shared memory is exhausted
    │   ├── NodeUnreachable   503  the sidecar of a node does not answer, another node or its own; names the node
    │   ├── BusUnavailable    503  NATS cannot be reached
    │   ├── StoreUnavailable  503  Redis or Valkey cannot be reached
    │   │   └── StoreFull     503  the store has reached its ``maxmemory``: writes fail until keys are deleted
    │   ├── StorageFull       507  the disk for media is full
    │   └── HubUnavailable    503  the Hugging Face hub cannot be reached
    └── Fatal               a defect or a broken promise: HTTP 5xx
        ├── AppFailed         500  an app failed on this request; names the app
        ├── NoSandbox         501  uploaded code cannot be kept from this machine's files or network
        ├── StageFailed       502  an engine failed on this request; names the stage
        ├── DeadlineExceeded  504  the deadline passed before the answer was complete
        ├── SequenceGap       502  a stream lost a chunk
        ├── CannotContinue    502  the gateway that continues a stream computed a different answer
        ├── StaleHandle       502  a handle names memory that was freed
        ├── GraphError        500  a composite task drew a graph that cannot run
        │   ├── PlaceholderError    ``invoke`` read a value that does not exist yet
        │   ├── ReplayMismatch      replay left the recorded graph
        │   ├── SideEffect          ``invoke`` reads or changes state outside its request
        │   └── StreamConsumed      a stream was read twice
        └── ProtocolError     500  a message that this version cannot read

Each error contains its cause and its remedy, as data and as text. ``ProblemDetails`` is the form of an error on the bus
and in HTTP bodies.
"""

import errno
from typing import Any, ClassVar

import msgspec


class ProblemDetails(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An error as data: the form on the bus, and the source of HTTP error bodies."""

    code: str
    message: str
    stage: str = ""
    executor: str = ""
    param: str = ""
    attempt: int = 0
    retry_after: float = 0.0
    node: str = ""


class OmnibusError(Exception):
    """Root of the tree. ``code`` is stable and machine-readable; ``status`` is the HTTP status.

    ``retry_helps``: the same request may succeed a moment later, so clients should retry it.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    retry_helps: bool = False

    def __init__(self, message: str, *, stage: str = "", executor: str = "", param: str = "", attempt: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.executor = executor
        self.param = param
        self.attempt = attempt

    def to_problem(self) -> ProblemDetails:
        """Return the error as data."""
        return ProblemDetails(
            code=self.code,
            message=self.message,
            stage=self.stage,
            executor=self.executor,
            param=self.param,
            attempt=self.attempt,
            retry_after=getattr(self, "retry_after", 0.0),
            node=getattr(self, "node", ""),
        )


def error_line(error: OmnibusError | ProblemDetails, as_json: bool) -> str:
    """Return ``error`` as a command prints it on stderr.

    The JSON form is ``{"error": {"code": ..., "message": ...}}``.
    """
    problem = error.to_problem() if isinstance(error, OmnibusError) else error
    return msgspec.json.encode({"error": problem}).decode() if as_json else f"omnibus: {problem.message}"


class Rejected(OmnibusError):
    code, status, kind = "rejected", 400, "invalid_request_error"


class BadRequest(Rejected):
    code = "bad_request"


class BadMedia(Rejected):
    code = "bad_media"


class ContextTooLong(Rejected):
    code = "context_length_exceeded"


class Unauthorized(Rejected):
    code, status, kind = "unauthorized", 401, "authentication_error"


class CostLimitExceeded(Rejected):
    code, status = "cost_limit_exceeded", 402


class KeyRevoked(Unauthorized):
    code = "key_revoked"


class Forbidden(Rejected):
    code, status, kind = "forbidden", 403, "permission_error"


class NotFound(Rejected):
    code, status = "not_found", 404


class Conflict(Rejected):
    code, status = "conflict", 409


class TooLarge(Rejected):
    code, status = "too_large", 413


class LimitReached(TooLarge):
    code = "limit_reached"


class HeadTooLarge(TooLarge):
    code, status = "head_too_large", 431


class TooSlow(Rejected):
    code, status, retry_helps = "request_timeout", 408, True


class ClientClosed(Rejected):
    code, status = "client_closed", 499


class BadInput(Rejected):
    code, status = "bad_input", 422


class Retryable(OmnibusError):
    code, status, retry_helps = "unavailable", 503, True


class Overloaded(Retryable):
    """Admission rejected the request. ``retry_after`` is in seconds, or 0 if a retry does not help.

    Metrics count rejections by ``reason``.
    """

    code, status, kind = "overloaded", 429, "rate_limit_error"

    def __init__(self, message: str, *, retry_after: float = 1.0, reason: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.retry_after = retry_after
        self.retry_helps = retry_after > 0
        self.reason = reason


class StageUnavailable(Retryable):
    code = "stage_unavailable"


class GatewayStopping(Retryable):
    """The gateway ends before the answer. ``retry_after`` is in seconds."""

    code = "gateway_stopping"
    retry_after: ClassVar[float] = 1.0


class ArenaFull(Retryable):
    code = "arena_full"


class NodeUnreachable(Retryable):
    """The sidecar of ``node`` does not answer, so its tensors are unreachable.

    Other nodes can do the work. Another node raises it when it needs a tensor of ``node``, or has no way to pull one.
    Processes of ``node`` itself raise it if there are other nodes. With a single node, the error is a ``Retryable``.
    """

    code = "node_unreachable"

    def __init__(self, message: str, *, node: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.node = node


class BusUnavailable(Retryable):
    code = "bus_unavailable"


class StoreUnavailable(Retryable):
    code = "store_unavailable"


class StoreFull(StoreUnavailable):
    code, retry_helps = "store_full", False


class StorageFull(Retryable):
    code, status, retry_helps = "storage_full", 507, False  # the operator must free space first


class HubUnavailable(Retryable):
    code = "hub_unavailable"


class Fatal(OmnibusError):
    code = "internal_error"


class AppFailed(Fatal):
    code = "app_failed"


class NoSandbox(Fatal):
    code, status = "no_sandbox", 501


class StageFailed(Fatal):
    code, status, retry_helps = "stage_failed", 502, True


class DeadlineExceeded(Fatal):
    code, status = "deadline_exceeded", 504

    @classmethod
    def of_app(cls, app: str) -> "DeadlineExceeded":
        """Create the error of an app that missed its deadline."""
        return cls(f"the app {app} did not answer within its deadline", stage=app)


class SequenceGap(Fatal):
    code, status, retry_helps = "sequence_gap", 502, True


class CannotContinue(Fatal):
    code, status = "cannot_continue", 502


class StaleHandle(Fatal):
    code, status, retry_helps = "stale_handle", 502, True


class GraphError(Fatal):
    code = "graph_error"


class PlaceholderError(GraphError):
    code = "placeholder_observed"


class ReplayMismatch(GraphError):
    code = "replay_mismatch"


class SideEffect(GraphError):
    code = "side_effect"


class StreamConsumed(GraphError):
    code = "stream_consumed"


class ProtocolError(Fatal):
    code = "protocol_error"


def _errors_by_code(root: type[OmnibusError]) -> dict[str, type[OmnibusError]]:
    errors = {root.code: root}
    for child in root.__subclasses__():
        errors.update({code: kind for code, kind in _errors_by_code(child).items() if code not in errors})
    return errors


_BY_CODE = _errors_by_code(OmnibusError)


def from_problem(problem: ProblemDetails) -> OmnibusError:
    """Return the exception that ``problem`` describes; an unknown code becomes ``Fatal``."""
    where: dict[str, Any] = {
        "stage": problem.stage,
        "executor": problem.executor,
        "param": problem.param,
        "attempt": problem.attempt,
    }
    kind = _BY_CODE.get(problem.code, Fatal)
    if kind is Overloaded:
        return Overloaded(problem.message, retry_after=problem.retry_after, **where)
    if kind is NodeUnreachable:
        return NodeUnreachable(problem.message, node=problem.node, **where)
    return kind(problem.message, **where)


def clear_tracebacks(error: BaseException) -> None:
    """Remove the tracebacks of ``error`` and its causes, after the response.

    A request refers to its error, and frames of the traceback refer to the request. Such a cycle would keep request
    bodies in memory until the garbage collector runs, which is rare in a gateway.
    """
    before: BaseException | None = error
    while before is not None and before.__traceback__ is not None:
        before.__traceback__ = None
        before = before.__context__


def out_of_space(error: OSError) -> bool:
    """Return True if a write failed for lack of space or quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def storage_error(target: str, error: OSError) -> OmnibusError:
    """Return the error of a failed write to ``target``: ``StorageFull`` if the disk is full, else ``Fatal``."""
    if out_of_space(error):
        return StorageFull(f"{target} is full: free space, then try again")
    return Fatal(f"{target} takes no files: {error.strerror}")
