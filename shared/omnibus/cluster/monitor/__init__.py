"""Watching a whole Omnibus: plans, executors, gateways and their load, as ``omnibus top`` and the console show it.

async with Watch(store, bus).following() as watch:
    away = watch.turn()
    print(told(watch.seen, away))
"""

from omnibus.cluster.monitor.monitor import Watch
from omnibus.cluster.monitor.snapshot import SystemState
from omnibus.cluster.monitor.to_json import state_values

__all__ = ["SystemState", "Watch", "state_values"]
