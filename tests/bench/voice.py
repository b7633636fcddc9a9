"""Realtime sessions with a simulated model: latency, interruptions, cost, and lost gateways.

    python -m tests.bench.voice
    python -m tests.bench.voice --idle 60

Two gateways and one executor of each stage run as processes. Engines take the same time under any load of the machine,
so the system itself causes all that exceeds it:

    first_audio_over_compute   seconds from the last sample of a turn's silence until the first audio, over those that
                               the engines need for it: the turn encoded, the first token, the first codes, their samples.
                               The silence is sent as a microphone does, so that an answer may be begun early in it
    barge_in_steps             steps that a stage takes after the end of an interrupted answer is on the bus, at most
    idle_cpu                   share of a core of a session that is open and silent, without audio
    listening_cpu              the same of one whose microphone sends silence
    resume_gap_ms              median time without audio of sessions whose gateway was killed. Raises when one of them
                               lost or repeated a sample

``--idle`` prints the cost of open sessions alone: the CPU of their gateway, and of the whole system. It counts that
many seconds each without and with sessions.
"""

import argparse
import asyncio
import base64
import contextlib
import copy
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import websockets
from websockets.asyncio.client import ClientConnection

from omnibus.bus import Bus, Delivery, subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.profiling.monitor import read_engine_stats
from tests.bench.cases import FIRST_AUDIO, STEPS_AFTER, VOICE
from tests.e2e.small.conversations import Conversation
from tests.e2e.small.streams import MODEL, TIMES
from tests.e2e.system import System, declare_model, start_system

TURNS, INTERRUPTIONS, SESSIONS, RESUMED = 8, 8, 64, 12
#: Seconds for which the processors' time is counted, and after which an interrupted stage is looked at again.
IDLE_SECONDS, AFTER_SECONDS = 5.0, 0.5
PATIENCE = 60.0
CHUNK_SECONDS = 0.05
#: Seconds of a frame of the detector, and of the silence that ends a turn.
FRAME_SECONDS, SILENCE_SECONDS = 0.02, 0.5
SECONDS = {"audio": 0.03, "thinker": 0.05, "talker": 0.02, "vocoder": 0.02}
#: Seconds of the passes and of the first steps after them.
COMPUTE = sum(SECONDS.values()) + sum(
    TIMES["default"]["components"][name]["step"]["base"] for name in ("thinker", "talker")
)
STAGES = {
    "A": ("encoder", "vision", "audio"),
    "L": ("llm", "thinker"),
    "T": ("llm", "talker"),
    "V": ("generator", "vocoder"),
}


def make_model(directory: Path) -> dict[str, Any]:
    """Model with one executor per stage; engines take ``SECONDS`` for a pass."""
    times = copy.deepcopy(TIMES)
    for name, seconds in SECONDS.items():
        times["default"]["components"][name]["batch"]["base"] = seconds
    times["default"]["components"]["talker"]["chunk"] = 1  # the first codes are sent at once
    return make_staged_model(directory, times)


def make_staged_model(directory: Path, times: dict[str, Any]) -> dict[str, Any]:
    """Model with one executor per stage, whose engines take ``times``."""
    checkpoint = directory / "times.json"
    checkpoint.write_text(json.dumps(times))
    options = {name: {"components": list(parts), "service": service} for name, (service, *parts) in STAGES.items()}
    return declare_model("qwen2_5_omni", checkpoint, options=options, paths=[{"options": [*options], "share": 1}])


def make_sound(seconds: float, loudness: float = 0.0) -> str:
    """A tone, or silence, as 24 kHz samples in base64."""
    wave = np.sin(2 * np.pi * 400 * np.arange(int(24000 * seconds)) / 24000)
    return base64.b64encode((wave * loudness * 32767).astype("<i2").tobytes()).decode()


@contextlib.asynccontextmanager
async def open_session(system: System, gateway: int = 0) -> AsyncIterator[ClientConnection]:
    url = f"{system.urls[gateway].replace('http', 'ws', 1)}/v1/realtime?model={MODEL}"
    # No pings: where processors have other work, answers that come late are measured, and end no session.
    async with websockets.connect(url, max_size=None, max_queue=None, ping_interval=None) as socket:
        await wait_event(socket, "conversation.created")
        yield socket


async def append_audio(socket: ClientConnection, audio: str) -> None:
    await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))


