"""A trace collector: OTLP over HTTP with protobuf bodies."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class CollectedSpan:
    """One span. Times are Unix seconds."""

    trace: str
    id: str
    parent: str
    name: str
    service: str
    kind: int
    start: float
    end: float
    error: str
    about: dict[str, Any] = field(compare=False)


class Collector:
    """OTLP collector that stores the spans and bodies that it receives."""

    def __init__(self) -> None:
        self.url = ""
        self.paths: set[str] = set()
        self.bodies: list[bytes] = []
        self._spans: list[CollectedSpan] = []
        self._lock = threading.Lock()

    @property
    def spans(self) -> list[CollectedSpan]:
        with self._lock:
            return list(self._spans)

    def spans_of(self, trace: str) -> list[CollectedSpan]:
        """The spans of one trace, in order of their beginnings."""
        return sorted((span for span in self.spans if span.trace == trace), key=lambda span: (span.start, -span.end))

    def add_spans(self, path: str, body: bytes) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        new_spans = [
            _read_span(span, _read_values(resource.resource.attributes).get("service.name", ""))
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self.paths.add(path)
            self.bodies.append(body)
            self._spans += new_spans


def _read_span(span: Any, service: str) -> CollectedSpan:
    return CollectedSpan(
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        name=span.name,
        service=service,
        kind=span.kind,
        start=span.start_time_unix_nano / 1e9,
        end=span.end_time_unix_nano / 1e9,
        error=span.status.message,
        about=_read_values(span.attributes),
    )


def _read_values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def start_collector() -> Iterator[Collector]:
    """A receiver on a free port of this machine."""
    receiver = Collector()

    class CollectorHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.add_spans(self.path, body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), CollectorHandler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
