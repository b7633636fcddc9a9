"""Watching a whole Omnibus: plans, executors, gateways and their load, as ``omnibus top`` and the console show it.

async with Watch(store, bus).following() as watch:
    away = watch.turn()
    print(told(watch.seen, away))
"""

from omnibus.cluster.monitor.monitor import Watch
from omnibus.cluster.monitor.snapshot import Seen
from omnibus.cluster.monitor.to_json import told

__all__ = ["Seen", "Watch", "told"]
