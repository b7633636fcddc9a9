"""Plans against live systems of ``sim`` executors: ``python -m tests.bench.live_plans [--gpus 4] [--mix declared] [--pairs 20]``.

The any-to-any model of ``tests/bench/plans.py``, whose engines take so many times as long that each system serves a few
requests a second: what gateway, bus and client take of a processor is then little beside what engines take, also on a busy
machine. For each number of GPUs and each mix of request types a system runs the plan of that mix. It gets a trace, whose
requests are what ``omnibus whatif`` is asked for, and then as many requests at all times as show what it serves. The system
of the declared mix serves the other mixes as well.

    plan.live_over_promised     requests a second over those that the plan promises, by GPUs and mix: each 0.9 to 1.1
    plan.live_adapted_over_static  what the plan of a mix serves of it over what the plan of the declared mix does (0.98)
    whatif.live_p99_error       99th percentiles of a trace's answers, against those that ``omnibus whatif`` says (0.1)

A line of JSON for each system and measurement, and the figures at the end.
"""

import argparse
import asyncio
import csv
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from omnibus import profile as profiles
from omnibus.plan import Plan
from services.planner.simulate.outcome import percentile
from services.planner.whatif.__main__ import answer_question
from services.planner.whatif.question import WhatIfQuestion
from tests.bench.plans import DECLARED, MIXES
from tests.e2e.planned.omni import MODEL, TEXT_TOKENS, chat_body, kind_of
from tests.e2e.system import System, running
from tests.unit.planner.simulate.omni import ENGINES, HEARD, OPTIONS, SEEN, SPOKEN, TEXT, measured_profile

GPU = "H100"
GPUS = (2, 4, 8)
PLANNED_WITHIN_SECONDS = 900.0
#: Parts of what a plan promises at which traces come, their requests, and the part of their time that is not observed.
LOADS, REQUESTS, WARM_UP_FRACTION = (0.7, 0.4), 100, 0.15
#: Requests in a saturated system, as a factor of those that it needs; as many of them end before it is measured as a part
#: of these, and those that it is measured by.
QUEUED_FACTOR, FILL_FACTOR, MEASURED_REQUESTS = 1.7, 1.3, 120


class MixPace(NamedTuple):
    """Requests a second that a GPU serves of a mix, about, and those that a system is to serve; seconds of an answer."""

    served: float
    wanted: float
    answer: float


PACES = {
    DECLARED: MixPace(4.1, 3.5, 3.5),
    "speech_heavy": MixPace(2.8, 3.0, 3.5),
    "image_heavy": MixPace(4.5, 4.0, 2.0),
    "text_only": MixPace(15.0, 6.0, 1.3),
}
ANSWER_TOKENS, ANSWER_VARIATION, MAX_TOKENS = 48, 0.3, 96
SETTINGS = {
    "OMNIBUS_EXECUTOR_ENGINE": "services.engines:sim",
    "OMNIBUS_EXECUTOR_CREDITS": "512",
    "OMNIBUS_GATEWAY_MAX_INFLIGHT": "2048",
    "OMNIBUS_GATEWAY_DEADLINE": "600",
    "OMNIBUS_GATEWAY_RECORD": "digest",
    "OMNIBUS_PLANNER_SIMULATE": "5",
}


class TraceRow(NamedTuple):
    """One request of a trace: when it comes in seconds, its type, and the tokens of its answer."""

    at: float
    kind: str
    tokens: int


class Sent(NamedTuple):
    """One answer: when its request was due and when it had ended, by one clock, and its status."""

    kind: str
    due: float
    ended: float
    status: int


async def send(http: httpx.AsyncClient, body: dict[str, Any], kind: str, due: float) -> Sent:
    answer = await http.post("/v1/chat/completions", json=body)
    return Sent(kind, due, time.monotonic(), answer.status_code)


# Requests of a mix


def make_trace(mix: str, rate: float, seed: int) -> list[TraceRow]:
    """Requests at random times, with answers of random lengths."""
    draw, at, rows = random.Random(seed), 0.0, []
    variance = math.log1p(ANSWER_VARIATION**2)
    for number in range(REQUESTS):
        at += draw.expovariate(rate)
        tokens = round(ANSWER_TOKENS * draw.lognormvariate(-variance / 2, math.sqrt(variance)))
        rows.append(TraceRow(round(at, 4), kind_of(MIXES[mix], number), max(1, min(MAX_TOKENS, tokens))))
    return rows


