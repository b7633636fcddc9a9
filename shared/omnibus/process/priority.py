"""Priority of this process for the CPU."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

#: Priority of all processes of a session together (Linux, ``man 7 sched``: the autogroup feature).
_AUTOGROUP = Path("/proc/self/autogroup")
#: The kernel lets users without privileges change one in a tenth of a second, and rejects the others.
_TRIES, _PAUSE_SECONDS = 20, 0.1


def lower_priority(nice: int) -> None:
    """Lower the priority of this process to ``nice``, from 0 (no change) to 19, as in ``nice(1)``.

    Linux shares a CPU between sessions first and then between the processes of each, if ``sched_autogroup_enabled`` is
    set. Each process of ``omnibus up`` has its own session, so the session gets the same value.
    """
    if nice <= 0:
        return
    for thread in os.listdir("/proc/self/task") if sys.platform == "linux" else ["0"]:
        with suppress(ProcessLookupError, PermissionError):  # a thread has ended; the priority was lower already
            os.setpriority(os.PRIO_PROCESS, int(thread), nice)
    for _ in range(_TRIES):
        try:
            _AUTOGROUP.write_text(str(nice))
            return
        except BlockingIOError:
            time.sleep(_PAUSE_SECONDS)
        except OSError:  # not Linux, or a kernel without autogroups
            return
