"""Apps on trained models: requests a second that the plan promises, and that a running system serves.

    omnibus profile --real
    python -m tests.bench.real_plan [apps.profile.json] [--unplanned]

    real.plan.measured_over_promised   for the profile's mix, and for each app alone under the same plan

One system runs the apps of ``omnibus up --real``, as the planner decides by the profile. Four requests at a time keep it
busy. With ``--unplanned``, each component has a separate process, and there is no promise. Each line has the share of
the machine's processor time that the system and its client got. It is below 1 if other programs compute as well.
"""

import argparse
import asyncio
import contextlib
import io
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

import uvloop

from omnibus.cli.demo_real import real_stack
from omnibus.cli.profile_apps import make_real_workload
from omnibus.environment import count_processors
from omnibus.plan import Plan
from omnibus.profile import ModelProfile, decode_profile
from omnibus.profiling.app_profile import ProcessTimes
from omnibus.profiling.load_generator import ClosedLoop, LoadRequest, LoadStep
from omnibus.profiling.workload import Workload
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus.up.real_models import REAL_PROFILE
from omnibus_planner.declared.planned_spec import GpuType, PlannedModel
from omnibus_planner.declared.shared_processes import APPS, AppsModel
from omnibus_planner.optimize.load import ModelLoad
from omnibus_planner.optimize.planner import Planner

_AT_ONCE, _PLANNED_SECONDS = 4, 60.0
#: The components of an app, from which its request type follows.
_COMPONENTS = {"assistant": "speak-text", "receipt": "read-image", "search": "minilm"}
FIGURE = "real.plan.measured_over_promised"


def promised_rates(profile: ModelProfile, plan: Plan) -> dict[str, float]:
    """Return the requests a second that ``plan`` promises for the mix, and for each app alone."""
    planned = plan.explain["planned"]
    count = sum(each["of"] for each in planned["deployments"][0]["gpus"].values())
    models = {APPS: AppsModel(PlannedModel(), profile.components)}
    planner = Planner(models, {APPS: profile}, {"cpu": GpuType(count)}, {})
    rates = {"mix": float(planned["models"][APPS]["capacity"])}
    for app, part in _COMPONENTS.items():
        [kind] = [kind for kind, each in profile.types.items() if part in each.components]
        rates[app] = planner.capacity(plan.models, {APPS: ModelLoad(1.0, {kind: 1.0})})[APPS]
    return rates


async def wait_for_plan(store: Store) -> Plan:
    """Return the plan, once it has shared processes and they are ready."""
    async with asyncio.timeout(_PLANNED_SECONDS):
        while True:
            plan, state = await store.plan(), await store.plan_state()
            if plan is not None and APPS in plan.models and not state.staged:
                return plan
            await asyncio.sleep(0.2)


class MeasuredRate(NamedTuple):
    """Requests a second, and the share of processor time that the system got."""

    load: str
    rate: float
    share: float


async def measure_rates(port: int, workload: Workload, seconds: float) -> AsyncIterator[MeasuredRate]:
    """Yield the measured rate of the mix, then of each app alone."""
    looks: list[tuple[float, float]] = []

    async def read_times() -> None:
        looks.append((time.monotonic(), ProcessTimes.read_all().total_seconds(but=())))

    loads = {"mix": workload.requests, **{app: workload.requests_of(app) for app in workload.type_shares}}
    for name, requests in loads.items():
        loop = ClosedLoop(port, [LoadRequest(request) for request in requests], _AT_ONCE)
        rate = (await loop.run(LoadStep(seconds, 2 * _AT_ONCE), read_times)).rate
        (began, before), (ended, after) = looks[-2:]
        yield MeasuredRate(name, rate, (after - before) / (ended - began) / count_processors())


async def compare_rates(path: Path | None, seconds: float) -> dict[str, float]:
    """Return the figures of a system with the profile at ``path``, or of one without a plan."""
    promised: Mapping[str, float] = {}
    figures = dict[str, float]()
    with contextlib.redirect_stdout(sys.stderr):
        async with real_stack(io.StringIO(), str(path.resolve()) if path else "") as stack:
            workload = await make_real_workload(stack)
            store = Store(StoreSettings(url=stack.valkey.url))
            try:
                if path is not None:
                    plan = await wait_for_plan(store)
                    promised = promised_rates(decode_profile(path.read_bytes(), str(path)), plan)
                    print({name: each.replicas for name, each in plan.models[APPS].options.items()})
            finally:
                await store.close()
            async for measured in measure_rates(stack.port, workload, seconds):
                row = {"promised": promised.get(measured.load), **measured._asdict()}
                print({key: round(each, 3) if isinstance(each, float) else each for key, each in row.items()})
                sys.stdout.flush()
                if promised:
                    figures[f"{FIGURE}.{measured.load}"] = round(measured.rate / promised[measured.load], 3)
    return figures


def main() -> None:
    options = argparse.ArgumentParser(
        description="Compare the promised and the measured rate of apps on trained models."
    )
    options.add_argument("profile", nargs="?", type=Path, default=Path(REAL_PROFILE))
    options.add_argument("--unplanned", action="store_true", help="each component in a process of its own")
    options.add_argument("--seconds", type=float, default=15.0, help="of each load at least (15)")
    arguments = options.parse_args()
    print(json.dumps(uvloop.run(compare_rates(None if arguments.unplanned else arguments.profile, arguments.seconds))))


if __name__ == "__main__":
    main()
