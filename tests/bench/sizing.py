"""``python -m tests.bench.sizing``: cost of each kind of request for the services.

It writes ``omnibus/reference/sizing.json``. The whole system runs on this machine with simulated engines, which compute
nothing and send tensors as wide as those of a 7B model. It therefore measures the work of Omnibus itself. A small real
model generates images; its executors are not counted.

Each kind is sent ``REQUESTS`` times in sequence, after some warm-up requests. CPU time is that of each process's own
clock, less its idle time. Bytes on the bus and in streams are those that NATS counts, less its heartbeats. Bytes of the
arena are the maximum at any time.
"""

import asyncio
import base64
import io
import json
import os
import platform
import time
import urllib.request
import wave
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec
import numpy as np
from PIL import Image

from omnibus.families import catalog
from omnibus.process.logs import Log
from omnibus.reference.sizing import DATA, KindCost, Measurements
from omnibus.up.stack import Stack
from omnibus.up.tiny_models import tiny_models

#: Tokens of an answer, and samples a second of what is sent.
TOKENS, RATE = 32, 16000
WIDE = {"width": 3584, "dtype": "float16"}
CHAT, PAINTER = "simulated", "qwen-image-world"
#: Times that hardly count, and sizes of Qwen2.5-Omni-7B: a token for a KiB of an image, 25 tokens for a second of
#: audio.
PROFILE = {
    "default": {
        "components": {
            "vision": {"slots": 8, "batch": {"base": 0.001}, "tokens": {"image": {"per": 1.0}}, **WIDE},
            "audio": {"slots": 8, "batch": {"base": 0.001}, "tokens": {"audio": {"per": 0.8}}, **WIDE},
            "thinker": {"slots": 8, "batch": {"base": 0.001}, "step": {"base": 0.0005}, "steps": TOKENS, **WIDE},
            "talker": {"slots": 8, "batch": {"base": 0.001}, "step": {"base": 0.0005}, "steps": 96},
            "vocoder": {"slots": 8, "batch": {"base": 0.001}, "samples": 480, "rate": 24000},
        }
    }
}
#: Requests of a kind that are counted, and those before them that are not.
REQUESTS, WARM = 40, 8
IDLE_SECONDS = 5.0
_POLL_SECONDS = 0.003


