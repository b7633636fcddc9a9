"""Traces by OpenTelemetry. The only module that knows it, and imported by ``omnibus.tracing`` alone, when asked for.

Endpoint, headers, sampling and limits are OpenTelemetry's own variables, ``OTEL_*``.
"""

import threading
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from omnibus import __version__
from omnibus.tracing.types import Carrier, Value

_w3c = TraceContextTextMapPropagator()
_KINDS = {
    "server": trace.SpanKind.SERVER,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
    "internal": trace.SpanKind.INTERNAL,
}


class OtlpSpan:
    """See ``tracing.Span``."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self.carrier: Carrier = {}
        _w3c.inject(self.carrier, trace.set_span_in_context(span))

    def end(self, error: str, about: Mapping[str, Value]) -> None:
        if not self._span.is_recording():  # not sampled, or over
            return
        self._span.set_attributes(about)
        _set_status(self._span, error)
        self._span.end()


class OtlpTracer:
    """Sends spans in batches by HTTP, from a thread of its own. See ``tracing.Tracer``."""

    def __init__(self, service: str) -> None:
        about = {"service.namespace": "omnibus", "service.name": f"omnibus-{service}", "service.version": __version__}
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("omnibus", __version__)

    def start_span(self, name: str, parent: Mapping[str, str], kind: str, about: Mapping[str, Value]) -> OtlpSpan:
        return OtlpSpan(self._tracer.start_span(name, _w3c.extract(parent), kind=_KINDS[kind], attributes=about))

    def record_span(
        self,
        name: str,
        parent: Mapping[str, str],
        kind: str,
        times: tuple[float, float],
        error: str,
        about: Mapping[str, Value],
    ) -> Carrier:
        start, end = (int(moment * 1e9) for moment in times)
        context = _w3c.extract(parent)
        span = self._tracer.start_span(name, context, kind=_KINDS[kind], attributes=about, start_time=start)
        _set_status(span, error)
        span.end(max(start, end))
        return OtlpSpan(span).carrier

    def stop(self, seconds: float) -> None:
        # In a thread: without a collector the last attempt to send takes as long as it likes.
        last = threading.Thread(target=self._provider.shutdown, name="last-traces", daemon=True)
        last.start()
        last.join(seconds)


def _set_status(span: trace.Span, error: str) -> None:
    if error:
        span.set_status(trace.Status(trace.StatusCode.ERROR, error))
