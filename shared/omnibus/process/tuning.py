"""Tuning of a process: priority, garbage collection, descriptors, allocator.

And the signal that ends it together with its parent.
"""

import ctypes
import fcntl
import gc
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files to the kernel's maximum. Returns the limit.

    The usual soft limit of 1024 is for programs that wait with ``select``. A server needs one descriptor per client.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS does not accept unlimited
            return soft
    return hard


#: New containers before a collection of the young generation, and collections of one generation before the next.
GC_THRESHOLDS = (20_000, 20, 50)


def tune_garbage_collector() -> None:
    """Exclude long-lived objects from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


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


VARIABLE = "GLIBC_TUNABLES"
_NAME = "glibc.cpu.x86_non_temporal_threshold"
#: Minimum bytes of a copy that bypasses the caches. glibc's default is three quarters of a core's share of the last
#: cache, tens of megabytes on a server. The core that writes a tensor for another process does not read it again, and a
#: write through the caches reads each line of the target first.
_NON_TEMPORAL_BYTES = 4 << 20


def copy_tunables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that let copies of tensors bypass the caches.

    If ``environ`` has the size from which copies bypass them, nothing is returned. On processors other than x86, and
    without glibc, the variables have no effect.
    """
    value = environ.get(VARIABLE, "")
    if _NAME in value:
        return {}
    return {VARIABLE: ":".join(filter(None, [value, f"{_NAME}={_NON_TEMPORAL_BYTES:#x}"]))}


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(death: signal.Signals = signal.SIGKILL, parent: int | None = None) -> Callable[[], None] | None:
    """Return a ``preexec_fn`` that ends the child with its parent.

    The kernel sends ``death`` to the child when its parent thread ends. Call this in the parent, or in the child with
    the id of its ``parent``. Code between fork and exec must not import or allocate much. Start the child from a thread
    that lives as long as the process, because the kernel watches the thread. Linux only; elsewhere None.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid() if parent is None else parent

    def bind_to_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(death))
        if os.getppid() != parent:  # the parent died before prctl: there will be no signal
            os._exit(1)

    return bind_to_parent


def die_with_lifeline(lifeline: int) -> None:
    """Make the kernel KILL this process and its group with ``lifeline``.

    The signal is sent when no process has the writing end of this pipe open. It does not depend on the state of this
    process, which need not be a child of the process with that end. The caller keeps ``lifeline`` open, and nothing is
    written to it. Linux only.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poller = select.poll()
    poller.register(lifeline, 0)
    if poller.poll(0):  # it was closed before: there will be no signal
        os._exit(1)
