"""A trial under load: its concurrency, and the limits of its gateway."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from omnibus.errors import Overloaded
from omnibus.profiling.experiments import choose_options, make_trial
from omnibus.profiling.load_generator import LoadRequest, LoadStep
from omnibus.profiling.loaded_option import LoadedOption
from omnibus.profiling.monitor import BusySample
from omnibus.profiling.testbed import DeployedTrial, service_environment
from omnibus.settings import GatewaySettings, read_settings
from omnibus_gateway.request.admission import MAX_QUEUE_OVER_DEADLINE
from tests.unit.profiling.server import make_event, send_whole, serve_script
from tests.unit.profiling.subjects import make_vl_subject
from tests.unit.profiling.test_client import make_refusal
from tests.unit.profiling.test_load_generator import make_request


class Executors:
    """Executors that are always busy and report nothing else."""

    async def read_busy(self, executors):
        return {id: BusySample(time.monotonic(), {"vision": time.monotonic()}) for id in executors}

    async def read_stats(self, id):
        return {}


def load_option(port: int) -> LoadedOption:
    trial = make_trial(make_vl_subject(), "E", choose_options(make_vl_subject())["E"])
    house = SimpleNamespace(stack=SimpleNamespace(port=port), hearing=Executors())
    return LoadedOption(house, trial, DeployedTrial({"e-1": "E"}, "e-1", 1), 1, lambda words: None)


class LimitedGateway:
    """Answers up to ``most`` requests at a time and rejects the others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._here = 0

    async def __call__(self, head, body, send) -> None:
        if self._here >= self._most:
            await send(make_refusal(429, "overloaded"))
            return
        self._here += 1
        await asyncio.sleep(0.01)
        self._here -= 1
        await send_whole(send, make_event(content="a"))


async def test_a_load_that_is_refused_is_halved_until_it_is_not():
    async with asyncio.timeout(20), serve_script(LimitedGateway(5)) as port:
        option = load_option(port)

        step, was_refused = await option.run_most(
            [LoadRequest(make_request(kind="vision"))], 16, lambda count: LoadStep(0.05, count)
        )

    assert was_refused
    assert step.seen.at_once == 4
    assert [note[:49] for note in option.notes] == [
        "E took no more than 8 at a time of vision alone: ",
        "E took no more than 4 at a time of vision alone: ",
    ]


async def test_a_load_that_is_not_refused_is_as_large_as_was_wanted():
    async with asyncio.timeout(20), serve_script(LimitedGateway(16)) as port:
        option = load_option(port)

        step, was_refused = await option.run_most(
            [LoadRequest(make_request())], 16, lambda count: LoadStep(0.05, count)
        )

    assert (step.seen.at_once, was_refused, option.notes) == (16, False, [])


async def test_a_gateway_that_takes_nothing_is_an_error():
    async with asyncio.timeout(20), serve_script(LimitedGateway(0)) as port:
        with pytest.raises(Overloaded):
            await load_option(port).run_most([LoadRequest(make_request())], 4, lambda count: LoadStep(0.05, count))


def test_requests_wait_as_long_as_a_gateway_lets_them_unless_it_is_set_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMNIBUS_GATEWAY_QUEUE_SECONDS", raising=False)
    monkeypatch.delenv("OMNIBUS_GATEWAY_DEADLINE", raising=False)
    environment = service_environment({"OMNIBUS_EXECUTOR_CACHE_MIB": "0"}, 5.0)
    assert environment.items() >= {"OMNIBUS_PLANNER_READY": "5", "OMNIBUS_EXECUTOR_CACHE_MIB": "0"}.items()
    monkeypatch.setenv("OMNIBUS_GATEWAY_QUEUE_SECONDS", "7")
    assert "OMNIBUS_GATEWAY_QUEUE_SECONDS" not in service_environment({}, 5.0)

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = read_settings(GatewaySettings)

    assert settings.deadline == 600
    assert settings.queue_seconds >= MAX_QUEUE_OVER_DEADLINE * settings.deadline  # a gateway's maximum
