"""The requests of a measurement, simulated with the plan that served them."""

from collections.abc import Sequence

from omnibus.plan import Plan
from services.planner.optimize.promise import PromiseChecker
from services.planner.optimize.simulated import simulated_models, simulation_links
from services.planner.simulate.arrivals import Arrival
from services.planner.simulate.outcome import SimulationOutcome
from services.planner.simulate.run import SimulatedPlan, simulate_plan


def replay_requests(
    checker: PromiseChecker, plan: Plan, arrivals: Sequence[Arrival], seconds: float
) -> SimulationOutcome:
    """Simulate ``arrivals`` of ``seconds`` with ``plan``.

    Raises ``BadRequest`` for a component that was never measured, or a request that the plan has no path for.
    """
    planner = checker.planner
    known = {name: plan.models[name] for name in planner.inputs if name in plan.models}
    models = simulated_models(planner.inputs, known, checker.devices, plan.explain)
    goals = {name: each.goals for name, each in known.items() if each.goals}
    simulated = SimulatedPlan(models, goals, links=simulation_links(planner.nodes))
    return simulate_plan(simulated, arrivals, seconds)
