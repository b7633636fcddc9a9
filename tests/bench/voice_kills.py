"""Voice sessions resumed while gateways are killed: lost or repeated samples, and silence.

    python -m tests.bench.voice_kills --resumed 500

Simulated executors run with real gateways under ``omnibus up``. Every second one gateway is killed, if another one
answers, until the given number of sessions was resumed. Their clients reconnect immediately, to a random gateway that
accepts them. Each answer is compared, sample by sample, with the same answer of an undisturbed run.

``resume_gap_ms`` is the time from the end of a connection to the next text or audio that is new to its client.
``taken_ms`` is the part of it until another gateway has resumed the session and sent the missed events. In the rest the
model returns to the same position. ``gap less the model's own`` excludes the time of simulated engines for the next
text or audio. They use no processor, so only gateways and clients use cores.

``machine_late_ms`` is how late an otherwise idle program was woken. If it is late itself, other programs cause the
gaps. ``phases_ms`` contains the phases of gaps (median, 99th percentile, most; see ``tests.bench.resume_phases``). The
longest gaps are printed with their phases and steps.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from omnibus.executor.sim.speech import SimulatedTalker
from tests.bench import bus_tap
from tests.bench.bus_tap import SentAudio
from tests.bench.continued import compute_percentile, kill_gateways
from tests.bench.machine_watch import MachineWatch
from tests.bench.resume_phases import split_gap, summarize_phases
from tests.bench.voice import make_staged_model
from tests.e2e.small.conversations import RESUMED, Conversation, Gap
from tests.e2e.small.streams import MODEL, TIMES
from tests.e2e.system import System, start_system

#: Questions that differ, each of which one answer belongs to.
QUESTIONS = 24
#: Seconds after which no gateway is killed any more, however few sessions were resumed.
MAX_SECONDS = 600
SAMPLE_BYTES = 2
#: The longest gaps, of which phases and steps are printed.
WORST = 5


def own_seconds() -> dict[str, float]:
    """Seconds of simulated engines until the next text or audio.

    Audio counts after the last text.
    """
    parts = TIMES["default"]["components"]
    thinker, talker = (parts[name]["batch"]["base"] for name in ("thinker", "talker"))
    codes = parts["talker"]["step"]["base"] * SimulatedTalker.chunk
    return {
        "response.output_audio_transcript.delta": thinker + parts["thinker"]["step"]["base"],
        "response.output_audio.delta": thinker + talker + codes + parts["vocoder"]["batch"]["base"],
    }


class Callers:
    """Clients that open a new session when one ends.

    ``references`` are the answers of an undisturbed run.
    """

    def __init__(self, system: System, references: Sequence[Conversation]) -> None:
        self._urls = system.urls
        self._known = references
        self._questions = count()
        self.outcomes: Counter[str] = Counter()
        self.samples: Counter[str] = Counter()
        self.gaps: list[Gap] = []
        self.resumed = 0
        self.over = False

    async def hold_calls(self) -> None:
        while not self.over:
            number = next(self._questions) % QUESTIONS
            await self._hold_session(Conversation(self._urls, number), self._known[number])

    async def _hold_session(self, session: Conversation, reference: Conversation) -> None:
        try:
            await session.hold(session.seed % len(self._urls))
        except (AssertionError, TimeoutError) as error:
            self.outcomes[f"lost: {str(error)[:80] or type(error).__name__}"] += 1
            return
        finally:
            self.resumed += len(session.gaps)
            self.gaps += session.gaps
        more = (len(session.sound) - len(reference.sound)) // SAMPLE_BYTES
        self.samples["lost"] += max(0, -more)
        self.samples["repeated"] += max(0, more)
        equal = (session.text, session.sound, session.wrong) == (reference.text, reference.sound, [])
        self.outcomes["equal" if equal else f"different: {session.wrong[:1]}"] += 1


async def measure_kills(system: System, sessions: int, resume_count: int) -> dict[str, Any]:
    await system.becomes_ready()
    references = [Conversation(system.urls, number) for number in range(QUESTIONS)]
    await asyncio.gather(*(each.hold(0) for each in references))
    callers, begin = Callers(system, references), time.monotonic()
    tasks = [asyncio.create_task(callers.hold_calls()) for _ in range(sessions)]
    watch = await MachineWatch.start()
    tap = await bus_tap.start_tap(system.state.nats_url, edges=True)
    kills = await kill_gateways(system, MAX_SECONDS, lambda: callers.resumed >= resume_count)
    callers.over = True
    await asyncio.gather(*tasks)
    machine, records = await watch.stop(), await bus_tap.stop_tap(tap)
    print_longest(callers.gaps, records)
    own = own_seconds()
    values = {
        "taken_ms": [delay for gap in callers.gaps if (delay := gap.find_last(RESUMED))],
        "resume_gap_ms": [gap.seconds for gap in callers.gaps],
        "gap less the model's own ms": [max(0.0, gap.seconds - own.get(gap.steps[-1][1], 0.0)) for gap in callers.gaps],
    }
    times = {
        f"{name} p{int(share * 100)}": round(1000 * compute_percentile(series, share))
        for name, series in values.items()
        for share in (0.5, 0.99)
    }
    return {
        "gateways_killed": kills,
        "sessions_resumed": len(callers.gaps),
        "seconds": round(time.monotonic() - begin),
        "answers": dict(callers.outcomes),
        "samples_lost": callers.samples["lost"],
        "samples_repeated": callers.samples["repeated"],
        **times,
        "phases_ms p50, p99, most": summarize_phases([split_gap(gap, records) for gap in callers.gaps]),
        "machine_late_ms p99, most": machine.late_milliseconds,
    }


def print_longest(gaps: Sequence[Gap], records: Sequence[SentAudio]) -> None:
    """Print the phases of the longest gaps in milliseconds."""
    for gap in sorted(gaps, key=lambda each: each.seconds)[-WORST:]:
        phases = {name: round(1000 * seconds) for name, seconds in split_gap(gap, records).items()}
        steps = [(round(1000 * seconds), step) for seconds, step in gap.steps]
        print(f"gap of {1000 * gap.seconds:.0f} ms: {phases}\n  {steps}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resumed", type=int, default=500, help="sessions that are resumed, at least")
    parser.add_argument("--sessions", type=int, default=16, help="sessions at the same time")
    parser.add_argument("--gateways", type=int, default=6)
    options = parser.parse_args()
    settings = {
        "OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim",
        "OMNIBUS_EXECUTOR_CREDITS": "8192",
        "OMNIBUS_EXECUTOR_BATCH": "1024",
    }
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        models = {MODEL: make_staged_model(directory, TIMES)}
        flags = ("--gateways", str(options.gateways))
        with start_system(directory, models, *flags, **settings) as system:
            figures = asyncio.run(measure_kills(system, options.sessions, options.resumed))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
