"""Sessions by voice at the same time: whether their answers can be played while they are made.

    python -m tests.bench.voice_sessions --sessions 64

Each session has a microphone that never stops: it says a tone, hears the answer to its end, and says the next one.
Sessions begin one after the other within a turn. A client plays an answer once it has ``--buffer`` milliseconds of it, as telephones and browsers do, and
an underrun is a pause in what it plays. Engines are simulated, one executor for each stage, and take the same time
whatever the machine does: they make sound several times as fast as it is played, and 64 prompts at once hold a step up
by less than the buffer, so that every underrun is the system's own. With ``--engine transformers`` the tiny omni model
answers: then the processor's time is part of it. What engines have made is noted where it comes onto the bus, and played
there too: an underrun is the engines' where it is one already there.

    of_engines        answers with underruns whose audio came too late from the engines: they computed, or waited for a core
    of_the_system     all others: gateway, bus and connection took too long with what was there in time
    delivery_ms       how much later a client had what the engines had made, at most in an answer
    real_time         seconds that a second of sound took
    cores             of the whole system and its clients, at work on average. Where they are all that other work of the
                      machine leaves, underruns are of that
    machine_late_ms   how much later than it wished a program was woken that does nothing else
"""

import argparse
import asyncio
import base64
import copy
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import psutil
from websockets.asyncio.client import ClientConnection

from omnibus_models import tiny
from tests.bench import bus_tap
from tests.bench.bus_tap import SentAudio
from tests.bench.continued import percentile
from tests.bench.voice import session, sound, staged
from tests.e2e.small.streams import MODEL, TIMES
from tests.e2e.system import System, declaration, running

BYTES_PER_SECOND, SAMPLES_PER_SECOND = 48_000, 24_000
_SAMPLE_SECONDS = 1 / SAMPLES_PER_SECOND
#: Seconds of sound in a message of a microphone, and of the tone that it says.
CHUNK_SECONDS, TONE_SECONDS = 0.05, 1.0
#: Seconds of a turn and its answer, about.
TURN_SECONDS = 5.0
#: A program that prints, when it is told to end, by how many milliseconds it was woken too late, p99 and at most.
WATCH = """
import signal, sys, time
late, over = [], []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
while not over:
    due = time.monotonic() + 0.005
    time.sleep(0.005)
    late.append(time.monotonic() - due)
late.sort()
print(round(1000 * late[int(len(late) * 0.99)]), round(1000 * late[-1]))
"""
#: Seconds that an answer may take.
PATIENCE = 300.0


def quick_times() -> dict[str, Any]:
    """Times of engines that keep up with many: a quarter of those of other tests."""
    times = copy.deepcopy(TIMES)
    for part in times["default"]["components"].values():
        for kind in ("batch", "step"):
            if kind in part:
                part[kind]["base"] /= 4
    return times


@dataclass
class Player:
    """Plays one answer once it has ``buffer`` seconds of it; counts the pauses in it."""

    buffer: float
    seconds: float = 0.0  # that have come
    pauses: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    ends: float = 0.0  # what has come is played until then
    turn_ended: float = 0.0  # nothing of an answer is sent before

    def add(self, seconds: float, now: float) -> None:
        """More of the answer has come."""
        self.arrivals.append(now)
        self.sizes.append(seconds)
        before, self.seconds = self.seconds, self.seconds + seconds
        if self.seconds < self.buffer:
            return
        if before < self.buffer:  # it begins
            self.ends = now + self.seconds
            return
        if now > self.ends:
            self.pauses.append(now - self.ends)
            self.ends = now
        self.ends += seconds

    @classmethod
    def of_engines(cls, sent: SentAudio, heard: "Player") -> "Player":
        """Plays what engines have ``sent``, of which a client has ``heard`` the same."""
        player = cls(heard.buffer)
        for at, samples in sent.pieces:
            player.add(samples / SAMPLES_PER_SECOND, max(at, heard.turn_ended))
        return player

    @property
    def real_time(self) -> float:
        """Seconds that a second of the answer took."""
        return (self.arrivals[-1] - self.arrivals[0]) / self.seconds


@dataclass
class Call:
    """One session, and how its answers were played."""

    buffer: float
    turns: int
    seed: int
    players: list[Player] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # seconds from the end of a turn to the first sound
    says: list[str] = field(default_factory=list)  # what the microphone hears next

    async def hold(self, socket: ClientConnection) -> None:
        session = {"type": "realtime", "seed": self.seed}
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        microphone = asyncio.create_task(self._listen(socket))
        try:
            for _ in range(self.turns):
                self.says += [sound(CHUNK_SECONDS, 0.5)] * round(TONE_SECONDS / CHUNK_SECONDS)
                async with asyncio.timeout(PATIENCE):
                    await self._hear(socket)
        finally:
            microphone.cancel()

    async def _listen(self, socket: ClientConnection) -> None:
        silence, due = sound(CHUNK_SECONDS), time.monotonic()
        while True:
            audio = self.says.pop(0) if self.says else silence
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
            due += CHUNK_SECONDS
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _hear(self, socket: ClientConnection) -> None:
        player, ended = Player(self.buffer), 0.0
        while True:
            event, now = json.loads(await socket.recv()), time.monotonic()
            if event["type"] == "input_audio_buffer.speech_stopped":
                ended = now
            elif event["type"] == "response.output_audio.delta":
                if not player.seconds:
                    self.waits.append(now - ended)
                    player.turn_ended = ended
                player.add(len(base64.b64decode(event["delta"])) / BYTES_PER_SECOND, now)
            elif event["type"] == "response.done":
                if event["response"]["status"] != "completed":
                    raise RuntimeError(event["response"]["status_details"])
                self.players.append(player)
                await asyncio.sleep(max(0.0, player.ends - now))
                return
            elif event["type"] == "error":
                raise RuntimeError(event["error"])