def image_url(pixels: int) -> str:
    """A PNG of incompressible noise, as data URL."""
    noise = np.random.default_rng(0).integers(0, 255, (pixels, pixels, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def audio_data(seconds: float) -> str:
    """A WAV of noise."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE)
        sound.writeframes(np.random.default_rng(0).integers(-999, 999, int(seconds * RATE), np.int16).tobytes())
    return base64.b64encode(file.getvalue()).decode()


def make_chat(*parts: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    content = [*parts, {"type": "text", "text": "What do you see and hear?"}]
    body = {"model": CHAT, "messages": [{"role": "user", "content": content}], "max_tokens": TOKENS, **more}
    return "/v1/chat/completions", body


def make_kinds() -> dict[str, tuple[str, tuple[str, dict[str, Any]]]]:
    """Each kind: its description and its request."""
    small, large = ({"type": "image_url", "image_url": {"url": image_url(pixels)}} for pixels in (290, 590))
    sound = {"type": "input_audio", "input_audio": {"data": audio_data(5.0), "format": "wav"}}
    audio_options = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}
    return {
        "chat": (f"text in, {TOKENS} tokens out", make_chat()),
        "chat-stream": ("the same, streamed token by token", make_chat(stream=True)),
        "chat-image": (f"an image of {_image_kib(small)} KiB in, {TOKENS} tokens out", make_chat(small)),
        "chat-image-large": (f"an image of {_image_kib(large)} KiB in, {TOKENS} tokens out", make_chat(large)),
        "chat-audio": (f"5 s of sound, 156 KiB, in, {TOKENS} tokens out", make_chat(sound)),
        "speech": (f"text in, {TOKENS} tokens and their speech out", make_chat(**audio_options)),
    }


def make_images() -> dict[str, tuple[str, tuple[str, dict[str, Any]]]]:
    """The kind that a real model answers."""
    body = {"model": PAINTER, "prompt": "a red circle on blue", "size": "64x64"}
    return {"image": ("a prompt in, an image of 64x64 out", ("/v1/images/generations", body))}


def _image_kib(part: dict[str, Any]) -> int:
    return len(part["image_url"]["url"]) * 3 // 4 // 1024


class ServiceProbe:
    """Resources that the running services have used so far."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    def cpu_ms(self) -> dict[str, float]:
        """Milliseconds by service; executors are one, and the supervisor is not counted."""
        times: dict[str, float] = {}
        for name, pid in self._stack.supervisor.pids.items():
            service = name if name in SERVICES else "executors"
            # Linux: a process's clock is its inverted id and the scheduler's number, 2.
            times[service] = times.get(service, 0.0) + time.clock_gettime_ns((~pid << 3) | 2) / 1e6
        return times

    def memory_mib(self) -> dict[str, float]:
        """Resident MiB by service, without the arena; for executors the mean."""
        pids = self._stack.supervisor.pids
        sizes = {name: _resident_mib(pids[name]) for name in SERVICES}
        executors = [_resident_mib(pid) for name, pid in pids.items() if name not in SERVICES]
        return {**sizes, "executor": sum(executors) / len(executors)}

    def bus_bytes(self) -> int:
        """Bytes that clients have sent to NATS and got from it."""
        counters = self._read_monitor("varz")
        return int(counters["in_bytes"] + counters["out_bytes"])

    def disk_bytes(self) -> int:
        """Bytes in streams: records of invocations."""
        return int(self._read_monitor("jsz")["bytes"])

    def arena_bytes(self) -> int:
        """Bytes of the arena that are in use now."""
        for line in self._sidecar_metrics().splitlines():
            if line.startswith("omnibus_arena_used_bytes"):
                return int(float(line.rsplit(" ", 1)[1]))
        raise RuntimeError("the sidecar tells no bytes of its arena")

    def _read_monitor(self, page: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._stack.nats.monitor}/{page}", timeout=10) as answer:
            counters: dict[str, Any] = json.load(answer)
        return counters

    def _sidecar_metrics(self) -> str:
        pid = self._stack.supervisor.pids["sidecar"]
        for file in Path(self._stack.metrics_dir).glob("*.json"):
            for target in json.loads(file.read_text()):
                if str(pid) in file.name or target.get("labels", {}).get("service") == "sidecar":
                    with urllib.request.urlopen(f"http://{target['targets'][0]}/metrics", timeout=10) as answer:
                        return str(answer.read().decode())
        raise RuntimeError("the sidecar has no endpoint of metrics")


SERVICES = ("nats", "valkey", "planner", "sidecar", "gateway")


def _resident_mib(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile")) / 1024


async def measure_kinds() -> Measurements:
    """Measure every kind on this machine."""
    with TemporaryDirectory() as directory:
        profile = Path(directory) / "profile.json"
        profile.write_text(json.dumps(PROFILE))
        declarations = {"models": {CHAT: catalog.model_declaration("qwen2_5_omni", str(profile))}}
        chats = await _measure_stack(
            json.dumps(declarations), {"OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim"}, make_kinds()
        )
    pictures = await _measure_stack(await tiny_models([PAINTER]), {}, make_images())
    for cost in pictures.kinds.values():
        cost.cpu_ms.pop("executors")  # its engine computes
    return msgspec.structs.replace(chats, kinds={**chats.kinds, **pictures.kinds})


async def _measure_stack(
    declarations: str, env: Mapping[str, str], requests: Mapping[str, tuple[str, tuple[str, dict[str, Any]]]]
) -> Measurements:
    apart = {**env, "OMNIBUS_UP_FORK_SERVER": "0"}  # as in a cluster, processes do not share memory
    async with Stack(declarations, env=apart, log=Log(io.StringIO())) as stack:
        probe = ServiceProbe(stack)
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
            idle, bus_rate = await _measure_idle(probe)
            costs = {
                name: await _measure_kind(probe, client, idle, bus_rate, description, *request)
                for name, (description, request) in requests.items()
            }
        memory = {name: round(mib, 1) for name, mib in probe.memory_mib().items()}
        return Measurements(_describe_machine(), REQUESTS, memory, round(sum(idle.values()), 2), costs)


async def _measure_idle(probe: ServiceProbe) -> tuple[dict[str, float], float]:
    """Idle CPU ms a second by service, and bus bytes a second."""
    await asyncio.sleep(1.0)
    began, before, bytes_before = time.perf_counter(), probe.cpu_ms(), probe.bus_bytes()
    await asyncio.sleep(IDLE_SECONDS)
    seconds, after, sent_then = time.perf_counter() - began, probe.cpu_ms(), probe.bus_bytes()
    return {name: (after[name] - before[name]) / seconds for name in after}, (sent_then - bytes_before) / seconds


async def _measure_kind(
    probe: ServiceProbe, client: httpx.AsyncClient, idle: Mapping[str, float], bus_rate: float, description: str,
    path: str, body: dict[str, Any],
) -> KindCost:  # fmt: skip
    await _send_requests(client, path, body, WARM)
    arena = await _arena_peak(probe, client, path, body)
    await asyncio.sleep(0.5)
    began, before = time.perf_counter(), (probe.cpu_ms(), probe.bus_bytes(), probe.disk_bytes())
    await _send_requests(client, path, body, REQUESTS)
    await asyncio.sleep(0.5)  # until all are ended and recorded
    seconds, after = time.perf_counter() - began, (probe.cpu_ms(), probe.bus_bytes(), probe.disk_bytes())
    cpu = {
        name: round(max(0.0, after[0][name] - before[0][name] - idle[name] * seconds) / REQUESTS, 3) for name in idle
    }
    bus = (after[1] - before[1] - bus_rate * seconds) / REQUESTS
    disk = (after[2] - before[2]) / REQUESTS
    media = len(json.dumps(body)) * 3 // 4 if "url" in str(body) or "input_audio" in str(body) else 0
    return KindCost(description, cpu, arena, round(max(0.0, bus)), round(max(0.0, disk)), media)


async def _arena_peak(probe: ServiceProbe, client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> int:
    """Peak arena bytes of a request, less those held without it."""
    base, most, stop = probe.arena_bytes(), 0, asyncio.Event()

    async def watch_arena() -> None:
        nonlocal most
        while not stop.is_set():
            most = max(most, await asyncio.to_thread(probe.arena_bytes))
            await asyncio.sleep(_POLL_SECONDS)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch_arena())
        await _send_requests(client, path, body, WARM)
        stop.set()
    return max(0, most - base)


async def _send_requests(client: httpx.AsyncClient, path: str, body: dict[str, Any], count: int) -> None:
    for seed in range(count):
        answer = await client.post(path, json={**body, "seed": seed})
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:500]}")


def _describe_machine() -> str:
    model = next(line.split(":")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line)
    return f"{os.cpu_count()} shared cores of {' '.join(model.split())}, Python {platform.python_version()}"


def main() -> None:
    measurements = asyncio.run(measure_kinds())
    DATA.write_bytes(msgspec.json.format(msgspec.json.encode(measurements), indent=1) + b"\n")


if __name__ == "__main__":
    main()
