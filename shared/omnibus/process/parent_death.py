"""Signals that end a process together with its parent."""

import ctypes
import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable

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
