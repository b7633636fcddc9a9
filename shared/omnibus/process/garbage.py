"""The garbage collector of a process that serves requests."""

import gc

#: Containers made until it looks at the young ones, and looks until at older ones.
GC_THRESHOLDS = (20_000, 20, 50)


def tune_garbage_collector() -> None:
    """Spare the garbage collector what lives as long as the process, and most walks through what one request has."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
