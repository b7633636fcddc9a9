"""Tenants of the load run, whose keys have different limits; their rejections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from omnibus import api_key
from omnibus.api_key import KeyRecord
from tests.e2e.omni.speech import VOICE, make_speech_body
from tests.e2e.questions import make_question
from tests.e2e.system import System

CHAT = "/v1/chat/completions"
#: What each tenant's key may; the first one's is all there is.
LIMITS: dict[str, dict[str, Any]] = {
    "search": {},
    "rated": {"rate": 0.001, "burst": 1.0},
    "single": {"concurrent": 1},
    "metered": {"gpu_seconds": 1e-9},
}
FREE = "search"
ADMIN = "the-operators-own-token"
#: Settings of the gateway: few requests of a tenant wait, and not for long; two at a time for each executor.
SETTINGS = {
    "OMNIBUS_GATEWAY_ADMIT": "2",
    "OMNIBUS_GATEWAY_ADMIT_QUEUE": "1",
    "OMNIBUS_GATEWAY_ADMIT_WAIT": "2",
}
#: Answers in text that are made at a time, by two thinkers; speech has half the room, for there is one vocoder.
TEXT = 4
LONG = 3000  # tokens, more than any test reads


def write_keys(path: Path) -> Path:
    """The file of their keys."""
    records = [KeyRecord(api_key.hash_key(_make_key(name)), name, **limits) for name, limits in LIMITS.items()]
    path.write_bytes(msgspec.json.encode({"keys": records}))
    return path


def make_bearer(tenant: str = FREE) -> str:
    """The header ``Authorization`` of ``tenant``."""
    return f"Bearer {_make_key(tenant)}"


@contextlib.asynccontextmanager
async def open_client(system: System, tenant: str = FREE) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP with the key of ``tenant``."""
    async with system.http() as http:
        http.headers["authorization"] = make_bearer(tenant)
        yield http


async def meet_limits(system: System) -> None:
    """Every tenant meets its limit."""
    async with open_client(system, "rated") as http:
        assert [(await http.get("/v1/models")).status_code for _ in range(2)] == [200, 429]
    async with open_client(system, "metered") as http:
        assert [(await http.post(CHAT, json=_text_body("hello"))).status_code for _ in range(2)] == [200, 429]
    for scene in (_crowd_vocoder, _fill_inflight):
        await _wait_until_idle(system)
        await scene(system)
    await _wait_until_idle(system)


async def _crowd_vocoder(system: System) -> None:
    """Occupy both places at the vocoder, so further requests queue or fail.

    One request waits for its turn in vain, and another one finds the queue full.
    """
    speech = {"modalities": ["text", "audio"], "audio": {"voice": VOICE, "format": "pcm16"}}
    async with (
        open_client(system) as http,
        _hold_answer(system, "single", **speech) as single,
        _hold_answer(system, FREE, **speech),
    ):
        assert (await single.get("/v1/models")).status_code == 429
        waiting = asyncio.create_task(http.post(CHAT, json=make_speech_body(make_question("hello"))))
        await _wait_for_metric(system, "omnibus_admission_waiting{", " 1.0")
        answers = [await http.post(CHAT, json=make_speech_body(make_question("hello"))), await waiting]
        assert [each.status_code for each in answers] == [429, 429]


async def _fill_inflight(system: System) -> None:
    """Check that the gateway rejects requests above the limit in flight."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(TEXT):
            http = await stack.enter_async_context(_hold_answer(system, FREE))
        assert (await http.post(CHAT, json=_text_body("hello"))).status_code == 429


@contextlib.asynccontextmanager
async def _hold_answer(system: System, tenant: str, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Hold a long answer to ``tenant`` open in the block; yield its client."""
    body = {**_text_body("tell me all of it"), "max_tokens": LONG, "ignore_eos": True, "stream": True, **more}
    async with open_client(system, tenant) as http, http.stream("POST", CHAT, json=body) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()  # dropping this iterator would disconnect
        async for line in lines:
            if any(f'"{part}":"' in line and f'"{part}":""' not in line for part in ("content", "transcript")):
                break
        yield http


async def _wait_until_idle(system: System) -> None:
    await _wait_for_metric(system, "omnibus_gateway_inflight", " 0.0")


async def _wait_for_metric(system: System, name: str, value: str) -> None:
    """Wait until a metric of the gateway whose line starts with ``name`` ends with ``value``."""
    async with asyncio.timeout(20), system.http() as http:
        http.headers["authorization"] = f"Bearer {ADMIN}"
        while not any(
            line.startswith(name) and line.endswith(value) for line in (await http.get("/metrics")).text.splitlines()
        ):
            pass


def _text_body(text: str) -> dict[str, Any]:
    return {**make_speech_body(make_question(text)), "modalities": ["text"], "audio": None}


def _make_key(tenant: str) -> str:
    return f"omni-{tenant}"
