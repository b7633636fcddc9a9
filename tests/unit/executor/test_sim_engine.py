"""Engines create runners from a profile and an executor's settings."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.executor.service import load_engine as named
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.sim import Simulation
from omnibus.executor.sim.language import SimulatedDecode
from omnibus.executor.sim.profile import decode_profile
from tests.unit.executor.simulated import (
    ENCODER,
    TALKER,
    Alarm,
    VirtualClock,
    make_chat_job,
    make_profile,
    select_component,
)


def make_settings(**more: Any) -> ExecutorSettings:
    usual = {"model": "m", "family": "qwen2_5_omni", "components": "vision,thinker", "option": "EL"}
    return ExecutorSettings(**{**usual, **more})


@pytest.fixture
def profile_path(tmp_path) -> str:
    document = {"default": {"components": {"vision": {**ENCODER, "kind": ""}, "talker": TALKER, "odd": {"slots": 1}}}}
    (tmp_path / "profile.json").write_text(json.dumps(document))
    return str(tmp_path / "profile.json")


def test_the_engine_follows_the_profile_or_else_the_checkpoint(profile_path: str):
    engine = named("omnibus_engines:sim")

    for fields in (
        {"profile": profile_path},
        {"checkpoint": profile_path},
        {"profile": profile_path, "checkpoint": "/models/m"},
    ):
        assert type(engine("vision", make_settings(**fields))).__name__ == "SimulatedEncoder"


def test_components_of_one_executor_share_a_device_and_executors_do_not(profile_path: str):
    engine = named("omnibus_engines:sim")
    first_settings, second_settings = make_settings(profile=profile_path), make_settings(profile=profile_path)

    vision, talker = engine("vision", first_settings), engine("talker", first_settings)
    other = engine("vision", second_settings)

    assert vision._machine is talker._machine
    assert other._machine is not vision._machine


def test_an_executor_of_a_cell_takes_as_long_as_one_without(tmp_path):
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"options": {"EL": {"components": {"vision": {**ENCODER, "kind": ""}}}}}))
    engine = named("omnibus_engines:sim")

    cell_runner = engine("vision", make_settings(profile=str(file), option="EL@c1", cell="c1"))

    assert type(cell_runner).__name__ == "SimulatedEncoder"
    with pytest.raises(BadRequest, match="no component 'vision'"):
        engine("vision", make_settings(profile=str(file), option="EL@c1"))


@pytest.mark.parametrize(
    ("component", "fields", "fault"),
    [
        ("thinker", {}, "no component 'thinker'; there is odd, talker, vision"),
        ("odd", {}, "component odd of kind any: it needs `batch` or `step` and `outputs`"),
        ("vision", {"profile": "", "checkpoint": ""}, "set OMNIBUS_EXECUTOR_PROFILE"),
        ("vision", {"profile": "/nowhere"}, "'/nowhere' cannot be read"),
    ],
)
def test_an_engine_without_what_it_needs_says_so(profile_path: str, component: str, fields: dict, fault: str):
    with pytest.raises(BadRequest, match=fault):
        named("omnibus_engines:sim")(component, make_settings(**{"profile": profile_path, **fields}))


async def test_a_simulation_runs_on_the_loops_own_clock_unless_told_otherwise():
    simulation = Simulation(make_settings(), make_profile(time_scale=1e-6))
    runner = simulation.make_runner("thinker")
    job = make_chat_job()

    await runner.load()
    async with asyncio.timeout(20):
        await runner.run(job)
    await runner.close()

    assert len(job.ids) == 5


async def test_late_timers_do_not_slow_a_busy_device_down():
    class LateClock(VirtualClock):
        def later(self, seconds: float, callback: Callable[[], None]) -> Alarm:
            return super().later(seconds + 0.3, callback)

    late = LateClock()
    simulation = Simulation(make_settings(option="O"), make_profile(select_component("thinker", steps=40)), late.clock)
    runner, job = simulation.make_runner("thinker"), make_chat_job()
    await runner.load()
    began = late.time

    await runner.run(job)

    assert late.time - began == pytest.approx(1.0 + 39 * 1.0 + 0.3)
    await runner.close()


async def test_another_role_starts_nothing_and_is_as_the_profile_says():
    late = VirtualClock()
    parts = {"prefill": {"batch": {"base": 1.0}, "steps": 5}, "decode": {"step": {"base": 0.5}}}
    role_profile = decode_profile(msgspec.json.encode({"default": {"startup": 30.0, "components": parts}}))
    first = Simulation(make_settings(option="P", components="prefill"), role_profile, late.clock)
    prefill, role = first.make_runner("prefill"), make_settings(option="D", components="decode")
    began = late.time
    await prefill.load()
    start_time = late.time

    decode = prefill.switch_role("decode", role)
    await decode.load()
    await prefill.close()

    assert isinstance(decode, SimulatedDecode)
    assert (start_time, late.time) == (began + 30.0, start_time)
    await decode.close()