async def wait_event(socket: ClientConnection, type: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while (event := json.loads(await socket.recv()))["type"] != type:
            if event["type"] == "error":
                raise RuntimeError(event["error"])
    return dict(event)


async def measure_first_audio(system: System) -> float:
    """Median seconds from a turn's end to the first audio, over ``COMPUTE``."""
    took = []
    for _ in range(TURNS):
        async with open_session(system) as socket:
            await append_audio(socket, make_sound(0.5))
            await append_audio(socket, make_sound(1.0, 0.5))
            await wait_event(socket, "input_audio_buffer.speech_started")
            end = await send_ending_silence(socket)
            await wait_event(socket, "response.output_audio.delta")
            took.append(time.perf_counter() - end)
    print(f"first audio: {statistics.median(took) * 1000:.0f} ms, engines {COMPUTE * 1000:.0f} ms", file=sys.stderr)
    return statistics.median(took) / COMPUTE


async def send_ending_silence(socket: ClientConnection) -> float:
    """Send silence in real time until it ends the turn; return when the last frame was sent."""
    begin, frame = time.perf_counter(), make_sound(FRAME_SECONDS)
    for number in range(1, round(SILENCE_SECONDS / FRAME_SECONDS) + 1):
        await asyncio.sleep(max(0.0, begin + number * FRAME_SECONDS - time.perf_counter()))
        last = time.perf_counter()
        await append_audio(socket, frame)
    return last


class StageSteps:
    """Steps of each stage, as its executor counts them."""

    def __init__(self, bus: Bus, statuses: list[ExecutorStatus]) -> None:
        self._bus = bus
        self._statuses = statuses

    async def count_steps(self) -> dict[str, int]:
        """Steps by component; passes for stages without steps."""
        all_stats = await asyncio.gather(*(read_engine_stats(self._bus, each) for each in self._statuses))
        stages = {name: stats for each in all_stats for name, stats in each.items()}
        return {name: sum((stats.get("steps") or stats["batches"]).values()) for name, stats in stages.items()}


async def find_stages(system: System, bus: Any) -> list[ExecutorStatus]:
    """The status of every executor."""
    latest: dict[str, ExecutorStatus] = {}
    async with asyncio.timeout(PATIENCE), contextlib.aclosing(system.statuses(bus)) as stream:
        async for status in stream:
            latest[status.id] = status
            if system.executors <= latest.keys():
                break
    return list(latest.values())


async def measure_barge_in(system: System) -> float:
    """Most steps of any stage after the end of an interrupted answer."""
    most: dict[str, int] = {}
    async with system.bus() as bus:
        stages, end_event = StageSteps(bus, await find_stages(system, bus)), asyncio.Event()

        def mark_end(_: Delivery) -> None:
            end_event.set()

        await bus.subscribe(f"{subjects.ROOT}.end.>", mark_end)
        for _ in range(INTERRUPTIONS):
            async with open_session(system) as socket:
                await append_audio(socket, make_sound(0.5))
                content = [{"type": "input_text", "text": "speak"}]
                item = {"type": "message", "role": "user", "content": content}
                await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
                await socket.send(json.dumps({"type": "response.create"}))
                await wait_event(socket, "response.output_audio.delta")
                end_event.clear()
                await append_audio(socket, make_sound(0.2, 0.5))
                await asyncio.wait_for(end_event.wait(), PATIENCE)
                before = await stages.count_steps()
                await wait_event(socket, "response.done")
                await asyncio.sleep(AFTER_SECONDS)
                after = await stages.count_steps()
            most = {name: max(most.get(name, 0), after[name] - before[name]) for name in after}
    print(f"steps after an interruption: {most}", file=sys.stderr)
    return max(most.values())


async def measure_cpu(system: System) -> dict[str, float]:
    """Share of a core of the gateway per session: without audio, and with silence."""
    async with contextlib.AsyncExitStack() as stack:
        alone = await _gateway_cpu(system)
        sockets = [await stack.enter_async_context(open_session(system)) for _ in range(SESSIONS)]
        idle = await _gateway_cpu(system)
        silence = make_sound(CHUNK_SECONDS)
        speaking = [asyncio.create_task(_send_silence(each, silence)) for each in sockets]
        listening = await _gateway_cpu(system)
        for task in speaking:
            task.cancel()
        await asyncio.gather(*speaking, return_exceptions=True)
    print(f"gateway: {alone:.4f} of a core alone, {idle:.4f} idle, {listening:.4f} listening", file=sys.stderr)
    return {name: max(0.0, value - alone) / SESSIONS for name, value in (("idle", idle), ("listening", listening))}


async def _send_silence(socket: ClientConnection, silence: str) -> None:
    while True:
        await append_audio(socket, silence)
        await asyncio.sleep(CHUNK_SECONDS)


async def _gateway_cpu(system: System) -> float:
    process = await asyncio.to_thread(system.gateway, 0)
    begin, before = time.perf_counter(), process.cpu_times()
    await asyncio.sleep(IDLE_SECONDS)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.perf_counter() - begin)


