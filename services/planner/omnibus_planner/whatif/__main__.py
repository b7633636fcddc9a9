"""``python -m omnibus_planner.whatif JSON``: answers one question on stdout. The command is `omnibus whatif`."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from omnibus.bus.nats import NatsBus
from omnibus.cli.format.tables import fit_text
from omnibus.errors import OmnibusError, error_line
from omnibus.plan_goals import ModelGoals
from omnibus.settings import BusSettings, StoreSettings, read_settings
from omnibus.store import Store
from omnibus_planner.simulate.arrivals import Arrival
from omnibus_planner.simulate.run import SimulatedPlan, simulate_plan
from omnibus_planner.solve import highs
from omnibus_planner.whatif import table
from omnibus_planner.whatif.deployment import Deployment, find_deployment
from omnibus_planner.whatif.question import WhatIfQuestion, parse_duration
from omnibus_planner.whatif.records import recorded_arrivals
from omnibus_planner.whatif.traffic import build_traffic


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the question, and return 0, or 1 after a line on stderr."""
    question = msgspec.json.decode((arguments or sys.argv[1:])[0], type=WhatIfQuestion)
    try:
        text = asyncio.run(answer_question(question))
    except OmnibusError as error:
        sys.stderr.write(f"{error_line(error, question.json)}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


async def answer_question(question: WhatIfQuestion) -> str:
    """Return the answer as text, or as JSON. Raises ``OmnibusError`` for a question that cannot be answered."""
    store = Store(read_settings(StoreSettings))
    try:
        with highs.silence_stdout():
            deployment = await find_deployment(question, store)
    finally:
        await store.close()
    traffic = build_traffic(question, deployment, await _read_records(question, deployment))
    plan = SimulatedPlan(deployment.simulated, deployment.goals, links=deployment.links)
    outcome = simulate_plan(plan, traffic.arrivals, traffic.seconds, seed=question.seed)
    cost = table.deployment_cost(outcome, deployment.prices)
    if question.json:
        fields = {"plan": deployment.label, "traffic": traffic.label, "cost": cost}
        goals = {name: _declared_goals(each) for name, each in deployment.goals.items()}
        return msgspec.json.encode({**fields, "goals": goals, **msgspec.to_builtins(outcome)}).decode()
    lines = [*table.answer_lines(deployment.label, traffic.label, outcome, deployment.goals, cost), *traffic.notes]
    return fit_text("\n".join(lines), 4)


def _declared_goals(goals: ModelGoals) -> dict[str, Any]:
    """Return ``goals`` as they are declared: seconds by figure, and ``types`` if there are any."""
    return {**goals.usual, **({"types": goals.types} if goals.types else {})}


async def _read_records(question: WhatIfQuestion, deployment: Deployment) -> list[Arrival] | None:
    if not question.since:
        return None
    seconds = parse_duration(question.since)
    bus = await NatsBus.connect(read_settings(BusSettings), "cli")
    try:
        return await recorded_arrivals(bus, deployment.plans, seconds)
    finally:
        await bus.drain()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
