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
from tests.e2e.questions import ask
from tests.e2e.system import System, running

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


class Answer(NamedTuple):
    """One answer: when its request was sent, its seconds, and its status."""

    at: float
    seconds: float
    status: int


def measured_profile() -> profiles.ModelProfile:
    """Profile of ``cell`` with a line per component, as ``omnibus profile`` measures them."""
    found = cell.profile(seen=1.0)
    encoder, thinker = (found.options[name].work[0].seconds for name in ("E", "L"))
    prompt = cell.SLOWER * cell.SIMULATED["default"]["components"][cell.THINKER]["batch"]["per_token"]
    answer = (thinker - prompt * (cell.WORDS + cell.IMAGE)) / cell.ANSWER
    lines = {
        cell.VISION: CostLine(0.0, {"image_tokens": encoder / cell.IMAGE}),
        cell.THINKER: CostLine(0.0, {"prompt_tokens": prompt, "completion_tokens": answer}),
    }
    return msgspec.structs.replace(found, lines=lines)


def picture() -> dict[str, Any]:
    """An image as a part of a message; the model ignores its content, so it has one colour."""
    png = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), (40, 90, 160)).save(png, "PNG")
    part: dict[str, Any] = ask(("image", png.getvalue())).messages[0]["content"][0]
    return part


PICTURE = picture()


async def request(http: httpx.AsyncClient, images: int, number: int) -> Answer:
    content = [*[PICTURE] * images, {"type": "text", "text": f"question {number:06d} ".ljust(4 * cell.WORDS, ".")}]
    body = {"model": cell.MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 64}
    began = time.monotonic()
    answer = await http.post("/v1/chat/completions", json=body)
    return Answer(began, time.monotonic() - began, answer.status_code)


async def send(http: httpx.AsyncClient, images: int, seconds: float) -> list[Answer]:
    """Send requests at ``RATE`` without waiting for answers; return once all have ended."""
    tasks = []
    for number in range(int(seconds * RATE)):
        tasks.append(asyncio.create_task(request(http, images, number)))
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


def p99(answers: list[Answer]) -> float:
    seconds = sorted(each.seconds for each in answers)
    return seconds[max(0, -(-99 * len(seconds) // 100) - 1)]


def seconds_until_back(answers: list[Answer], onset: float, within: float) -> float:
    """Seconds after ``onset`` until requests, except 1 %, take no longer than ``within``."""
    ordered = sorted(answers)
    for place, each in enumerate(ordered):
        if p99(ordered[place:]) <= within:
            return each.at - onset
    return BURST_SECONDS


async def measure(system: System) -> dict[str, Any]:
    plans: list[tuple[float, str, dict[str, int]]] = []
    async with (
        system.store() as store,
        httpx.AsyncClient(base_url=system.url, timeout=130, limits=httpx.Limits(max_connections=None)) as http,
    ):
        noting = asyncio.create_task(note_plans(store, plans))
        alone = [(await request(http, MANY, number)).seconds for number in range(3)]
        calm = await send(http, FEW, CALM_SECONDS)
        onset = time.monotonic()
        burst = await send(http, MANY, BURST_SECONDS)
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
        "burst.p99_calm_s": round(p99(calm), 2),
        "burst.p99_burst_s": round(p99(burst), 2),
        "burst.alone_s": round(max(alone), 2),
        "burst.executors": max(counts),
    }


def main() -> None:
    """Print the figures as JSON; goals that are missed are named on stderr."""
    arguments = argparse.ArgumentParser(description="Measure a burst of images that the planner meets.")
    arguments.add_argument("--spares", type=int, default=0, help="spare executors of each component (0)")
    arguments.add_argument("-v", action="store_true", dest="verbose", help="print the system's log")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="omnibus-burst-") as directory:
        simulated, measured = Path(directory, "simulated.json"), Path(directory, "profile.json")
        simulated.write_bytes(msgspec.json.encode(cell.SIMULATED))
        measured.write_bytes(profiles.encode_profile(measured_profile()))
        planned: dict[str, Any] = {"profile": str(measured), "goal": "gpus", "rate": RATE, "mix": {cell.SEEN: 1.0}}
        planned["spares"] = asked.spares
        model = {"family": cell.FAMILY, "checkpoint": str(simulated), "planned": planned}
        more = {"gpus": {"cpu": {"count": PLACES}}}
        with running(Path(directory), {cell.MODEL: model}, more=more, **SETTINGS) as system:
            found = asyncio.run(measure(system))
            if asked.verbose:
                print(system.log[-20_000:], file=sys.stderr)
    print(json.dumps(found))
    for name, (unit, goal) in BURST.items():
        if found[name] > goal:
            print(f"{name} is {found[name]:g} {unit}, {goal:g} at most", file=sys.stderr)


if __name__ == "__main__":
    main()
