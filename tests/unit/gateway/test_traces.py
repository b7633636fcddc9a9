"""Traces of requests: connected from the client's header to the last node, and absent while tracing is off."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from omnibus import graph, tracing
from omnibus.bus import subjects
from omnibus.executor.runner import Job
from omnibus.tracing import otlp_endpoint
from tests.collector import CollectedSpan, Collector, start_collector
from tests.unit.gateway.house import (
    OMNI,
    VL,
    ToyGateway,
    build_chat_body,
    make_image_part,
    make_text_part,
    start_toy_gateway,
    write_chat_words,
)

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
SECRET = "my-secret-words"


@pytest.fixture
def trace_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Tracing in this process, with this collector as its receiver."""
    with start_collector() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        tracing.start_tracing("test")
        yield receiver
        tracing.stop_tracing(5.0)


@pytest.fixture
async def home(tmp_path: Path, trace_collector: Collector) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path) as gateway:
        gateway.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=tracing.trace_http(gateway.app)), base_url="http://gateway"
        )
        yield gateway


async def read_spans(home: ToyGateway, trace_collector: Collector, trace: str = TRACE) -> list[CollectedSpan]:
    """Return all spans of ``trace``, once all are exported."""
    await home.emptied()
    await asyncio.to_thread(tracing.stop_tracing, 5.0)
    return trace_collector.spans_of(trace)


async def send_chat(
    home: ToyGateway, model: str, content: object, traceparent: str = TRACEPARENT, path: str = "", **more: object
) -> str:
    headers = {"traceparent": traceparent.encode("latin-1"), **({"x-omnibus-path": path.encode()} if path else {})}
    response = await home.http.post(
        "/v1/chat/completions", json=build_chat_body(model, content, **more), headers=headers
    )
    id = response.headers["x-request-id"]
    await home.ended(id)
    return str(id)


def map_parents(spans: list[CollectedSpan]) -> dict[str, str]:
    """Return the names of spans with their parents' names."""
    names = {span.id: span.name for span in spans}
    return {span.name: names.get(span.parent, span.parent) for span in spans}


async def test_a_request_is_one_connected_trace_with_a_span_for_each_node(home: ToyGateway, trace_collector: Collector):
    await home.all_of(VL)

    id = await send_chat(home, VL, [make_text_part("what"), make_image_part()])
    spans = await read_spans(home, trace_collector)

    assert trace_collector.paths == {"/v1/traces"}
    nodes = map_parents([span for span in spans if span.name not in ("inputs", "queue", "run", "output")])
    assert nodes == {
        "POST /v1/chat": PARENT,
        "invocation vision+thinker": "POST /v1/chat",
        "vision": "invocation vision+thinker",
        "thinker": "invocation vision+thinker",
    }
    by_id = {span.id: span for span in spans}
    for span in spans:
        if span.parent in by_id and by_id[span.parent].name in ("vision", "thinker"):
            assert span.name in ("inputs", "queue", "run", "output")
            assert by_id[span.parent].start <= span.start <= span.end <= by_id[span.parent].end
    assert {span.about["omnibus.invocation"] for span in spans if span.name != "POST /v1/chat"} == {id}
    assert {span.error for span in spans} == {""}


async def test_sizes_are_told_and_no_bodies(home: ToyGateway, trace_collector: Collector):
    await home.all_of(VL)

    await send_chat(home, VL, [make_text_part(SECRET), make_image_part()], path="E>L")
    spans = {span.name: span for span in await read_spans(home, trace_collector)}

    assert spans["vision"].about["omnibus.bytes"] == 16
    assert spans["vision"].about["omnibus.executor"] in home.place.executors
    assert spans["POST /v1/chat"].about["http.response.status_code"] == 200
    assert SECRET.encode() not in b"".join(trace_collector.bodies)


async def test_streams_of_nodes_are_told_by_their_first_output(home: ToyGateway, trace_collector: Collector):
    await home.all_of(OMNI)
    speech = {"modalities": ["text", "audio"], "audio": {"voice": "Ethan", "format": "wav"}}

    await send_chat(home, OMNI, "hello", **speech)

    names = [span.name for span in await read_spans(home, trace_collector)]
    assert {"thinker", "talker", "vocoder"} <= set(names)
    assert names.count("output") >= 1


async def test_a_failure_is_told_where_it_happened(home: ToyGateway, trace_collector: Collector):
    async def raise_secret(_: Job) -> None:
        raise RuntimeError(SECRET)

    home.serve(VL)
    await home.executor(VL, "EL", "vision", "thinker", thinker=raise_secret)

    await send_chat(home, VL, "hello")
    errors = {span.name: span.error for span in await read_spans(home, trace_collector)}

    assert errors == {"POST /v1/chat": "HTTP 502", "invocation thinker": "stage_failed", "thinker": "stage_failed"}
    assert SECRET.encode() not in b"".join(trace_collector.bodies)


