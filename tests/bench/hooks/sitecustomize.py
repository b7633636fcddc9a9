"""Profile every Python process of the benchmarks with cProfile.

Each imports this module at its start; profiling ends with the process.
"""

import atexit
import cProfile
import os
import sys
import time

if _directory := os.environ.get("OMNIBUS_BENCH_CPROFILE"):
    _profile = cProfile.Profile(time.thread_time_ns, 1e-9)  # CPU time, as everywhere here

    def _dump_profile() -> None:
        _profile.disable()
        name = os.environ.get("OMNIBUS_EXECUTOR_ID") or sys.argv[0].rsplit("/", 2)[-2]
        _profile.dump_stats(f"{_directory}/{name}-{os.getpid()}.prof")

    atexit.register(_dump_profile)
    _profile.enable()
