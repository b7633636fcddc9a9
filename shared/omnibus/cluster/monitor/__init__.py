"""Observation of a whole Omnibus: plans, executors, gateways and load, for ``omnibus top`` and the console.

async with Watch(store, bus).following() as watch:
    away = watch.poll_presence()
    print(state_values(watch.seen, away))
"""

from omnibus.cluster.monitor.monitor import Watch
from omnibus.cluster.monitor.snapshot import SystemState
from omnibus.cluster.monitor.to_json import state_values

__all__ = ["SystemState", "Watch", "state_values"]
