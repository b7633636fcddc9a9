"""Traces, if ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set and the extra is installed; else nothing of them is imported.

One request is one trace. Its context is W3C ``traceparent``: from the client's HTTP header, to executors
in a header of the invocation's message. Spans:

    POST /v1/chat                   the gateway, from the first byte to the last
      invocation <type>             one segment of the request, from its dispatch to its end
        thinker                     one node at its executor, from taking it to its last output
          inputs, queue, run, output   where its time went; see ``omnibus.recording.waterfall``

Attributes are ids, names, sizes and counts, never the contents of requests. All spans have ``omnibus.invocation``, the
ID of ``omnibus show ID``, which needs no collector.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from omnibus.bus.messages import Hop
from omnibus.graph import Invocation
from omnibus.tracing.types import Carrier as Carrier
from omnibus.tracing.types import Value

log = logging.getLogger(__name__)

#: An ASGI application.
Application = Callable[[Any, Any, Any], Awaitable[None]]

#: Most characters of a path in an attribute.
_MAX_PATH_CHARS = 200


class Span(Protocol):
    """A span. Its ``carrier`` makes another span, also of another process, a child of it."""

    @property
    def carrier(self) -> Carrier: ...

    def end(self, error: str, about: Mapping[str, Value]) -> None:
        """End the span; it failed if there is an ``error``. A second call does nothing."""


class Tracer(Protocol):
    """Interface that ``omnibus.tracing.otel`` implements. Times are Unix seconds."""

    def start_span(self, name: str, parent: Mapping[str, str], kind: str, about: Mapping[str, Value]) -> Span:
        """Start a span. ``kind`` is server, producer, consumer or internal."""

    def record_span(
        self,
        name: str,
        parent: Mapping[str, str],
        kind: str,
        times: tuple[float, float],
        error: str,
        about: Mapping[str, Value],
    ) -> Carrier:
        """Record a span that has ended. Returns its carrier."""

    def stop(self, seconds: float) -> None:
        """Send the waiting spans within ``seconds``."""


#: None while traces are off. Code on the path of requests checks this first.
tracer: Tracer | None = None

#: Headers of a trace context.
HEADERS = ("traceparent", "tracestate")


def otlp_endpoint(environ: Mapping[str, str] | None = None) -> str:
    """Return the endpoint of traces by the variables of OpenTelemetry; empty if they are not exported."""
    environ = os.environ if environ is None else environ
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return ""
    return environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")


def start_tracing(service: str) -> None:
    """Start tracing this process if an endpoint is set. Call it once, before any request."""
    global tracer
    endpoint = otlp_endpoint()
    if not endpoint:
        return
    try:
        from omnibus.tracing.otel import OtlpTracer
    except ImportError:
        log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set without OpenTelemetry: install omnibus-serve[otel]")
        return
    tracer = OtlpTracer(service)
    log.info("traces go to %s", endpoint)


def stop_tracing(seconds: float) -> None:
    """Stop tracing, and send the waiting spans."""
    global tracer
    last, tracer = tracer, None
    if last is not None:
        last.stop(seconds)


def extract_context(headers: Mapping[str, str] | None) -> Carrier:
    """Return the trace context in ``headers``, with names in any case; empty without one."""
    return {name.lower(): value for name, value in (headers or {}).items() if name.lower() in HEADERS}


# At the gateway

_here: ContextVar[Carrier] = ContextVar("omnibus-trace")


def current_context() -> Carrier:
    """Return the trace context of the current HTTP request; empty without one."""
    return _here.get({}) if tracer is not None else {}


def trace_http(application: Application) -> Application:
    """Return ``application`` with a span for each API request; while traces are off, ``application`` itself."""
    if tracer is None:
        return application

    async def traced_application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if tracer is None or scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            return await application(scope, receive, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method, path = scope["method"], scope["path"]
        # Names of spans are few: what follows may be an id.
        name = f"{method} {'/'.join(path.split('/')[:3])}"
        attributes: dict[str, Value] = {"http.request.method": method, "url.path": path[:_MAX_PATH_CHARS]}
        span = tracer.start_span(name, extract_context(headers), "server", attributes)
        status = 0

        async def send_recording_status(message: dict[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        before = _here.set(span.carrier)
        try:
            await application(scope, receive, send_recording_status)
        finally:
            _here.reset(before)
            span.end(f"HTTP {status}" if status >= 500 else "", {"http.response.status_code": status})

    return traced_application


def start_invocation_span(invocation: Invocation, parent: Carrier) -> Span | None:
    """The span of an invocation that is dispatched now; None while off."""
    if tracer is None:
        return None
    more: dict[str, Value] = {
        "omnibus.path": invocation.path, "omnibus.epoch": invocation.epoch, "omnibus.nodes": len(invocation.nodes),
    }  # fmt: skip
    return tracer.start_span(
        f"invocation {invocation.type}", parent, "producer", {**invocation_attributes(invocation), **more}
    )


def invocation_attributes(invocation: Invocation) -> dict[str, Value]:
    """Return the attributes that every span of an invocation has."""
    return {"omnibus.invocation": invocation.id, "omnibus.app": invocation.app, "omnibus.model": invocation.model}


# At an executor


def record_node_spans(parent: Carrier, invocation: Invocation, hop: Hop, error: str = "") -> None:
    """The spans of a node that is over; does nothing while off."""
    if tracer is None:
        return
    one = invocation.nodes[hop.node]
    more: dict[str, Value] = {
        "omnibus.node": hop.node,
        "omnibus.task": one.task,
        "omnibus.executor": hop.executor,
        "omnibus.attempt": hop.attempt,
        "omnibus.bytes": hop.nbytes,
    }
    inside = tracer.record_span(
        one.component, parent, "consumer", (hop.taken, hop.end), error, {**invocation_attributes(invocation), **more}
    )
    began = hop.began or hop.ready
    moments = {"inputs": (hop.taken, hop.ready), "queue": (hop.ready, began), "run": (began, hop.first)}
    for name, times in {**moments, "output": (hop.first, hop.end)}.items():
        if not error and times[1] > times[0]:
            tracer.record_span(name, inside, "internal", times, "", {"omnibus.invocation": invocation.id})
