"""The requests of a measurement, simulated with the plan that served them."""

from collections.abc import Sequence

from omnibus.plan import Plan
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.optimize.simulated import simulated_models, simulation_links
from omnibus_planner.simulate.arrivals import Arrival
from omnibus_planner.simulate.outcome import SimulationOutcome
from omnibus_planner.simulate.run import SimulatedPlan, simulate_plan


def replay_requests(
    checker: PromiseChecker, plan: Plan, arrivals: Sequence[Arrival], seconds: float
) -> SimulationOutcome:
    """Simulate ``arrivals`` of ``seconds`` with ``plan``.

    Raises ``BadRequest`` for a component that was never measured, or a request that the plan has no path for.
    """
    planner = checker.planner
    model_plans = {name: plan.models[name] for name in planner.inputs if name in plan.models}
    models = simulated_models(planner.inputs, model_plans, checker.devices, plan.explain)
    goals = {name: each.latency_goals for name, each in model_plans.items()}
    simulated_plan = SimulatedPlan(models, goals, links=simulation_links(planner.nodes))
    return simulate_plan(simulated_plan, arrivals, seconds)