async def test_each_attempt_has_its_own_span(home: ToyGateway, trace_collector: Collector):
    deaths: list[str] = []

    async def die_once(job: Job) -> None:
        if not deaths:
            deaths.append("x")
            home.bus.publish(subjects.event_subject(subjects.GONE), b"EL-0")
            await asyncio.Event().wait()
        await write_chat_words(job)

    home.serve(VL)
    for number in range(2):
        await home.executor(VL, "EL", "vision", "thinker", id=f"EL-{number}", thinker=die_once)

    await send_chat(home, VL, "hello")
    spans = {span.name: span for span in await read_spans(home, trace_collector)}

    assert spans["invocation thinker"].about["omnibus.attempts"] == 2
    assert (spans["thinker"].about["omnibus.executor"], spans["thinker"].about["omnibus.attempt"]) == ("EL-1", 1)


@pytest.mark.parametrize("traceparent", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", "00-\xff-\xff-01"])
async def test_without_a_context_that_can_be_read_a_trace_begins_here(
    home: ToyGateway, trace_collector: Collector, traceparent: str
):
    await home.all_of(VL)

    await send_chat(home, VL, "hello", traceparent)
    await read_spans(home, trace_collector)

    [first] = {span.trace for span in trace_collector.spans}
    assert first != TRACE
    assert map_parents(trace_collector.spans_of(first))["POST /v1/chat"] == ""


async def test_what_its_client_does_not_sample_is_not_sent(home: ToyGateway, trace_collector: Collector):
    await home.all_of(VL)

    await send_chat(home, VL, "hello", f"00-{TRACE}-{PARENT}-00")

    assert await read_spans(home, trace_collector) == []


async def test_a_replay_is_part_of_the_trace_of_who_asks_for_it(home: ToyGateway, trace_collector: Collector):
    await home.all_of(VL)
    id = await send_chat(home, VL, "hello", "")
    body = graph.encode_invocation((await home.records.find(id)).invocation)

    parts = [part async for part in home.bus.request_stream(subjects.REPLAY, body, 20.0, {"Traceparent": TRACEPARENT})]

    assert len(parts) == 2
    names = map_parents(await read_spans(home, trace_collector))
    assert (names["invocation thinker"], names["thinker"]) == (PARENT, "invocation thinker")


async def test_work_by_hand_is_part_of_the_trace_of_who_asks_for_it(home: ToyGateway, trace_collector: Collector):
    await home.all_of(VL)
    id = await send_chat(home, VL, "hello", "")
    recorded_invocation = (await home.records.find(id)).invocation
    subject = subjects.task_subject(recorded_invocation.nodes[0].task)

    async for _ in home.bus.request_stream(
        subject, graph.encode_invocation(recorded_invocation), 20.0, {"traceparent": TRACEPARENT}
    ):
        pass

    assert map_parents(await read_spans(home, trace_collector))["thinker"] == PARENT


async def test_while_traces_are_off_requests_carry_no_context(tmp_path: Path):
    header_list: list[object] = []
    async with start_toy_gateway(tmp_path) as home:
        await home.all_of(VL)
        await home.bus.subscribe("omnibus.task.>", lambda delivery: header_list.append(delivery.headers))
        assert tracing.trace_http(home.app) is home.app
        await home.ended((await home.ask(VL, "hello")).headers["x-request-id"])

    assert header_list == [None]


@pytest.mark.parametrize(
    ("module", "packages"),
    [
        ("omnibus.executor.service", "opentelemetry"),
        # The store's client imports the API, but no SDK and no exporter.
        ("omnibus_gateway.service", "opentelemetry.sdk.trace opentelemetry.exporter"),
    ],
)
def test_while_traces_are_off_nothing_of_them_is_imported(module: str, packages: str):
    code = (
        f"import sys, {module}; from omnibus import tracing; tracing.start_tracing('x'); "
        f"names = ('omnibus.tracing.otel', *{packages.split()}); "
        "print([name for name in sys.modules if name.startswith(names)], tracing.tracer)"
    )
    root = Path(__file__).parents[3]
    env = {"PYTHONPATH": f"{root}:{root / 'shared'}", "PATH": ""}

    process = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True
    )

    assert process.stdout == "[] None\n"


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t"}, "http://t"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, ""),
    ],
)
def test_opentelemetrys_own_variables_say_where_traces_go(environ: dict[str, str], endpoint: str):
    assert otlp_endpoint(environ) == endpoint


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "omnibus.tracing.otel", None)

    tracing.start_tracing("test")

    assert tracing.tracer is None
    assert "omnibus-serve[otel]" in caplog.text
