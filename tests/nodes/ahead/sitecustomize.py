"""Set the wall clock ``TEST_CLOCK_AHEAD`` seconds ahead in Python processes.

It affects each process with this directory in its path.
"""

import os
import time

_AHEAD_SECONDS = float(os.environ["TEST_CLOCK_AHEAD"])
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + _AHEAD_SECONDS
time.time_ns = lambda: _time_ns() + int(_AHEAD_SECONDS * 1e9)
