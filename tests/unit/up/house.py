"""A supervisor that follows a real store's plans, with small programs as executors."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from omnibus.cluster.presence import GatewayPlans
from omnibus.plan import DeploymentOption, ModelPlan, Plan
from omnibus.process.spec import ProcessSpec
from omnibus.process.supervise import Exit, RestartPolicy
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus.up import infra
from omnibus.up.executors import Executors, process_specs
from omnibus.up.supervisor import Supervisor
from tests.unit.up.programs import SLEEPS, WITHIN, Lines, all_gone, log_to

QUICK = RestartPolicy(first=0.01, longest=0.02, limit=2)


def make_model(options: dict[str, DeploymentOption], **fields: Any) -> ModelPlan:
    return ModelPlan("f", "/m", ("vision", "thinker"), {}, options, {}, **fields)


def make_plan(epoch: int, **replicas: int) -> Plan:
    """Return a model with an option for each name in ``replicas``."""
    options = {name: DeploymentOption(("thinker",), "llm", count) for name, count in replicas.items()}
    return Plan(epoch, 0, float(epoch), {"m": make_model(options)})


class SupervisorHouse:
    """A supervisor with a store, and small programs in place of executors."""

    def __init__(self, supervisor: Supervisor, store: Store, lines: Lines, exits: list[Exit]) -> None:
        self.supervisor = supervisor
        self.store = store
        self.lines = lines
        self.exits = exits
        self.programs: dict[str, str] = {}  # by the name of the process
        self.env: dict[str, str] = {}
        self.gateways = GatewayPlans()
        self.executors = Executors(supervisor, log_to(lines), self.make_specs, gateways=self.gateways)

    def make_specs(self, *plans: Plan) -> dict[str, ProcessSpec]:
        specs = process_specs(*plans, env=self.env)
        programs = {name: (sys.executable, "-c", self.programs.get(name, SLEEPS)) for name in specs}
        return {name: replace(spec, argv=programs[name], after=()) for name, spec in specs.items()}

    async def store_plan(self, plan: Plan) -> None:
        await self.store.swap_plan(plan)

    def pids(self) -> dict[str, int]:
        return {name: pid for name, pid in self.supervisor.pids.items() if "/" in name}

    async def until(self, *names: str, but: tuple[int, ...] = ()) -> dict[str, int]:
        """Wait until exactly these executors report, in processes other than ``but``."""
        async with asyncio.timeout(WITHIN):
            while set(pids := self.pids()) != set(names) or set(pids.values()) & set(but):
                await asyncio.sleep(0.01)
        return pids

    async def up(self, name: str, times: int = 1) -> None:
        await self.lines.until(rf"(?s)({name} +\| up\n.*){{{times}}}")


@asynccontextmanager
async def open_house(directory: Path) -> AsyncIterator[SupervisorHouse]:
    """Yield a house with a separate store, and check for leftovers."""
    lines, exits = Lines(), []

    async def record_exit(end: Exit) -> None:
        exits.append(end)

    server = infra.prepare_valkey(directory)
    async with Supervisor([server.spec], log=log_to(lines), policy=QUICK, on_exit=record_exit) as supervisor:
        store = Store(StoreSettings(url=server.url))
        house = SupervisorHouse(supervisor, store, lines, exits)
        yield house
        await house.executors.close()
        await store.close()
    assert all_gone([end.pid for end in exits])