def write_trace(rows: Sequence[TraceRow], path: Path) -> None:
    """``rows`` as ``omnibus whatif --trace`` reads them."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ("t_s", "num_images", "image_tokens", "text_tokens", "output_tokens", "has_audio", "audio_output")
        )
        for row in rows:
            images = int(row.kind == SEEN)
            spoken = int(row.kind in (HEARD, SPOKEN))
            table.writerow(
                (row.at, images, 300 * images, TEXT_TOKENS[row.kind], row.tokens, int(row.kind == HEARD), spoken)
            )


# One system


class LivePlan:
    """A running system with the plan of a mix on so many GPUs."""

    def __init__(self, directory: Path, gpus: int, mix: str) -> None:
        self.directory, self.gpus, self.mix = directory, gpus, mix
        self.stretch = max(1.0, gpus * PACES[mix].served / PACES[mix].wanted)
        self._numbers = count()

    def declaration(self) -> dict[str, Any]:
        """The planned model; writes the times of engines and their profile."""
        times, measured = self.directory / "times.json", self.directory / "profile.json"
        times.write_text(json.dumps({**ENGINES, "time_scale": self.stretch}))
        measured.write_bytes(profiles.encode_profile(stretched(measured_profile(), self.stretch)))
        shares = dict(zip((SEEN, HEARD, TEXT, SPOKEN), MIXES[self.mix], strict=True))
        planned = {
            "profile": str(measured), "goal": "throughput", "adapt": False, "learn": False,
            "mix": {kind: share for kind, share in shares.items() if share},
        }  # fmt: skip
        return {"family": "qwen2_5_omni", "checkpoint": str(times), "planned": planned}

    def start(self, stack: ExitStack) -> System:
        """A system with one executor of the model: a busy machine may take longer to plan than a start may last."""
        model, more = self.declaration(), {"gpus": {GPU: {"count": self.gpus, "memory_gb": 80}}}
        parts = {"components": list(OPTIONS["M"]), "service": "llm"}
        first = {name: each for name, each in model.items() if name != "planned"}
        first |= {"options": {"M": parts}, "paths": [{"options": ["M"]}]}
        system = stack.enter_context(running(self.directory, {MODEL: first}, more=more, **SETTINGS))
        declared = {**more, "models": {MODEL: model}}
        (self.directory / "models.json").write_text(json.dumps(declared))
        written = Path(system.state.directory, "next.json")  # beside the copy that the planner reads
        written.write_text(json.dumps(declared))
        written.replace(Path(system.state.directory, "models.json"))
        return system

    async def plan(self, system: System) -> Plan:
        """The plan, once its executors are ready."""
        async with system.store() as store, asyncio.timeout(PLANNED_WITHIN_SECONDS):
            while True:
                plan, stand = await store.plan(), await store.plan_state()
                if plan is not None and "planned" in plan.explain and not stand.staged:
                    return plan
                await asyncio.sleep(0.2)

    async def replay(self, http: httpx.AsyncClient, rows: Sequence[TraceRow]) -> list[Sent]:
        """Answers to ``rows``, each sent when it is due."""
        began, tasks = time.monotonic() + 0.2, []
        for row in rows:
            due = began + row.at
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            body = chat_body(row.kind, next(self._numbers), row.tokens)
            tasks.append(asyncio.create_task(send(http, body, row.kind, due)))
        return await asyncio.gather(*tasks)

    async def saturate(self, http: httpx.AsyncClient, mix: str, promised: float) -> tuple[float, Counter[int]]:
        """Requests a second that are served of ``mix`` while more wait than are served, and statuses of all."""
        statuses, ended, stopped = Counter[int](), list[float](), asyncio.Event()
        numbers = count()

        async def keep_asking() -> None:
            while not stopped.is_set():
                kind = kind_of(MIXES[mix], next(numbers))
                answer = await send(http, chat_body(kind, next(self._numbers)), kind, time.monotonic())
                statuses[answer.status] += 1
                if answer.status == 200:
                    ended.append(answer.ended)

        at_once = max(16, round(QUEUED_FACTOR * PACES[mix].answer * self.stretch * promised))
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(keep_asking())
            await asyncio.sleep(FILL_FACTOR * at_once / promised)
            began, before = time.monotonic(), len(ended)
            await asyncio.sleep(MEASURED_REQUESTS / promised)
            found = (len(ended) - before) / (time.monotonic() - began)
            stopped.set()
        return found, statuses


def stretched(profile: profiles.ModelProfile, factor: float) -> profiles.ModelProfile:
    """``profile`` of engines that take ``factor`` times as long."""
    options = {}
    for name, option in profile.options.items():
        work = tuple(
            msgspec.structs.replace(
                row, seconds=row.seconds * factor, latency=row.latency * factor, first_token=row.first_token * factor
            )
            for row in option.work
        )
        options[name] = msgspec.structs.replace(option, work=work, rate=option.rate / factor)
    return msgspec.structs.replace(profile, options=options)


def promised_rate(plan: Plan) -> float:
    return float(plan.explain["planned"]["models"][MODEL]["capacity"])


async def predict(live: LivePlan, plan: Plan, trace: Path) -> dict[str, Any]:
    """What ``omnibus whatif`` says of ``trace`` and ``plan``."""
    written = live.directory / "plan.json"
    written.write_bytes(msgspec.json.encode(plan))
    question = WhatIfQuestion(
        plan=str(written), models=str(live.directory / "models.json"), trace=str(trace), model=MODEL, json=True
    )
    found: dict[str, Any] = json.loads(await answer_question(question))
    return found


def observed_p99(sent: Sequence[Sent], kind: str = "") -> float:
    """Seconds of 99 % of the answers, of ``kind`` or of all, to requests that came after the warm-up."""
    first, last = min(each.due for each in sent), max(each.due for each in sent)
    warm = first + WARM_UP_FRACTION * (last - first)
    seconds = sorted(each.ended - each.due for each in sent if each.due >= warm and each.kind.startswith(kind))
    return percentile(seconds, 0.99)


def report(**row: Any) -> dict[str, Any]:
    row["load"] = round(sum(map(float, Path("/proc/loadavg").read_text().split()[:1])), 1)
    print(json.dumps({name: round(each, 4) if isinstance(each, float) else each for name, each in row.items()}))
    sys.stdout.flush()
    return row


async def measure_pair(live: LivePlan, http: httpx.AsyncClient, plan: Plan, mix: str, load: float) -> dict[str, Any]:
    """One pair of trace and plan."""
    rows = make_trace(mix, load * promised_rate(plan), seed=live.gpus)
    trace = live.directory / f"trace-{mix}-{load}.csv"
    write_trace(rows, trace)
    said = await predict(live, plan, trace)
    sent = await live.replay(http, rows)
    predicted, measured = said["percentiles"]["done"]["0.99"], observed_p99(sent)
    return report(
        what="pair", gpus=live.gpus, plan=live.mix, mix=mix, part=load, predicted_s=predicted, measured_s=measured,
        error=measured / predicted - 1.0, refused=sum(each.status != 200 for each in sent),
    )  # fmt: skip


async def measure_rate(
    live: LivePlan, http: httpx.AsyncClient, plan: Plan, mix: str, promised: float
) -> dict[str, Any]:
    """What ``plan`` serves of ``mix``, which is ``promised`` to be."""
    rate, statuses = await live.saturate(http, mix, promised)
    return report(
        what="rate", gpus=live.gpus, plan=live.mix, mix=mix, promised=promised, measured=rate, part=rate / promised,
        statuses=dict(statuses), replicas={name: each.replicas for name, each in plan.models[MODEL].options.items()},
    )  # fmt: skip


async def measure_system(
    live: LivePlan, system: System, loads: Sequence[float], others: Sequence[str]
) -> list[dict[str, Any]]:
    """Pairs of the plan's own mix at ``loads``, what it serves of it, and what it serves of ``others``."""
    plan = await live.plan(system)
    found, promised = [], promised_rate(plan)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=system.url, timeout=600, limits=limits) as http:
        for load in loads:
            found.append(await measure_pair(live, http, plan, live.mix, load))
        for mix in (live.mix, *others):
            found.append(await measure_rate(live, http, plan, mix, promised))
    return found


