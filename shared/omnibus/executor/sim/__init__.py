"""The ``sim`` engine: executors that compute nothing and take the time of a profile.

    OMNIBUS_EXECUTOR_ENGINE=omnibus_engines:sim
    OMNIBUS_EXECUTOR_PROFILE=/etc/omnibus/profile.json       (see ``omnibus.executor.sim.profile``)

The control plane is real. Gateways, planner, sidecar and the executor loop see executors that read inputs, send
tensors, stream and hold slots like others. Dozens fit on a laptop.
"""

from omnibus.executor.sim.async_device import Clock
from omnibus.executor.sim.engine import Simulation, engine
from omnibus.executor.sim.predict import Predicted, TypeDemand, predict_performance
from omnibus.executor.sim.profile import Profile, decode_profile, read_profile
from omnibus.executor.sim.request import ComponentLoad

__all__ = [
    "Clock",
    "ComponentLoad",
    "Predicted",
    "Profile",
    "Simulation",
    "TypeDemand",
    "decode_profile",
    "engine",
    "predict_performance",
    "read_profile",
]
