"""Plans against live systems of ``sim`` executors.

    python -m tests.bench.live_plans [--gpus 4] [--mix declared] [--pairs 20] [--requests 1000]
    python -m tests.bench.live_plans --curve [--gpus 4] [--mix declared]

The any-to-any model is that of ``tests/bench/plans.py``, with engines so many times slower that each system serves a
few requests a second. Gateway, bus and client then need little processor time compared with engines, even on a busy
machine. For each number of GPUs and each mix of request types, a system runs the plan of that mix. It gets as many
concurrent requests as measuring its capacity takes, and then traces. ``omnibus whatif`` predicts the latency of the
same requests. The system of the declared mix serves the other mixes as well. On a shared machine, ``--slowness 4``
reduces the effect of other programs.

    plan.live_over_promised     requests a second over those that the plan promises, by GPUs and mix: each 0.9 to 1.1
    plan.live_adapted_over_static  rate of a mix under its own plan, over that under the plan of the declared mix (0.98)
    whatif.live_p99_error       99th percentiles of a trace's answers, against those of ``omnibus whatif`` (0.1)

With ``--curve`` (``make plans``), executors and gateways have their usual limits, and requests come at even times at each
load of the plan's curve:

    plan.live_over_curve.*          requests served a second over the curve, by GPUs, mix and load: 0.95 to 1.10
    plan.live_goodput_200_over_max.*  requests served a second at twice the promise, over the most at any load: 0.9

The benchmark prints a line of JSON for each system and measurement, and the figures at the end.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from omnibus import profile as profiles
from omnibus.plan import Plan
from omnibus_planner.optimize.overload import CURVE_WARM_UP
from omnibus_planner.whatif.__main__ import answer_question
from omnibus_planner.whatif.question import WhatIfQuestion
from tests.bench.live_load import (
    TRACE_REQUESTS,
    ComponentWork,
    RequestNumbers,
    make_trace,
    measure_full,
    observed_goodput,
    observed_percentile,
    replay_trace,
    write_trace,
)
from tests.bench.plans import DECLARED, MIXES
from tests.e2e.planned.omni import MODEL
from tests.e2e.system import System, start_system
from tests.unit.planner.simulate.omni import ENGINES, OPTIONS, TYPES, measured_profile

GPU = "H100"
GPUS = (2, 4, 8)
#: Requests at each load of a curve.
CURVE_REQUESTS = 300
PLANNED_WITHIN_SECONDS = 900.0
#: Parts of what a plan promises at which traces come.
LOADS = (0.7, 0.6, 0.5, 0.4, 0.3)
#: Requests in a full system for each executor. All of an executor that runs everything compute side by side only with 16
#: in its thinker, 16 in its talker and some in the others; with half of that it serves three quarters of what it can.
AT_ONCE_PER_EXECUTOR = 48


class MixPace(NamedTuple):
    """Approximate rate of a mix per GPU, and the system's required rate."""

    served: float
    wanted: float


USUAL_PACE = MixPace(4.0, 3.5)
PACES = {
    DECLARED: MixPace(4.1, 3.5),
    "speech_heavy": MixPace(2.8, 3.0),
    "image_heavy": MixPace(4.5, 4.0),
    "text_only": MixPace(15.0, 6.0),
}
USUAL_SETTINGS = {
    "OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim",
    "OMNIBUS_GATEWAY_DEADLINE": "2400",
    "OMNIBUS_GATEWAY_RECORD": "digest",
    "OMNIBUS_PLANNER_SIMULATE": "5",
    "OMNIBUS_UP_SILENT": "60",  # processes wait for long on a machine that others use
}
#: Settings of a full system, which rejects no request.
UNBOUNDED_SETTINGS = {
    **USUAL_SETTINGS,
    "OMNIBUS_EXECUTOR_CREDITS": "512",
    "OMNIBUS_GATEWAY_MAX_INFLIGHT": "2048",
    "OMNIBUS_GATEWAY_QUEUE_SECONDS": "1200",
}


