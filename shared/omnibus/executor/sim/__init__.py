"""The ``sim`` engine: executors that compute nothing and take as long as a profile says.

    OMNIBUS_EXECUTOR_ENGINE=services.engines:sim
    OMNIBUS_EXECUTOR_PROFILE=/etc/omnibus/profile.json       (see ``omnibus.executor.sim.profile``)

The control plane is the real one: gateways, planner, sidecar and the loop around the runners see executors
that read inputs, send tensors, stream and hold slots as others do. Dozens fit on a laptop.
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
