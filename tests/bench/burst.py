"""A burst of images that the planner must absorb.

    python -m tests.bench.burst [-v]
    python -m tests.bench.burst --spares 8     # with so many spare executors of each component

All of Omnibus runs, with ``sim`` executors on 24 places. Four requests a second have one image each, then ten images
each for 75 s. Encoding work then grows tenfold, which exceeds one encoder. The benchmark measures:

- The number of rejected requests.
- Seconds from the first request with ten images until the last added executors serve.
- Seconds until latency has recovered. The 99th percentile of later requests must be within twice the time of a request
  with ten images alone.

Spares serve from the first request. Added executors then replace them.
"""

import argparse
import asyncio
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
from PIL import Image

from omnibus import profile as profiles
from omnibus.profile import CostLine
from omnibus.store import Store
from tests.bench.cases import BURST
from tests.e2e.planned import cell
from tests.e2e.questions import make_question
from tests.e2e.system import System, start_system

PLACES, RATE = 24, 4.0
CALM_SECONDS, BURST_SECONDS = 30.0, 75.0
FEW, MANY = 1, 10  # images of a request
SLOWER = 2.0  # within so many times what a request takes alone
SETTINGS = {
    "OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim",
    "OMNIBUS_GATEWAY_RECORD": "digest",
}
#: Pixels of an image that has as many tokens by its family's rule as the simulated encoder makes of any: gateways
#: estimate what real encoders make.
WIDTH, HEIGHT = 560, 420


class BurstAnswer(NamedTuple):
    """One answer: when its request was sent, its seconds, and its status."""

    at: float
    seconds: float
    status: int


def measured_profile() -> profiles.ModelProfile:
    """Profile of ``cell`` with a line per component, as ``omnibus profile`` measures them."""
    cell_profile = cell.make_profile(image_share=1.0)
    encoder, thinker = (cell_profile.options[name].work[0].seconds for name in ("E", "L"))
    prompt = cell.SLOWER * cell.SIMULATED["default"]["components"][cell.THINKER]["batch"]["per_token"]
    answer = (thinker - prompt * (cell.WORDS + cell.IMAGE)) / cell.ANSWER
    lines = {
        cell.VISION: CostLine(0.0, {"image_tokens": encoder / cell.IMAGE}),
        cell.THINKER: CostLine(0.0, {"prompt_tokens": prompt, "completion_tokens": answer}),
    }
    return msgspec.structs.replace(cell_profile, lines=lines)


def make_picture() -> dict[str, Any]:
    """An image as a part of a message; the model ignores its content, so it has one colour."""
    png = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), (40, 90, 160)).save(png, "PNG")
    part: dict[str, Any] = make_question(("image", png.getvalue())).messages[0]["content"][0]
    return part


PICTURE = make_picture()


async def send_request(http: httpx.AsyncClient, images: int, number: int) -> BurstAnswer:
    content = [*[PICTURE] * images, {"type": "text", "text": f"question {number:06d} ".ljust(4 * cell.WORDS, ".")}]
    body = {"model": cell.MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 64}
    began = time.monotonic()
    answer = await http.post("/v1/chat/completions", json=body)
    return BurstAnswer(began, time.monotonic() - began, answer.status_code)


async def send_burst(http: httpx.AsyncClient, images: int, seconds: float) -> list[BurstAnswer]:
    """Send requests at ``RATE`` without waiting for answers; return once all have ended."""
    tasks = []
    for number in range(int(seconds * RATE)):
        tasks.append(asyncio.create_task(send_request(http, images, number)))
        await asyncio.sleep(1 / RATE)
    return await asyncio.gather(*tasks)