async def measure_idle(system: System, seconds: float) -> dict[str, float]:
    """CPU percent of an open session without audio: its gateway, the whole system."""
    await system.becomes_ready()
    before = await _count_cpu(system, seconds)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(SESSIONS):
            await stack.enter_async_context(open_session(system))
        during = await _count_cpu(system, seconds)
    after = await _count_cpu(system, seconds)
    print(f"gateway, system: {before} of a core before, {during} during, {after} after", file=sys.stderr)
    more = [during[place] - (before[place] + after[place]) / 2 for place in range(2)]
    return {name: 100 * each / SESSIONS for name, each in zip(("gateway", "system"), more, strict=True)}


async def _count_cpu(system: System, seconds: float) -> tuple[float, float]:
    """Busy cores of the first gateway and of ``system``, during ``seconds``."""
    gateway = await asyncio.to_thread(system.gateway, 0)
    processes = [gateway, *(each for each in await asyncio.to_thread(system.processes) if each.pid != gateway.pid)]
    begin, before = time.perf_counter(), [each.cpu_times() for each in processes]
    await asyncio.sleep(seconds)
    took, after = time.perf_counter() - begin, [each.cpu_times() for each in processes]
    cores = [
        (late.user + late.system - early.user - early.system) / took for early, late in zip(before, after, strict=True)
    ]
    return cores[0], sum(cores)


async def measure_resume(system: System) -> float:
    """Median milliseconds without audio of sessions whose gateway is killed."""
    references = [Conversation(system.urls, number) for number in range(RESUMED)]
    await asyncio.gather(*(each.hold(1) for each in references))
    sessions = [Conversation(system.urls, number) for number in range(RESUMED)]
    tasks = [asyncio.create_task(each.hold(0)) for each in sessions]
    async with asyncio.timeout(PATIENCE):
        while not all(each.sound for each in sessions):
            await asyncio.sleep(0.01)
    system.gateway(0).kill()
    await asyncio.gather(*tasks)
    for each, reference in zip(sessions, references, strict=True):
        if (each.text, each.sound, each.wrong) != (reference.text, reference.sound, []):
            raise RuntimeError(f"session {each.seed} lost or repeated something: {each.wrong}")
    gaps = [gap.seconds for each in sessions for gap in each.gaps]
    print(f"{len(gaps)} sessions resumed, gaps {[round(gap, 2) for gap in sorted(gaps)]} s", file=sys.stderr)
    return statistics.median(gaps) * 1000


async def measure_voice(system: System) -> dict[str, float]:
    await system.becomes_ready()
    first, steps, cpu = await measure_first_audio(system), await measure_barge_in(system), await measure_cpu(system)
    figures = {FIRST_AUDIO: first, STEPS_AFTER: steps}
    figures |= {f"realtime.{name}_cpu": 100 * value for name, value in cpu.items()}
    figures |= {"realtime.resume_gap_ms": await measure_resume(system)}
    if figures.keys() != {FIRST_AUDIO, *VOICE}:
        raise RuntimeError(f"not the figures that are named: {sorted(figures)}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=float, default=0.0, metavar="SECONDS", help="measure open sessions alone")
    options = parser.parse_args()
    settings = {"OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim", "OMNIBUS_EXECUTOR_CREDITS": "1024"}
    with tempfile.TemporaryDirectory() as directory:
        models = {MODEL: make_model(Path(directory))}
        with start_system(Path(directory), models, "--gateways", "2", **settings) as system:
            measurement = measure_idle(system, options.idle) if options.idle else measure_voice(system)
            print(json.dumps(asyncio.run(measurement)))


if __name__ == "__main__":
    main()
