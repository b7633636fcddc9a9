"""A collector receives one connected trace per request through the whole system."""

import asyncio
import secrets

import pytest

from tests.collector import CollectedSpan, Collector
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import VL, System

pytestmark = pytest.mark.e2e

SECRET = "my-secret-words"
PHASES = {"inputs", "queue", "run", "output"}


async def wait_for_spans(
    collector: Collector, trace: str, names: set[str], within: float = 20.0
) -> list[CollectedSpan]:
    """Spans of ``trace`` once each of ``names`` has sent its own."""
    async with asyncio.timeout(within):
        while not names <= {span.name for span in collector.spans_of(trace)}:
            await asyncio.sleep(0.05)
    return collector.spans_of(trace)


async def test_a_request_is_one_trace_over_gateway_and_executors(traced_system: System, trace_collector: Collector):
    trace, parent = secrets.token_hex(16), secrets.token_hex(8)
    headers = {"traceparent": f"00-{trace}-{parent}-01", "x-omnibus-path": "E>L"}
    question = {
        "model": VL,
        "messages": make_question(SECRET, make_image(1)).messages,
        "max_tokens": 8,
        "ignore_eos": True,
    }

    async with traced_system.http() as http:
        answer = await http.post("/v1/chat/completions", json=question, headers=headers)
    assert answer.status_code == 200
    names = {"POST /v1/chat", "invocation vision+thinker", "vision", "thinker"}
    spans = await wait_for_spans(trace_collector, trace, names)

    ids = {span.id: span for span in spans}
    roots = [span for span in spans if span.parent not in ids]
    assert [(span.name, span.parent) for span in roots] == [("POST /v1/chat", parent)]
    assert {span.name for span in spans} - PHASES == names
    by_name = {span.name: span for span in spans if span.name in names}
    assert by_name["POST /v1/chat"].service == by_name["invocation vision+thinker"].service == "omnibus-gateway"
    assert by_name["vision"].service == by_name["thinker"].service == "omnibus-executor"
    assert by_name["vision"].about["omnibus.executor"] != by_name["thinker"].about["omnibus.executor"]
    id = answer.headers["x-request-id"]
    assert all(span.about["omnibus.invocation"] == id for span in spans if span.name != "POST /v1/chat")
    inside = {span.name for span in spans if span.parent == by_name["thinker"].id}
    assert {"inputs", "run", "output"} <= inside <= PHASES
    assert by_name["vision"].about["omnibus.bytes"] > 0
    assert SECRET.encode() not in b"".join(trace_collector.bodies)


async def test_an_apps_request_is_one_trace_too(traced_system: System, trace_collector: Collector):
    trace = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}

    async with traced_system.http() as http:
        answer = await http.post("/v1/apps/brittle/invoke", json={"text": "hello"}, headers=headers)
    assert answer.json() == {"text": "hello"}
    spans = await wait_for_spans(trace_collector, trace, {"POST /v1/apps", "again"})

    ids = {span.id for span in spans}
    assert [span.name for span in spans if span.parent not in ids] == ["POST /v1/apps"]
