"""Planned models: what was measured and what is asked of them to the best deployment, by the exact solver.

    ready.py       one model made ready: its options, request types and seconds
    options.py     measured and estimated options that fit the GPUs at hand
    seconds.py     what a request of a type costs on an option, at given sizes of requests
    demand.py      rates and mixes: declared, or measured
    tails.py       goals for tail latency to admissible work
    group.py       models that are planned together; cells.py: a model in cells
    deploy.py      what the solver found to plans; explain.py: why
    planner.py     all of it: ``Planner``

Pure computation: no bus, no store, no file. ``Planner`` is not named here, because the solver takes a second to
load that planners of static models need not wait for: ``services.planner.optimize.planner``.
"""

from services.planner.optimize.load import Loads, ModelLoad
from services.planner.optimize.result import PlanningResult

__all__ = ["Loads", "ModelLoad", "PlanningResult"]