# One system


class LivePlan:
    """A running system with the plan of a mix on several GPUs.

    It runs ``slowness`` times as slow as otherwise. Its traces have ``requests`` requests.
    """

    def __init__(
        self, directory: Path, gpus: int, mix: str, slowness: float = 1.0, requests: int = TRACE_REQUESTS
    ) -> None:
        self.directory, self.gpus, self.mix, self.requests = directory, gpus, mix, requests
        pace = PACES.get(mix, USUAL_PACE)
        self.stretch = slowness * max(1.0, gpus * pace.served / pace.wanted)
        self.numbers = RequestNumbers()

    def declare_model(self) -> dict[str, Any]:
        """The planned model; writes the times of engines and their profile."""
        times, profile_path = self.directory / "times.json", self.directory / "profile.json"
        times.write_text(json.dumps({**ENGINES, "time_scale": self.stretch}))
        profile_path.write_bytes(profiles.encode_profile(stretch_profile(measured_profile(), self.stretch)))
        shares = dict(zip(TYPES, MIXES[self.mix], strict=True))
        plan_settings = {
            "profile": str(profile_path), "goal": "throughput", "adapt": False, "learn": False,
            "mix": {kind: share for kind, share in shares.items() if share},
        }  # fmt: skip
        return {"family": "qwen2_5_omni", "checkpoint": str(times), "planned": plan_settings}

    def start_system(self, stack: ExitStack, settings: Mapping[str, str]) -> System:
        """Start a system with one executor of the model.

        On a busy machine, planning may exceed the time limit of a start.
        """
        model, more = self.declare_model(), {"gpus": {GPU: {"count": self.gpus, "memory_gb": 80}}}
        parts = {"components": list(OPTIONS["M"]), "service": "llm"}
        first = {name: each for name, each in model.items() if name != "planned"}
        first |= {"options": {"M": parts}, "paths": [{"options": ["M"]}]}
        system = stack.enter_context(start_system(self.directory, {MODEL: first}, more=more, **settings))
        declarations = {**more, "models": {MODEL: model}}
        (self.directory / "models.json").write_text(json.dumps(declarations))
        new_path = Path(system.state.directory, "next.json")  # next to the copy that the planner reads
        new_path.write_text(json.dumps(declarations))
        new_path.replace(Path(system.state.directory, "models.json"))
        return system

    async def plan(self, system: System) -> Plan:
        """The plan, once its executors are ready."""
        async with system.store() as store, asyncio.timeout(PLANNED_WITHIN_SECONDS):
            while True:
                plan, stand = await store.plan(), await store.plan_state()
                if plan is not None and "planned" in plan.explain and not stand.staged:
                    return plan
                await asyncio.sleep(0.2)


def stretch_profile(profile: profiles.ModelProfile, factor: float) -> profiles.ModelProfile:
    """``profile`` of engines that are ``factor`` times as slow."""
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


async def predict_trace(live: LivePlan, plan: Plan, trace: Path) -> dict[str, Any]:
    """Run ``omnibus whatif`` on ``trace`` and ``plan``."""
    plan_path = live.directory / "plan.json"
    plan_path.write_bytes(msgspec.json.encode(plan))
    question = WhatIfQuestion(
        plan=str(plan_path), models=str(live.directory / "models.json"), trace=str(trace), model=MODEL, json=True
    )
    prediction: dict[str, Any] = json.loads(await answer_question(question))
    return prediction


def print_row(**row: Any) -> dict[str, Any]:
    row["load"] = round(sum(map(float, Path("/proc/loadavg").read_text().split()[:1])), 1)
    print(json.dumps({name: round(each, 4) if isinstance(each, float) else each for name, each in row.items()}))
    sys.stdout.flush()
    return row


def open_client(system: System) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=system.url, timeout=2400, limits=httpx.Limits(max_connections=None))


