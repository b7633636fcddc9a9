"""Planned models: profiles and goals to the best deployment, by the exact solver.

    model_inputs.py    one model for the solver: its options, request types and seconds
    candidates.py      measured and estimated options that fit the GPUs at hand
    cost_model.py      cost of a request of a type on an option, at given sizes of requests
    learned_seconds.py measured seconds of executors as factors on profiles
    demand.py          rates and mixes: declared, or measured
    latency_goals.py   goals for tail latency to admissible work
    edge_sizes.py      bytes between components; links.py, transfers.py: what crosses nodes, and the time it takes
    latency.py         queues and percentiles; option_loads.py: utilisation and latencies of a plan
    kv_memory.py       memory for KV caches as a limit of one replica
    joint.py           models that are planned together; cells.py: a model in cells
    plan_builder.py    the solver's answer to plans; explain.py: why
    planner.py         all of it: ``Planner``; job.py runs it in a thread

Pure computation: no bus, no store, no file. ``Planner`` is not named here, because the solver takes a second to
load that planners of static models need not wait for: ``services.planner.optimize.planner``.
"""

from services.planner.optimize.load import Loads, ModelLoad
from services.planner.optimize.result import PlanningResult

__all__ = ["Loads", "ModelLoad", "PlanningResult"]
