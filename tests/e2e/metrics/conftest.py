"""A system under load that produces every kind of metric.

The load contains speech, a voice session, tenants at their limits, a lost executor, an input that breaks an engine, and
a slow consumer.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import nats
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig

from omnibus.bus import subjects
from tests.e2e.debugging.conftest import BRITTLE
from tests.e2e.metrics import tenants, voice
from tests.e2e.omni.speech import make_speech_body
from tests.e2e.questions import Question, make_audio, make_image, make_question
from tests.e2e.system import OMNI, ROOT, System, declare_model, start_system
from tests.observed import Emitted, read_samples

WITHIN = 60.0  # seconds until metrics include all events
INFLIGHT = 4
BOTH = make_question(make_image(2), make_audio(1.1, 1), "describe")
#: Why requests are refused here.
REASONS = {"gateway", "queue", "turn", "rate", "concurrent", "gpu_seconds"}
SERVICES = {"gateway", "planner", "sidecar", "encoder", "llm", "generator"}


class Observed(NamedTuple):
    """Final metrics of each target, by service, and all of them combined."""

    texts: dict[str, list[str]]
    emitted: Emitted


def read_targets(system: System) -> dict[str, list[str]]:
    """Targets as the services register them, by service."""
    result: dict[str, list[str]] = {}
    for file in (Path(system.state.directory) / "metrics").glob("*.json"):
        for each in json.loads(file.read_text()):
            result.setdefault(each["labels"]["service"], []).extend(each["targets"])
    return result


async def scrape_metrics(system: System) -> dict[str, list[str]]:
    async with httpx.AsyncClient(timeout=10) as http:
        return {
            service: [(await http.get(f"http://{at}/metrics")).text for at in places]
            for service, places in read_targets(system).items()
        }


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory, omni_checkpoint: Path) -> Iterator[System]:
    usual = declare_model("qwen2_5_omni", omni_checkpoint)
    options = {
        "E": {"components": ["vision", "audio"], "service": "encoder"},
        "L": {"components": ["thinker", "talker"], "service": "llm", "replicas": 2},
        "V": {"components": ["vocoder"], "service": "generator"},
    }
    model = {**usual, "options": options, "paths": [{"options": ["E", "L", "V"]}]}
    directory = tmp_path_factory.mktemp("metrics")
    settings = {
        "OMNIBUS_GATEWAY_MAX_INFLIGHT": str(INFLIGHT),
        "OMNIBUS_GATEWAY_KEYS_FILE": str(tenants.write_keys(directory / "keys.json")),
        "OMNIBUS_GATEWAY_ADMIN_TOKEN": tenants.ADMIN,
        **tenants.SETTINGS,
    }
    with start_system(directory, {OMNI: model}, *_app_flags(directory / "apps"), **settings) as new_system:
        yield new_system


def _app_flags(directory: Path) -> Iterator[str]:
    """Flags for two apps."""
    directory.mkdir()
    shutil.copy(ROOT / "examples" / "shout.py", directory)
    (directory / "brittle.py").write_text(BRITTLE)
    yield from ("--apps-dir", str(directory))
    for file in sorted(directory.glob("*.py")):
        yield from ("--app", str(file))


@pytest.fixture(scope="package")
def observation(system: System) -> Observed:
    return asyncio.run(observe_system(system))


async def observe_system(system: System) -> Observed:
    """Load the system, and read its metrics once they include everything."""
    consumer = await _add_consumer(system)
    async with tenants.open_client(system) as http:
        for _ in range(2):  # the second time the media are known
            await _send_chat(http, make_speech_body(BOTH))
        await _stream_chat(http, make_speech_body(BOTH, "pcm16", stream=True))
        assert (await http.post("/v1/apps/shout/invoke", json={"text": "hello"})).status_code == 200
        assert (await http.post("/v1/apps/brittle/invoke", json={"text": "defect"})).status_code == 502
        assert (
            await http.post("/v1/chat/completions", json={**make_speech_body(BOTH), "model": "nobody"})
        ).status_code == 404
        crowd = [
            http.post("/v1/chat/completions", json=make_speech_body(make_question(f"hello {number}")))
            for number in range(4 * INFLIGHT)
        ]
        codes = [answer.status_code for answer in await asyncio.gather(*crowd)]
        assert set(codes) == {200, 429}
        await voice.hold_conversation(system)
        await tenants.meet_limits(system)
        await _kill_thinker(system, http)
    texts = await _read_metrics(system)
    await consumer.close()
    return Observed(texts, read_samples(text for group in texts.values() for text in group))


async def _send_chat(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


async def _stream_chat(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"


async def _kill_thinker(system: System, http: httpx.AsyncClient) -> None:
    """Kill one of two thinkers during a long answer; the other continues."""
    pids = await system.whole()
    first = next(pids[id] for id in sorted(pids) if "-L-" in id)
    process = next(one for one in system.processes() if one.pid == first)
    long = [make_question(f"tell me of {number}") for number in range(INFLIGHT)]
    first_token = asyncio.Event()

    async def stream_answer(one: Question) -> None:
        text = {"modalities": ["text"], "audio": None, "max_tokens": 1000, "ignore_eos": True}
        body = {**make_speech_body(one), **text, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                assert '"error":' not in line, line
                if '"content":"' in line and '"content":""' not in line:
                    first_token.set()

    async with asyncio.TaskGroup() as group:
        for one in long:
            group.create_task(stream_answer(one))
        await first_token.wait()
        process.kill()
    await system.whole()


async def _add_consumer(system: System) -> Client:
    """A durable consumer that takes no records, like a tool that hangs."""
    client = await nats.connect(system.state.nats_url)
    config = ConsumerConfig(durable_name="slow", ack_policy=AckPolicy.EXPLICIT)
    await client.jetstream().add_consumer(subjects.INVOCATIONS.name, config)
    return client


async def _read_metrics(system: System) -> dict[str, list[str]]:
    """Metrics after the planner's check of streams and the gateway's load report."""
    end = time.monotonic() + WITHIN
    while True:
        texts = await scrape_metrics(system)
        whole = read_samples(text for group in texts.values() for text in group)
        reasons = {labels["reason"] for labels in whole.get("omnibus_rejected_total", ())}
        missing = (REASONS - reasons) | ({"omnibus_stream_consumer_pending", "omnibus_moved_total"} - whole.keys())
        if not missing:
            return texts
        assert time.monotonic() < end, f"not reported in time: {missing}"
        await asyncio.sleep(0.2)
