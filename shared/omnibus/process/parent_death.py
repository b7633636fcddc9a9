"""Tie a process to another one, so that it cannot outlive it."""

import ctypes
import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(death: signal.Signals = signal.SIGKILL, parent: int | None = None) -> Callable[[], None] | None:
    """A ``preexec_fn`` that makes the kernel send ``death`` to the child when its parent thread ends.

    Call it in the parent, or in the child with the id of its ``parent``: what runs between fork and exec must not
    import or allocate much. Start the child from a thread that lives as long as the process, because the kernel
    watches the thread. Linux only; elsewhere None.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid() if parent is None else parent

    def bind_to_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(death))
        if os.getppid() != parent:  # the parent died before prctl: no signal will ever come
            os._exit(1)

    return bind_to_parent


def die_with_lifeline(lifeline: int) -> None:
    """Have the kernel KILL this process and its group once nobody has the writing end of the pipe ``lifeline`` open.

    It does so whatever this process does then, and it need not be a child of who holds that end. The caller keeps
    ``lifeline`` open, and has nothing written to it. Linux only.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    ended = select.poll()
    ended.register(lifeline, 0)
    if ended.poll(0):  # it was closed before: no signal will ever come
        os._exit(1)
