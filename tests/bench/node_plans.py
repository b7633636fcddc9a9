"""Predictions of a plan over two nodes, compared with the running system.

    python -m tests.bench.node_plans

Two nodes run in network namespaces, an encoder on one and a language model on the other. The embedding of every image
therefore crosses a cable of 10 Gbit/s. Engines are simulated: they sleep instead of computing, but send real data.
Gateway, bus, sidecars and cables are real. The planner gets an accurate profile of these engines, and the declared
nodes.

    nodes.predicted_over_measured      the capacity of the plan, over the answers per second with more requests at once
                                       than are needed to saturate the cable
    nodes.p99_predicted_over_measured  the 99th percentile that ``omnibus whatif`` gives for requests at random times, over
                                       that of the same requests at the same times

Engines and cable run ``SLOWNESS`` times slower, so other load on this machine counts less. All figures are in the time
of the original system.
"""

import asyncio
import contextlib
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from omnibus import profile as profiles
from omnibus.executor.sim import Profile, TypeDemand, decode_profile, predict_performance
from omnibus.plan import Plan
from omnibus.profile import EdgeProfile, ModelProfile, OptionProfile, RoleCost, TypeProfile
from omnibus.store import Store
from omnibus_planner.declared.model import DeclaredModel, Model
from omnibus_planner.simulate.arrivals import Arrival, TypeRate, poisson_arrivals
from omnibus_planner.simulate.devices import simulated_devices
from omnibus_planner.simulate.outcome import percentile
from omnibus_planner.simulate.run import WARM_UP_FRACTION
from omnibus_planner.simulate.saturate import RoleRate, saturated_rate
from tests.e2e.questions import make_image, make_question
from tests.nodes.namespaces import Node, Switch
from tests.nodes.system import NamespaceSystem, network_of, node_settings

SLOWNESS = float(os.environ.get("OMNIBUS_TEST_SLOWNESS", "4"))
LINK_GBIT = 10.0
MODEL, FAMILY = "vl", "qwen2_5_vl"
VISION, THINKER = "vision", "thinker"
SEEN = "vision+thinker"
#: Tokens of an image and numbers of each, of 4 bytes: 40 MB, a thirtieth of a second of the cable.
IMAGE, WIDTH = 2440, 4096
WORDS, ANSWER = 40, 12
ENGINES: dict[str, Any] = {
    "seed": 1,
    "jitter": 0.05,
    "default": {
        "startup": 0.2,
        "components": {
            VISION: {
                "slots": 4, "batch": {"points": [[1, 0.015], [4, 0.045]]}, "tokens": {"image": IMAGE}, "width": WIDTH,
            },
            THINKER: {
                "slots": 16, "chunk": 16, "batch": {"base": 0.004, "per_token": 1e-6},
                "step": {"base": 0.004, "per_item": 1e-4}, "steps": ANSWER,
            },
        },
    },
}  # fmt: skip
OPTIONS = {"E": ("encoder", VISION), "L": ("llm", THINKER)}
SIZES = {"prompt_tokens": float(WORDS + IMAGE), "image_tokens": float(IMAGE), "completion_tokens": float(ANSWER)}
#: Requests at a time that use the cable up, and seconds of that, of the system that is meant.
AT_ONCE, STEADY_SECONDS = 12, 10.0
#: Part of the capacity at which latencies are compared, and seconds of it.
LOAD, LATENCY_SECONDS = 0.6, 20.0
_START_SECONDS, _REQUEST_SECONDS, _WHATIF_SECONDS = 120.0, 60.0, 120.0
_ARENA_MIB = 3072


class Latency(NamedTuple):
    """Median and 99th percentile, in seconds."""

    median: float
    p99: float


def engine_times() -> Profile:
    return decode_profile(json.dumps(_make_engines()).encode())


def _make_engines() -> dict[str, Any]:
    return {**ENGINES, "time_scale": SLOWNESS}


