"""Two API keys at ten to one above capacity: what the light one notices of the heavy one.

    python -m tests.bench.fair

The town of ``tests/e2e/safe``: real services with TLS and users on the bus, an executor that simulates eight sequences
at a time, about sixteen requests a second. The light tenant sends three a second, alone and then beside thirty of the
heavy one's, whether or not earlier ones are answered.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.bench.cases import LIGHT_P99, LIGHT_SERVED
from tests.e2e.safe.test_fair import RATES, Served, offer
from tests.e2e.safe.town import HEAVY, LIGHT, Town, town

SECONDS = 40.0


def p99(served: list[Served]) -> float:
    took = sorted(each.took for each in served if each.status == 200)
    return took[int(0.99 * (len(took) - 1))]


async def measure(there: Town) -> dict[str, float]:
    alone = await offer(there, LIGHT, SECONDS)
    light, heavy = await asyncio.gather(offer(there, LIGHT, SECONDS), offer(there, HEAVY, SECONDS))
    served = {who: sum(each.status == 200 for each in found) for who, found in ((LIGHT, light), (HEAVY, heavy))}
    for who, found in (("light alone", alone), ("light", light), ("heavy", heavy)):
        rate = sum(each.status == 200 for each in found) / SECONDS
        print(f"{who}: {len(found)} asked, {rate:.1f}/s served, p99 {p99(found):.2f} s", file=sys.stderr)
    return {LIGHT_P99: p99(light) / p99(alone), LIGHT_SERVED: served[LIGHT] / (RATES[LIGHT] * SECONDS)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, town(Path(directory)) as made:
        print(json.dumps(asyncio.run(measure(made))))
