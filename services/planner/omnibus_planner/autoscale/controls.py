"""Controls of the autoscaler: policy for the load, attainment of goals, and forecasts."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from omnibus.settings import PlannerSettings
from omnibus_planner.autoscale.attainment import AttainmentControl
from omnibus_planner.autoscale.forecast import TrendForecast
from omnibus_planner.autoscale.policy import ROLLOUT_SECONDS, ScalingGoal, ScalingPolicy, ScalingRules
from omnibus_planner.declared.planned_spec import GPUS
from omnibus_planner.optimize.load import Loads

if TYPE_CHECKING:  # see ``omnibus_planner.optimize``
    from omnibus_planner.optimize.planner import Planner

#: Number of windows, or starts of an executor, with goals met before the planned load shrinks.
ATTAINMENT_PATIENCE_WINDOWS = 20.0


def scaling_rules(settings: PlannerSettings) -> ScalingRules:
    hold = settings.hold or 2 * settings.window
    return ScalingRules(settings.window, settings.margin, hold, settings.cooldown, settings.least)


def build_policy(
    planner: "Planner | None", rules: ScalingRules, load: Loads, clock: Callable[[], float]
) -> ScalingPolicy | None:
    """Return the policy for the models of ``planner``.

    ``load`` is their planned load, if it differs from the declared one.
    """
    goals = {
        name: ScalingGoal(
            model.planned.goal == GPUS, model.planned.headroom, load[name].rate if name in load else model.planned.rate
        )
        for name, model in (planner.models if planner is not None else {}).items()
        if model.planned is not None and model.planned.adapt
    }
    if planner is None or not goals:
        return None
    return ScalingPolicy(goals, rules, max(planner.start_seconds.values(), default=0.0), clock)


def build_attainment(
    planner: "Planner | None", settings: PlannerSettings, clock: Callable[[], float]
) -> AttainmentControl:
    """Return the control of the models that can get more executors.

    These are the models that are planned for the fewest GPUs.
    """
    models = [
        name
        for name, model in (planner.models if planner is not None else {}).items()
        if model.planned is not None and model.planned.adapt and model.planned.goal == GPUS
    ]
    starts = max(planner.start_seconds.values(), default=0.0) if planner is not None else 0.0
    patience = ATTAINMENT_PATIENCE_WINDOWS * max(settings.window, starts)
    return AttainmentControl(models, settings.window, patience, settings.least, clock)


def build_trend(planner: "Planner | None", settings: PlannerSettings, clock: Callable[[], float]) -> TrendForecast:
    """Return the forecast for when executors that start now are ready.

    It includes half a window, because a rate over a window is half a window old.
    """
    starts = max(planner.start_seconds.values(), default=0.0) if planner is not None else 0.0
    return TrendForecast(settings.window, settings.window / 2 + starts + ROLLOUT_SECONDS, clock)