async def note_plans(store: Store, plans: list[tuple[float, str, dict[str, int]]]) -> None:
    """Record each new plan: its time, reason, and replicas."""
    epoch = 0
    while True:
        plan = await store.plan()
        if plan is not None and plan.epoch != epoch and cell.MODEL in plan.models:
            epoch = plan.epoch
            options = plan.models[cell.MODEL].options
            plans.append((time.monotonic(), plan.reason, {name: each.replicas for name, each in options.items()}))
        await asyncio.sleep(0.2)


def compute_p99(answers: list[BurstAnswer]) -> float:
    seconds = sorted(each.seconds for each in answers)
    return seconds[max(0, -(-99 * len(seconds) // 100) - 1)]


def seconds_until_back(answers: list[BurstAnswer], onset: float, within: float) -> float:
    """Seconds after ``onset`` until requests, except 1 %, take no longer than ``within``."""
    by_time = sorted(answers)
    for place, each in enumerate(by_time):
        if compute_p99(by_time[place:]) <= within:
            return each.at - onset
    return BURST_SECONDS


async def measure_burst(system: System) -> dict[str, Any]:
    plans: list[tuple[float, str, dict[str, int]]] = []
    async with (
        system.store() as store,
        httpx.AsyncClient(base_url=system.url, timeout=130, limits=httpx.Limits(max_connections=None)) as http,
    ):
        noting = asyncio.create_task(note_plans(store, plans))
        alone = [(await send_request(http, MANY, number)).seconds for number in range(3)]
        calm = await send_burst(http, FEW, CALM_SECONDS)
        onset = time.monotonic()
        burst = await send_burst(http, MANY, BURST_SECONDS)
        noting.cancel()
    for at, reason, replicas in plans:
        print(f"{at - onset:6.1f} s  {replicas}  {reason}", file=sys.stderr)
    statuses = [each.status for each in (*calm, *burst)]
    within = SLOWER * max(alone)
    counts = [sum(replicas.values()) for _, _, replicas in plans]
    largest = next(at for (at, _, _), count in zip(plans, counts, strict=True) if count == max(counts))
    return {
        "burst.refused": float(sum(status != 200 for status in statuses)),
        "burst.scaled_s": round(largest - onset, 1),
        "burst.p99_back_s": round(seconds_until_back([each for each in burst if each.status == 200], onset, within), 1),
        "burst.p99_calm_s": round(compute_p99(calm), 2),
        "burst.p99_burst_s": round(compute_p99(burst), 2),
        "burst.alone_s": round(max(alone), 2),
        "burst.executors": max(counts),
    }


def main() -> None:
    """Print the figures as JSON; goals that are missed are named on stderr."""
    arguments = argparse.ArgumentParser(description="Measure a burst of images that the planner meets.")
    arguments.add_argument("--spares", type=int, default=0, help="spare executors of each component (0)")
    arguments.add_argument("-v", action="store_true", dest="verbose", help="print the system's log")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="omnibus-burst-") as directory:
        times_path, profile_path = Path(directory, "simulated.json"), Path(directory, "profile.json")
        times_path.write_bytes(msgspec.json.encode(cell.SIMULATED))
        profile_path.write_bytes(profiles.encode_profile(measured_profile()))
        plan_settings: dict[str, Any] = {
            "profile": str(profile_path),
            "goal": "gpus",
            "rate": RATE,
            "mix": {cell.SEEN: 1.0},
        }
        plan_settings["spares"] = options.spares
        model = {"family": cell.FAMILY, "checkpoint": str(times_path), "planned": plan_settings}
        more = {"gpus": {"cpu": {"count": PLACES}}}
        with start_system(Path(directory), {cell.MODEL: model}, more=more, **SETTINGS) as system:
            figures = asyncio.run(measure_burst(system))
            if options.verbose:
                print(system.log[-20_000:], file=sys.stderr)
    print(json.dumps(figures))
    for name, (unit, goal) in BURST.items():
        if figures[name] > goal:
            print(f"{name} is {figures[name]:g} {unit}, {goal:g} at most", file=sys.stderr)


if __name__ == "__main__":
    main()
