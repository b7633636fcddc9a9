"""The ``sim`` engine: executors that compute nothing and take as long as a profile says.

    OMNIBUS_EXECUTOR_ENGINE=services.engines:sim
    OMNIBUS_EXECUTOR_PROFILE=/etc/omnibus/profile.json       (see ``omnibus.executor.sim.profile``)

The control plane is the real one: gateways, planner, sidecar and the loop around the runners see executors
that read inputs, send tensors, stream and hold slots as others do. Dozens fit on a laptop.
"""

from omnibus.executor.sim.async_device import Clock
from omnibus.executor.sim.engine import Simulation, engine
from omnibus.executor.sim.predict import Demand, Predicted, predicted
from omnibus.executor.sim.profile import Profile, decode, read
from omnibus.executor.sim.request import Load

__all__ = ["Clock", "Demand", "Load", "Predicted", "Profile", "Simulation", "decode", "engine", "predicted", "read"]
