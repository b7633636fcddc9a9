"""Share of quotes within 15 % of actual use: ``python -m tests.bench.quotes``.

A whole system of simulated executors, with the times of ``examples/simulated``, serves a sample of the example workload
(``examples/workload.json``), several requests at a time. Each request gets a quote first, with a price for each path.
The price of the path that it then takes is compared with its actual use. Executors learn nothing from this. The gateway
fits the seconds of each stage to earlier requests, including those of the warm-up.

    python -m tests.bench.quotes table    # by kind of request as well
"""

import asyncio
import json
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from omnibus.families import catalog
from omnibus.profiling.measured_model import Subject
from omnibus.profiling.workload import WorkloadRequest, read_workload
from tests.bench.cases import QUOTES
from tests.e2e.system import System, declare_model, start_system

ROOT = Path(__file__).parents[2]

FAMILY, MODEL = "qwen2_5_vl", "vl"
WORKLOAD, TIMES = ROOT / "examples" / "workload.json", ROOT / "examples" / "simulated" / "times.json"
SETTINGS = {"OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim", "OMNIBUS_EXECUTOR_CREDITS": "64"}
#: Requests at a time; those from which the gateway learns first, and those whose quotes count.
AT_ONCE, WARM, COUNTED = 4, 500, 200
#: Times of the simulated executors, as a part of those of the example.
TIME_SCALE = 0.5
#: Part of what was used that a quote may be off.
TOLERANCE = 0.15
_TIMEOUT_SECONDS = 60.0

#: Quoted and used GPU-seconds of requests, by what they are.
Found = dict[str, list[tuple[float, float]]]


def sample_requests(seed: int = 1) -> Iterator[WorkloadRequest]:
    """Yield requests of the example workload by their shares, endlessly."""
    family = catalog.find_family(FAMILY)
    subject = Subject(
        MODEL, FAMILY, "", tuple(family["tasks"]), family["encoders"], {}, (), {}, declare_model(FAMILY, TIMES), {}
    )
    requests = read_workload(WORKLOAD, subject).requests
    chance = random.Random(seed)
    while True:
        yield chance.choices(requests, [each.share for each in requests])[0]


def write_times(directory: Path, scale: float) -> Path:
    """Write the example's times, multiplied by ``scale``."""
    times = directory / "times.json"
    times.write_text(json.dumps({**json.loads(TIMES.read_text()), "time_scale": scale}))
    return times


def read_whole_body(request: WorkloadRequest) -> bytes:
    """The body of ``request`` for an answer in one piece."""
    body = json.loads(request.body)
    return json.dumps({name: value for name, value in body.items() if not name.startswith("stream")}).encode()


async def compare_quote(http: httpx.AsyncClient, body: bytes, *, quoted: bool) -> tuple[float, float]:
    """GPU-seconds by a request's quote for its actual path, and those used.

    The former are 0 if the request is not ``quoted``.
    """
    paths = []
    if quoted:
        quote = await http.post("/v1/chat/completions", content=body, headers={"x-omnibus-quote": "1"})
        quote.raise_for_status()
        paths = [path["usage"] for path in quote.json()["paths"]]
    answer = await http.post("/v1/chat/completions", content=body, headers={"x-omnibus-usage": "1"})
    answer.raise_for_status()
    usage = answer.json()["usage"]["omnibus"]
    estimates = [path["gpu_seconds"] for path in paths if find_options(path) == find_options(usage)]
    return (estimates[0] if quoted else 0.0), usage["gpu_seconds"]


def find_options(usage: dict[str, Any]) -> list[str]:
    """The options of the stages of ``usage``."""
    return [stage["option"] for stage in usage["stages"]]


async def replay_requests(system: System) -> Found:
    """Send the warm-up, then the measured requests, ``AT_ONCE`` at a time."""
    requests, numbers = sample_requests(), iter(range(WARM + COUNTED))
    pairs: Found = defaultdict(list)

    async def send_requests(http: httpx.AsyncClient) -> None:
        for number in numbers:
            request = next(requests)
            pair = await compare_quote(http, read_whole_body(request), quoted=number >= WARM)
            if number >= WARM:
                pairs[f"{'+'.join(request.media) or 'text'} {request.size:.0f}"].append(pair)

    async with httpx.AsyncClient(base_url=system.url, timeout=_TIMEOUT_SECONDS) as http:
        await asyncio.gather(*(send_requests(http) for _ in range(AT_ONCE)))
    return pairs


def share_within(pairs: list[tuple[float, float]]) -> float:
    """The part of quotes that are within the tolerance."""
    return sum(abs(quote / actual - 1) <= TOLERANCE for quote, actual in pairs) / len(pairs)


def measure_quotes() -> Found:
    with (
        tempfile.TemporaryDirectory() as directory,
        start_system(
            Path(directory), {MODEL: declare_model(FAMILY, write_times(Path(directory), TIME_SCALE))}, **SETTINGS
        ) as system,
    ):
        return asyncio.run(replay_requests(system))


def print_table(results: Found) -> None:
    """Print the share of good quotes and mean quoted over used seconds.

    The rows are kinds and sizes of requests.
    """
    for name, pairs in sorted(results.items()):
        mean = sum(quote / actual for quote, actual in pairs) / len(pairs)
        print(
            f"{name:24} {len(pairs):4} requests  {share_within(pairs):6.0%} within  mean ratio {mean:.3f}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    result = measure_quotes()
    if "table" in sys.argv[1:]:
        print_table(result)
    print(json.dumps({name: share_within([pair for each in result.values() for pair in each]) for name in QUOTES}))