async def measure_pair(live: LivePlan, http: httpx.AsyncClient, plan: Plan, mix: str, load: float) -> dict[str, Any]:
    """One pair of trace and plan."""
    rows = make_trace(mix, load * promised_rate(plan), live.gpus, live.requests)
    trace = live.directory / f"trace-{mix}-{load}.csv"
    write_trace(rows, trace)
    prediction = await predict_trace(live, plan, trace)
    answers = await replay_trace(http, rows, live.numbers)
    predicted_seconds, measured_seconds = prediction["percentiles"]["done"]["0.99"], observed_percentile(answers, 0.99)
    return print_row(
        what="pair", gpus=live.gpus, plan=live.mix, mix=mix, part=load, requests=len(rows), predicted_s=predicted_seconds,
        measured_s=measured_seconds,
        error=measured_seconds / predicted_seconds - 1.0,
        p90_error=observed_percentile(answers, 0.9) / prediction["percentiles"]["done"]["0.9"] - 1.0,
        refused=sum(each.status != 200 for each in answers),
    )  # fmt: skip


async def measure_rate(live: LivePlan, system: System, plan: Plan, mix: str) -> dict[str, Any]:
    """Measure the rate at which ``plan`` serves ``mix``.

    The result is relative to the rate promised for the plan's mix.
    """
    target_rate, replicas = (
        promised_rate(plan),
        {name: each.replicas for name, each in plan.models[MODEL].options.items()},
    )
    result = await measure_full(system, mix, AT_ONCE_PER_EXECUTOR * sum(replicas.values()), target_rate, live.numbers)
    return print_row(
        what="rate", gpus=live.gpus, plan=live.mix, mix=mix, stretch=live.stretch, promised=target_rate,
        measured=result.rate, part=result.rate / target_rate, statuses=dict(result.statuses), replicas=replicas, cpu=result.cpu,
        client_cpu=result.client_cpu, tokens=result.tokens, work={option: rounded_work(parts) for option, parts in result.work.items()},
    )  # fmt: skip


async def measure_curve(live: LivePlan, system: System) -> list[dict[str, Any]]:
    """Goodput of a plan at each load of its curve."""
    plan, rows = await live.plan(system), []
    async with open_client(system) as http:
        for point in plan.explain["planned"]["models"][MODEL]["promise"]["curve"]:
            trace = make_trace(live.mix, point["offered"], live.gpus, CURVE_REQUESTS, even=True)
            answers = await replay_trace(http, trace, live.numbers)
            goodput = observed_goodput(answers, CURVE_WARM_UP)
            rows.append(print_row(
                what="curve", gpus=live.gpus, mix=live.mix, at=round(100 * point["load"]), offered=point["offered"],
                promised=point["goodput"], measured=goodput, part=goodput / point["goodput"],
                refused=sum(each.status != 200 for each in answers),
            ))  # fmt: skip
    return rows


def rounded_work(parts: Mapping[str, ComponentWork]) -> dict[str, list[float]]:
    """Busy time, sequences per step and tokens per pass, by component."""
    return {part: [round(each.busy, 3), round(each.rows, 1), round(each.tokens)] for part, each in parts.items()}


async def measure_system(
    live: LivePlan, system: System, loads: Sequence[float], others: Sequence[str]
) -> list[dict[str, Any]]:
    """Measure a plan with its mix, pairs at ``loads``, and ``other_mixes``."""
    plan = await live.plan(system)
    rows = [await measure_rate(live, system, plan, live.mix)]
    async with open_client(system) as http:
        for load in loads:
            rows.append(await measure_pair(live, http, plan, live.mix, load))
    for mix in others:
        rows.append(await measure_rate(live, system, plan, mix))
    return rows


# All of them


def make_questions(
    gpus: Sequence[int], mixes: Sequence[str], pairs: int
) -> Iterator[tuple[int, str, tuple[float, ...]]]:
    """GPUs, mix and loads of each system, with ``pairs`` in all."""
    left = pairs
    for number, mix in ((number, mix) for number in gpus for mix in mixes):
        yield number, mix, LOADS[:left]
        left = max(0, left - len(LOADS))


