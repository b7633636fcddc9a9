"""Each executor loads only its own components."""

import json
from pathlib import Path
from typing import Any

import nats
import pytest

from tests import models_oracle as oracle
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

LOADED = {
    "EV": {"vision"},
    "EA": {"audio"},
    "Th": {"thinker"},
    "Ta": {"talker"},
    "V": {"vocoder"},
    "M": {"vision", "audio", "thinker", "talker", "vocoder"},
}


async def count_parameters(omni: System) -> dict[str, dict[str, int]]:
    """Option to component to parameter count, as `nats service stats` shows them."""
    nc = await nats.connect(omni.state.nats_url)
    inbox = nc.new_inbox()
    answers = await nc.subscribe(inbox)
    await nc.publish("$SRV.STATS", b"", reply=inbox)
    statistics: list[dict[str, Any]] = [json.loads((await answers.next_msg(timeout=10)).data) for _ in LOADED]
    await nc.close()
    return {
        one["metadata"]["option"]: {end["name"].split("-")[-1]: end["data"]["parameters"] for end in one["endpoints"]}
        for one in statistics
    }


async def test_an_executor_loads_the_components_of_its_option_alone(omni: System):
    counts = await count_parameters(omni)

    assert {option: set(components) for option, components in counts.items()} == LOADED


async def test_the_components_together_are_the_whole_model(omni: System, omni_checkpoint: Path):
    counts = await count_parameters(omni)
    together = counts.pop("M")
    single = {name: count for components in counts.values() for name, count in components.items()}

    whole = sum(each.numel() for each in oracle._load_omni(omni_checkpoint)[0].parameters())
    assert single == together
    assert sum(single.values()) == whole
    assert all(0 < count < whole for count in single.values())
    assert max(single["vision"], single["audio"]) < single["thinker"]
