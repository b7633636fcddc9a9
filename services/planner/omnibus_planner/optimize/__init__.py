"""Planned models: from profiles and goals to the best deployment, by the exact solver.

    model_inputs.py    one model for the solver: its options, request types and seconds
    candidates.py      measured and estimated options that fit the available GPUs
    cost_model.py      cost of a request of a type on an option, at given sizes of requests
    learned_seconds.py measured seconds of executors as factors on profiles
    demand.py          rates and mixes: declared, or measured
    latency_goals.py   from goals for tail latency to admissible work
    edge_sizes.py      bytes between components; links.py, transfers.py: traffic between nodes, and its time
    latency.py         queues and percentiles; option_loads.py: utilisation and latencies of a plan
    kv_memory.py       memory for KV caches as a limit of one replica
    overload.py        goodput beyond the promise, and the choice among near-equal plans by it
    joint.py           models that are planned together; cells.py: a model in cells
    plan_builder.py    from the solver's solution to plans; explain.py: the reasons
    planner.py         the whole: ``Planner``; job.py runs it in a thread

The package is pure computation: no bus, no store, no file. It does not export ``Planner``, because importing the solver
takes a second and planners of static models do not need it. Import it from ``omnibus_planner.optimize.planner``.
"""

from omnibus_planner.optimize.load import Loads, ModelLoad
from omnibus_planner.optimize.result import PlanningResult

__all__ = ["Loads", "ModelLoad", "PlanningResult"]