def compute_figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    rates = {
        (row["gpus"], row["plan"], row["mix"]): row["measured"] * row["stretch"]
        for row in rows
        if row["what"] == "rate"
    }
    ratios = [
        rate / rates[gpus, DECLARED, mix]
        for (gpus, plan, mix), rate in rates.items()
        if plan == mix != DECLARED and (gpus, DECLARED, mix) in rates
    ]
    parts = [row["part"] for row in rows if row["what"] == "rate" and row["plan"] == row["mix"]]
    errors = [abs(row["error"]) for row in rows if row["what"] == "pair"]
    return {
        **({"plan.live_over_promised.least": min(parts), "plan.live_over_promised.most": max(parts)} if parts else {}),
        **({"plan.live_adapted_over_static": min(ratios)} if ratios else {}),
        **({"whatif.live_p99_error": max(errors), "whatif.live_pairs": len(errors)} if errors else {}),
    }


def compute_curve_figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    figures, most = {}, Counter[tuple[int, str]]()
    for row in rows:
        system = row["gpus"], row["mix"]
        most[system] = max(most[system], row["measured"])
        figures[f"plan.live_over_curve.{row['mix']}.{row['gpus']}.{row['at']}"] = row["part"]
    for row in rows:
        if row["at"] == 200:
            ratio = row["measured"] / most[row["gpus"], row["mix"]]
            figures[f"plan.live_goodput_200_over_max.{row['mix']}.{row['gpus']}"] = ratio
    return figures


def measure_curves(gpus: Sequence[int], mixes: Sequence[str], slowness: float) -> list[dict[str, Any]]:
    rows = []
    for number in gpus:
        for mix in mixes:
            with ExitStack() as stack:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="omnibus-live-")))
                live = LivePlan(directory, number, mix, slowness)
                rows += asyncio.run(measure_curve(live, live.start_system(stack, USUAL_SETTINGS)))
    return rows


def main() -> None:
    """Print a line for each measurement, and the figures."""
    options = argparse.ArgumentParser(description="Measure plans against live systems of simulated executors.")
    options.add_argument("--gpus", type=int, action="append", help=f"only so many GPUs {GPUS}")
    options.add_argument("--mix", choices=MIXES, action="append", help="only this mix")
    options.add_argument("--pairs", type=int, default=20, help="pairs of trace and plan (20)")
    options.add_argument("--requests", type=int, default=TRACE_REQUESTS, help="of a trace (100): the 99th percentile "
                         "of a hundred is the longest of them, one of a thousand the tenth")  # fmt: skip
    options.add_argument("--slowness", type=float, default=1.0, help="times as slow as they are anyway (1)")
    options.add_argument("--no-static", action="store_true", help="leave out other mixes on the declared plan")
    options.add_argument("--curve", action="store_true", help="compare the curves of plans with running systems")
    arguments = options.parse_args()
    mixes, rows = arguments.mix or list(MIXES), []
    if arguments.curve:
        curves = measure_curves(arguments.gpus or GPUS, mixes, arguments.slowness)
        print(json.dumps({name: round(value, 4) for name, value in compute_curve_figures(curves).items()}))
        return
    for gpus, mix, loads in make_questions(arguments.gpus or GPUS, mixes, arguments.pairs):
        other_mixes = [] if arguments.no_static or mix != DECLARED else [each for each in mixes if each != DECLARED]
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="omnibus-live-")))
            live = LivePlan(directory, gpus, mix, arguments.slowness, arguments.requests)
            system = live.start_system(stack, UNBOUNDED_SETTINGS)
            rows += asyncio.run(measure_system(live, system, loads, other_mixes))
    print(json.dumps({name: round(value, 4) for name, value in compute_figures(rows).items()}))


if __name__ == "__main__":
    main()