def measured_profile() -> ModelProfile:
    """Seconds of full replicas and of single requests, and bytes between components."""
    times = engine_times()
    model = Model(MODEL, DeclaredModel(FAMILY, "times.json"))
    devices = simulated_devices(model.components, model.kinds, model.encoders, times)
    options = {}
    for name, (service, part) in OPTIONS.items():
        role = frozenset({part})
        alone = predict_performance(
            times, name, {SEEN: TypeDemand(1.0, devices.role_loads(role, SIZES))}, inflight=1, requests=20
        )
        first = SLOWNESS * (0.004 + 1e-6 * (WORDS + IMAGE)) if part == THINKER else 0.0
        cost = RoleCost(
            (part,),
            1 / saturated_rate(devices, name, [RoleRate(role, 1.0, SIZES)]),
            SEEN,
            1 / alone.throughput,
            first,
        )
        options[name] = OptionProfile((part,), service=service, gpu="cpu", work=(cost,))
    return ModelProfile(
        model=MODEL,
        family=FAMILY,
        components=(VISION, THINKER),
        order=((VISION, THINKER),),
        types={SEEN: TypeProfile((VISION, THINKER), 1.0, SIZES)},
        options=options,
        edges=(EdgeProfile(VISION, THINKER, 4.0 * IMAGE * WIDTH, SEEN),),
    )


def write_declarations(directory: Path) -> dict[str, Any]:
    """Write ``times.json`` and ``profile.json``, and return the declarations of models and nodes."""
    (directory / "times.json").write_text(json.dumps(_make_engines()))
    (directory / "profile.json").write_bytes(profiles.encode_profile(measured_profile()))
    node = {"gpus": 1, "gpu": "cpu", "link_gb_s": LINK_GBIT / 8 / SLOWNESS}
    plan_settings = {"profile": str(directory / "profile.json"), "goal": "throughput"}
    model = {"family": FAMILY, "checkpoint": str(directory / "times.json"), "planned": plan_settings}
    return {"models": {MODEL: model}, "nodes": {"n1": node, "n2": node}}


@contextlib.contextmanager
def run_two_nodes() -> Iterator[tuple[NamespaceSystem, Node, Path]]:
    """Run the system over two nodes.

    Yields it, the node that is not the gateway's, and a directory with its declarations.
    """
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="omnibus-plan-")))
        switch = stack.enter_context(Switch())
        node = stack.enter_context(switch.add_node("n1"))
        node.limit_rate(f"{LINK_GBIT * 1000 / SLOWNESS:.0f}mbit")
        declarations = write_declarations(directory)
        settings = {
            **node_settings(switch, [node]),
            "OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim",
            "OMNIBUS_SIDECAR_ARENA_MIB": str(_ARENA_MIB),
            "OMNIBUS_GATEWAY_RECORD": "digest",
            "OMNIBUS_PLANNER_LEAST": "1000000",  # the plan stays as it is
        }
        more = {"nodes": declarations["nodes"]}
        system = NamespaceSystem(directory, declarations["models"], settings, ("--nodes", "2"), more)
        with network_of(switch.first_process):
            try:
                system.start()
                yield system, node, directory
            except BaseException:
                print(system.log[-8000:], file=sys.stderr)
                raise
            finally:
                system.stop()


async def current_plan(system: NamespaceSystem) -> Plan:
    """Return the plan once its executors are ready."""
    await system.whole(_START_SECONDS, [f"{MODEL}-E-0", f"{MODEL}-L-0"])
    async with system.store() as store:
        return await _first_plan(store)


async def _first_plan(store: Store) -> Plan:
    async with asyncio.timeout(_START_SECONDS):
        while (plan := await store.plan()) is None:
            await asyncio.sleep(0.1)
    return plan


