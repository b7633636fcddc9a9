"""Watching a whole Omnibus: plans, executors, gateways and their load, as ``omnibus top`` and the console show it.

async with Watch(store, bus).following() as watch:
    away = watch.turn()
    print(told(watch.seen, away))
"""

from omnibus.watch.follow import Watch
from omnibus.watch.seen import Seen
from omnibus.watch.told import told

__all__ = ["Seen", "Watch", "told"]
