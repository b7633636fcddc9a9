"""Concurrent voice sessions: whether clients can play their answers without underruns.

    python -m tests.bench.voice_sessions --sessions 8 16 32 64

Each session has a microphone that never stops: it plays a tone, receives the whole answer, and plays the next one.
Sessions begin one after the other within a turn. A client plays an answer once it has ``--buffer`` milliseconds of it,
as telephones and browsers do. An underrun is a pause in its playback.

Engines are simulated, one executor for each stage, and take the same time under any load. They generate audio several
times faster than real time, and 64 concurrent prompts delay a step by less than the buffer. With ``--engine
transformers`` the tiny omni model answers, and processor time counts. The audio of engines is also recorded on the bus
and played there: see ``tests.bench.playback``.

    of_engines        answers with underruns that there would have been at the bus: engines computed, waited for each
                      other, or for a core
    of_the_system     answers with longer pauses than there would have been at the bus: gateway, bus and connection
                      delayed audio that was available in time. The work of each meanwhile is printed
    of_processors     the same where those on its way, the gateway, NATS and this client, were ready to run for as long and
                      had no processor: others had them, engines among them
    delivery_ms       how much later a client had what the engines had made, at most in an answer
    real_time         seconds that a second of audio took
    cores             of the whole system and its clients, at work on average, and of all programs of the machine
    machine_late_ms   how late an otherwise idle program was woken
"""

import argparse
import asyncio
import base64
import copy
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from websockets.asyncio.client import ClientConnection

from omnibus.process.tuning import tune_garbage_collector
from omnibus_models import tiny
from tests.bench import bus_tap
from tests.bench.continued import compute_percentile
from tests.bench.machine_watch import MachineWatch
from tests.bench.playback import BYTES_PER_SECOND, Player, attribute_underruns, match_answers
from tests.bench.voice import make_sound, make_staged_model, open_session
from tests.e2e.small.streams import MODEL, TIMES
from tests.e2e.system import System, declare_model, start_system

#: Seconds of audio in a microphone's message, and of the tone that it plays.
CHUNK_SECONDS, TONE_SECONDS = 0.05, 1.0
#: Seconds of a turn and its answer, about.
TURN_SECONDS = 5.0
#: Names of watched processes, in addition to the gateways.
CLIENT, NATS = "client", "nats"
#: Seconds that an answer may take.
PATIENCE = 300.0


def quick_times() -> dict[str, Any]:
    """Engine times for many sessions: a quarter of those of other tests."""
    times = copy.deepcopy(TIMES)
    for part in times["default"]["components"].values():
        for kind in ("batch", "step"):
            if kind in part:
                part[kind]["base"] /= 4
    return times


@dataclass
class Call:
    """One session, and the playback of its answers."""

    buffer: float
    turns: int
    seed: int
    players: list[Player] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # seconds from the end of a turn to the first audio
    says: list[str] = field(default_factory=list)  # the microphone's next words

    async def hold_call(self, socket: ClientConnection) -> None:
        session = {"type": "realtime", "seed": self.seed}
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        microphone = asyncio.create_task(self._send_microphone(socket))
        try:
            for _ in range(self.turns):
                self.says += [make_sound(CHUNK_SECONDS, 0.5)] * round(TONE_SECONDS / CHUNK_SECONDS)
                async with asyncio.timeout(PATIENCE):
                    await self._receive_turn(socket)
        finally:
            microphone.cancel()

    async def _send_microphone(self, socket: ClientConnection) -> None:
        silence, due = make_sound(CHUNK_SECONDS), time.monotonic()
        while True:
            audio = self.says.pop(0) if self.says else silence
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
            due += CHUNK_SECONDS
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _receive_turn(self, socket: ClientConnection) -> None:
        player, end_time = Player(self.buffer), 0.0
        while True:
            event, now = json.loads(await socket.recv()), time.monotonic()
            if event["type"] == "input_audio_buffer.speech_stopped":
                end_time = now
            elif event["type"] == "response.output_audio.delta":
                if not player.seconds:
                    self.waits.append(now - end_time)
                    player.turn_ended = end_time
                player.add_audio(len(base64.b64decode(event["delta"])) / BYTES_PER_SECOND, now)
            elif event["type"] == "response.done":
                if event["response"]["status"] != "completed":
                    raise RuntimeError(event["response"]["status_details"])
                self.players.append(player)
                await asyncio.sleep(max(0.0, player.ends - now))
                return
            elif event["type"] == "error":
                raise RuntimeError(event["error"])


