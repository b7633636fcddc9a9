"""Garbage collector settings of a process that serves requests."""

import gc

#: New containers before a collection of the young generation, and collections of one generation before the next.
GC_THRESHOLDS = (20_000, 20, 50)


def tune_garbage_collector() -> None:
    """Exclude long-lived objects from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