def match_answers(call: Call, sent: list[SentAudio]) -> Iterator[tuple[Player, SentAudio]]:
    """The answers of ``call``, each with what engines sent for it: dropped ones, which nobody heard, are left out."""
    made = [each for each in sent if each.seed == call.seed and each.whole]
    for player in call.players:
        wanted = round(player.seconds * SAMPLES_PER_SECOND)
        place = next((place for place, each in enumerate(made) if each.samples == wanted), None)
        if place is not None:
            yield player, made[place]
            del made[: place + 1]


def attribute(calls: list[Call], sent: list[SentAudio]) -> dict[str, Any]:
    """Whose the underruns are, and how late clients had what engines had made."""
    matched = [each for call in calls for each in match_answers(call, sent)]
    pairs = [(player, Player.of_engines(made, player)) for player, made in matched]
    late = [_lateness(player, made) for player, made in pairs]
    return {
        "answers_matched": len(pairs),
        "of_engines": sum(bool(player.pauses and made.pauses) for player, made in pairs),
        "of_the_system": sum(bool(player.pauses and not made.pauses) for player, made in pairs),
        "delivery_ms p50": round(1000 * percentile(late, 0.5)),
        "delivery_ms p99": round(1000 * percentile(late, 0.99)),
    }


def _lateness(heard: Player, made: Player) -> float:
    """Seconds by which the client had some of an answer later than the bus, at most."""
    times = iter(zip(accumulate(made.sizes), made.arrivals, strict=True))
    there, since, most = 0.0, 0.0, 0.0
    for seconds, at in zip(accumulate(heard.sizes), heard.arrivals, strict=True):
        while there < seconds - _SAMPLE_SECONDS / 2 and (step := next(times, None)) is not None:
            there, since = step
        most = max(most, at - since)
    return most


def cpu_seconds() -> float:
    """Seconds that this process and all that it started have computed."""
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def start_watch() -> asyncio.subprocess.Process:
    """Start a program that does nothing, and notes when it is woken late."""
    return await asyncio.create_subprocess_exec(sys.executable, "-c", WATCH, stdout=asyncio.subprocess.PIPE)


async def stop_watch(watch: asyncio.subprocess.Process) -> list[int]:
    """Milliseconds by which ``watch`` was woken late, p99 and at most."""
    watch.terminate()
    return [int(each) for each in (await watch.communicate())[0].split()]


async def measure(system: System, sessions: int, turns: int, buffer: float) -> dict[str, Any]:
    await system.becomes_ready()
    calls = [Call(buffer, turns, number + 1) for number in range(sessions)]

    async def hold(number: int, call: Call) -> None:
        await asyncio.sleep(TURN_SECONDS * number / sessions)
        async with session(system, number % gateways) as socket:
            await call.hold(socket)

    gateways = len(system.urls)
    tap = await bus_tap.start(system.state.nats_url)
    watch = await start_watch()
    begin, before = time.monotonic(), cpu_seconds()
    await asyncio.gather(*(hold(number, call) for number, call in enumerate(calls)))
    cores = (cpu_seconds() - before) / (time.monotonic() - begin)
    late = await stop_watch(watch)
    sent = await bus_tap.stop(tap)
    players = [player for call in calls for player in call.players]
    pauses = [pause for player in players for pause in player.pauses]
    waits = [wait for call in calls for wait in call.waits]
    return {
        "sessions": sessions,
        "answers": len(players),
        "seconds_played": round(sum(player.seconds for player in players)),
        "answers_with_underruns": sum(bool(player.pauses) for player in players),
        **attribute(calls, sent),
        "longest_underrun_ms": round(1000 * max(pauses, default=0.0)),
        "first_sound_ms p50": round(1000 * percentile(waits, 0.5)),
        "first_sound_ms p99": round(1000 * percentile(waits, 0.99)),
        "cores": round(cores, 2),
        "machine_late_ms p99, most": late,
        "real_time p50": round(statistics.median(player.real_time for player in players), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3, help="answers of each session")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--buffer", type=float, default=100.0, help="milliseconds that a client has before it plays")
    parser.add_argument("--engine", choices=("sim", "transformers"), default="sim")
    given = parser.parse_args()
    settings = {"OMNIBUS_EXECUTOR_CREDITS": "1024"}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if given.engine == "sim":
            settings["OMNIBUS_EXECUTOR_ENGINE"] = "services.engines:sim"
            declared = staged(directory, quick_times())
        else:
            declared = declaration("qwen2_5_omni", tiny.build("qwen2_5_omni", directory / "model"))
        flags = ("--gateways", str(given.gateways))
        with running(directory, {MODEL: declared}, *flags, **settings) as system:
            figures = asyncio.run(measure(system, given.sessions, given.turns, given.buffer / 1000))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