def cpu_seconds(system: System) -> float:
    """CPU seconds of this process, ``system``, and all their children."""
    own = psutil.Process()
    by_pid = {each.pid: each for each in (own, *own.children(recursive=True), *system.processes())}
    times = [each.cpu_times() for each in by_pid.values()]
    return sum(each.user + each.system for each in times)


def find_pids(system: System) -> dict[str, int]:
    """Processes that audio passes after the engines."""
    gateways = {f"gateway {number}": system.gateway(number).pid for number in range(len(system.urls))}
    return {CLIENT: os.getpid(), NATS: system.server("nats-server").pid, **gateways}


def busy_seconds() -> float:
    """Busy seconds of this machine's processors, for all programs."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


async def measure_sessions(system: System, sessions: int, turns: int, buffer: float) -> dict[str, Any]:
    await system.becomes_ready()
    calls = [Call(buffer, turns, number + 1) for number in range(sessions)]

    async def hold_one(number: int, call: Call) -> None:
        await asyncio.sleep(TURN_SECONDS * number / sessions)
        async with open_session(system, number % gateways) as socket:
            await call.hold_call(socket)

    gateways = len(system.urls)
    tap = await bus_tap.start_tap(system.state.nats_url)
    watch = await MachineWatch.start(await asyncio.to_thread(find_pids, system))
    begin, own, busy = time.monotonic(), cpu_seconds(system), busy_seconds()
    await asyncio.gather(*(hold_one(number, call) for number, call in enumerate(calls)))
    took = time.monotonic() - begin
    cores = [round(each / took, 2) for each in (cpu_seconds(system) - own, busy_seconds() - busy)]
    machine = await watch.stop()
    records = await bus_tap.stop_tap(tap)
    players = [player for call in calls for player in call.players]
    pauses = [pause for player in players for pause in player.pauses]
    waits = [wait for call in calls for wait in call.waits]
    ways = [(CLIENT, NATS, f"gateway {number % gateways}") for number in range(sessions)]
    pairs = [
        each
        for call, way in zip(calls, ways, strict=True)
        for each in match_answers(call.players, call.seed, records, way)
    ]
    return {
        "sessions": sessions,
        "answers": len(players),
        "seconds_played": round(sum(player.seconds for player in players)),
        "answers_with_underruns": sum(bool(player.pauses) for player in players),
        **attribute_underruns(pairs, machine),
        "longest_underrun_ms": round(1000 * max(pauses, default=0.0)),
        "first_sound_ms p50": round(1000 * compute_percentile(waits, 0.5)),
        "first_sound_ms p99": round(1000 * compute_percentile(waits, 0.99)),
        "cores of it, of all": cores,
        "machine_late_ms p99, most": machine.late_milliseconds,
        "real_time p50": round(statistics.median(player.real_time for player in players), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[64], help="at a time; one number after the other")
    parser.add_argument("--turns", type=int, default=3, help="answers of each session")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--buffer", type=float, default=100.0, help="milliseconds that a client has before it plays")
    parser.add_argument("--engine", choices=("sim", "transformers"), default="sim")
    options = parser.parse_args()
    settings = {"OMNIBUS_EXECUTOR_CREDITS": "1024"}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if options.engine == "sim":
            settings["OMNIBUS_EXECUTOR_ENGINE"] = "omnibus_engines:sim"
            model = make_staged_model(directory, quick_times())
        else:
            model = declare_model("qwen2_5_omni", tiny.build("qwen2_5_omni", directory / "model"))
        flags = ("--gateways", str(options.gateways))
        with start_system(directory, {MODEL: model}, *flags, **settings) as system:
            tune_garbage_collector()  # a model that was built left much to walk through
            for sessions in options.sessions:
                figures = asyncio.run(measure_sessions(system, sessions, options.turns, options.buffer / 1000))
                print(json.dumps(figures, indent=1), flush=True)


if __name__ == "__main__":
    main()