class Asker:
    """Sends image questions; ``done`` are the times of answers, ``seconds`` their latencies."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.done: list[float] = []
        self.seconds: list[float] = []
        self._http = http
        self._numbers = count()
        self._image = make_question(make_image(1, 32, 24)).messages[0]["content"][0]

    async def send_question(self) -> None:
        words = f"question {next(self._numbers):06d} ".ljust(4 * WORDS, ".")
        content = [self._image, {"type": "text", "text": words}]
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": ANSWER}
        began = time.monotonic()
        answer = await self._http.post("/v1/chat/completions", json=body)
        if answer.status_code != 200:
            raise RuntimeError(answer.text)
        self.done.append(time.monotonic())
        self.seconds.append(self.done[-1] - began)


async def measure_rate(asker: Asker) -> float:
    """Answers per second with ``AT_ONCE`` requests at all times."""
    began = time.monotonic()
    end = began + STEADY_SECONDS * SLOWNESS

    async def ask_on() -> None:
        while time.monotonic() < end:
            await asker.send_question()

    await asyncio.gather(*(ask_on() for _ in range(AT_ONCE)))
    steady = began + WARM_UP_FRACTION * (end - began)
    return sum(steady < moment <= end for moment in asker.done) / (end - steady)


async def measure_arrivals(http: httpx.AsyncClient, arrivals: Sequence[Arrival]) -> Latency:
    """Send requests at the times of ``arrivals``; the first part of them is not counted, as in a simulation."""
    began = time.monotonic()
    askers: list[Asker] = []
    async with asyncio.TaskGroup() as group:
        for arrival in arrivals:
            await asyncio.sleep(max(0.0, began + arrival.at - time.monotonic()))
            asker = Asker(http)
            askers.append(asker)
            group.create_task(asker.send_question())
    warm = WARM_UP_FRACTION * LATENCY_SECONDS * SLOWNESS
    pairs = zip(askers, arrivals, strict=True)
    seconds = sorted(asker.seconds[0] for asker, arrival in pairs if arrival.at >= warm)
    return Latency(percentile(seconds, 0.5), percentile(seconds, 0.99))


def predict_latency(system: NamespaceSystem, directory: Path, arrivals: Sequence[Arrival]) -> Latency:
    """Run ``omnibus whatif`` on the current plan (declared in ``directory``) and these requests."""
    trace = directory / "trace.csv"
    with trace.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("t_s", "num_images", "image_tokens", "text_tokens", "output_tokens"))
        rows.writerows((each.at, 1, IMAGE, WORDS, ANSWER) for each in arrivals)
    process = system.command(
        *("whatif", "--plan", "current", "--models", str(directory / "models.json"), "--json"),
        *("--trace", str(trace), "--seconds", str(LATENCY_SECONDS * SLOWNESS)),
    )
    output, _ = process.communicate(timeout=_WHATIF_SECONDS)
    if process.returncode:
        raise RuntimeError(output)
    [row] = msgspec.json.decode(output)["types"]
    return Latency(row["median"]["done"], row["p99"]["done"])


async def measure_node_plans(system: NamespaceSystem, node: Node, directory: Path) -> dict[str, float]:
    plan = await current_plan(system)
    promised_rate = float(plan.explain["planned"]["models"][MODEL]["capacity"])
    seconds = LATENCY_SECONDS * SLOWNESS
    arrivals = list(poisson_arrivals([TypeRate(MODEL, SEEN, LOAD * promised_rate, SIZES)], seconds))
    limits = httpx.Limits(max_connections=512, max_keepalive_connections=512)
    async with httpx.AsyncClient(base_url=system.url, timeout=_REQUEST_SECONDS, limits=limits) as http:
        await measure_arrivals(http, [each for each in arrivals if each.at < 0.2 * seconds])  # memory is touched
        before = node.received_bytes()
        live = await measure_arrivals(http, arrivals)
        bytes_per_request = (node.received_bytes() - before) / len(arrivals)
        rate = await measure_rate(Asker(http))
    if bytes_per_request < 4 * IMAGE * WIDTH:
        raise RuntimeError(
            f"{bytes_per_request:.0f} bytes crossed for a request: the plan was to be one over both nodes"
        )
    prediction = await asyncio.to_thread(predict_latency, system, directory, arrivals)
    rates = f"{promised_rate * SLOWNESS:.2f} req/s promised, {rate * SLOWNESS:.2f} measured"
    print(f"{rates}; {len(arrivals)} requests: {prediction} predicted, {live} measured", file=sys.stderr)
    return {
        "nodes.predicted_over_measured": round(promised_rate / rate, 4),
        "nodes.p99_predicted_over_measured": round(prediction.p99 / live.p99, 4),
    }


if __name__ == "__main__":
    with run_two_nodes() as made:
        print(json.dumps(asyncio.run(measure_node_plans(*made))))