# All of them


def questions(gpus: Sequence[int], mixes: Sequence[str], pairs: int) -> Iterator[tuple[int, str, tuple[float, ...]]]:
    """GPUs, mix and loads of each system, with ``pairs`` in all."""
    left = pairs
    systems = [(number, mix) for number in gpus for mix in mixes]
    for place, (number, mix) in enumerate(systems):
        wanted = min(left, len(LOADS) if left > len(systems) - place else 1)
        loads = LOADS[:wanted]
        left -= len(loads)
        yield number, mix, loads


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    served = {(row["gpus"], row["plan"], row["mix"]): row["measured"] for row in rows if row["what"] == "rate"}
    adapted = [
        rate / served[gpus, DECLARED, mix]
        for (gpus, plan, mix), rate in served.items()
        if plan == mix != DECLARED and (gpus, DECLARED, mix) in served
    ]
    parts = [row["part"] for row in rows if row["what"] == "rate" and row["plan"] == row["mix"]]
    errors = [abs(row["error"]) for row in rows if row["what"] == "pair"]
    return {
        **({"plan.live_over_promised.least": min(parts), "plan.live_over_promised.most": max(parts)} if parts else {}),
        **({"plan.live_adapted_over_static": min(adapted)} if adapted else {}),
        **({"whatif.live_p99_error": max(errors), "whatif.live_pairs": len(errors)} if errors else {}),
    }


def main() -> None:
    """Print a line for each measurement, and the figures."""
    options = argparse.ArgumentParser(description="Measure plans against live systems of simulated executors.")
    options.add_argument("--gpus", type=int, action="append", help=f"only so many GPUs {GPUS}")
    options.add_argument("--mix", choices=MIXES, action="append", help="only this mix")
    options.add_argument("--pairs", type=int, default=20, help="pairs of trace and plan (20)")
    options.add_argument("--no-static", action="store_true", help="leave out other mixes on the declared plan")
    asked = options.parse_args()
    mixes, rows = asked.mix or list(MIXES), []
    for gpus, mix, loads in questions(asked.gpus or GPUS, mixes, asked.pairs):
        others = [] if asked.no_static or mix != DECLARED else [each for each in mixes if each != DECLARED]
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="omnibus-live-")))
            live = LivePlan(directory, gpus, mix)
            system = live.start(stack)
            rows += asyncio.run(measure_system(live, system, loads, others))
    print(json.dumps({name: round(value, 4) for name, value in figures(rows).items()}))


if __name__ == "__main__":
    main()
