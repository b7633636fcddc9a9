"""Answers are charged their engine time exactly once, at planned prices."""

import asyncio
import contextlib
from collections import defaultdict
from typing import Any

import httpx
import pytest

from omnibus.bus.nats import NatsBus
from tests.e2e.omni.speech import make_speech_body
from tests.e2e.questions import OMNI_QUESTIONS, VL_QUESTIONS
from tests.e2e.system import VL, System
from tests.e2e.together.conftest import PRICE_PER_HOUR

pytestmark = pytest.mark.e2e

#: Part by which charges and busy seconds may differ: a step that an engine is ahead of the last answer's end is charged
#: to whom comes next.
TOLERANCE = 0.01
_SETTLED_WITHIN = 60.0  # seconds
_LOOK_SECONDS = 0.5

#: Seconds of executors by their model and option.
Busy = dict[tuple[str, str], float]


async def busy_seconds(system: System, bus: NatsBus) -> Busy:
    """Busy seconds that each executor reports."""
    left, totals = set(system.executors), defaultdict[tuple[str, str], float](float)
    async with contextlib.aclosing(system.statuses(bus)) as stream:
        async for status in stream:
            if status.id in left and status.state == "ready":
                left.remove(status.id)
                totals[status.model, status.option] += sum(status.busy)
            if not left:
                break
    return totals


async def settled_seconds(system: System, bus: NatsBus) -> Busy:
    """The same once no engine computes any more."""
    async with asyncio.timeout(_SETTLED_WITHIN):
        before = await busy_seconds(system, bus)
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = await busy_seconds(system, bus)
            if now == before:
                return now
            before = now


async def send_and_charge(http: httpx.AsyncClient, body: dict[str, Any], charges: Busy) -> float:
    """Send ``body``, add its charged seconds to ``charges``, and return the money."""
    answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-usage": "1"})
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]["omnibus"]
    assert usage["complete"]
    for stage in usage["stages"]:
        charges[body["model"], stage["option"]] += stage["seconds"]
    assert usage["currency"] == "EUR"
    return float(usage["money"])


async def test_charges_of_all_answers_are_the_seconds_that_executors_were_busy(together: System):
    image_bodies = [
        {"model": VL, "messages": VL_QUESTIONS[name].messages, "max_tokens": length, "ignore_eos": True}
        for name, length in (("text", 40), ("image", 24), ("two images", 32), ("text", 8), ("video", 16))
    ]
    speech_bodies = [make_speech_body(OMNI_QUESTIONS[name]) for name in ("text", "image", "audio", "image and audio")]
    charges = defaultdict[tuple[str, str], float](float)

    async with together.bus() as bus, together.http() as http:
        before = await settled_seconds(together, bus)
        money = await asyncio.gather(
            *(send_and_charge(http, body, charges) for body in [*image_bodies, *speech_bodies, *image_bodies])
        )
        after = await settled_seconds(together, bus)

    work_seconds = {option: seconds for option in after if (seconds := after[option] - before[option]) > 0}
    assert charges.keys() == work_seconds.keys()
    assert sum(charges.values()) == pytest.approx(sum(work_seconds.values()), rel=TOLERANCE)
    assert sum(money) == pytest.approx(sum(work_seconds.values()) * PRICE_PER_HOUR / 3600, rel=TOLERANCE)
