"""Restrictions of uploaded code in its worker process: it can only compute and use its link to the gateway. Linux.

  limits       memory, open files, no file writes, no core dumps, no locked memory; low CPU priority
  privileges   none, and no way to new ones; other processes cannot read its memory
  own-user     a user and a group that nothing else runs as (when started as root)
  no-network   an empty network namespace
  read-only    only Python and its packages can be read, nothing else (Landlock)
  calls        no sockets, no programs, no processes, no signals to others (seccomp)

The restrictions are independent: if a kernel or a container lacks one, the others still apply. Code runs only if both
the files and the network are out of reach.
"""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from omnibus.app import landlock, seccomp
from omnibus.errors import NoSandbox

#: Open files, the link and the event loop's own included.
MAX_OPEN_FILES = 64
#: Most threads of a worker with a separate user. Memory limits those of others.
MAX_THREADS = 64
#: Added to the niceness, so that the gateway has priority over uploads.
NICE_INCREMENT = 10
#: User ids that no system assigns: each worker takes one by its process id.
_USER_IDS = range(61184, 65520)

# linux/prctl.h, linux/sched.h, linux/capability.h
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_NEW_IPC, _NEW_USER, _NEW_NET = 0x08000000, 0x10000000, 0x40000000
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522

#: Libraries of the system that packages load on first use, and time zones.
_SYSTEM_PATHS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")


def restrict_process(link: int, memory: int) -> tuple[str, ...]:
    """Restrict this process for good and return the active restrictions, in words.

    ``link`` is the only file that it keeps, except its output. ``memory`` is the limit of its address space in bytes.
    Raises ``NoSandbox`` if the code could still reach files or the network, or if another thread runs, which the
    restrictions would not cover.
    """
    if sys.platform != "linux":
        raise NoSandbox("uploaded apps run on Linux only: install this app on the gateway's machine instead")
    if len(os.listdir("/proc/self/task")) > 1:
        raise NoSandbox("the worker has several threads, and restrictions apply to one only: nothing was run")
    _drop_inherited_state(link)
    readable = list(_readable_paths())
    _limit_resources(memory)
    os.nice(NICE_INCREMENT)
    restrictions = ["limits"]
    alone = _leave_network()
    if _switch_user(readable):
        restrictions.append("own-user")
    if alone or _leave_network():
        restrictions.append("no-network")
    _without_privileges()
    restrictions.append("privileges")
    if landlock.read_only(readable):
        restrictions.append("read-only")
    if seccomp.install_filter():
        restrictions.append("calls")
    _check_restrictions(restrictions)
    return tuple(restrictions)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _check_restrictions(restrictions: list[str]) -> None:
    files = "own-user" in restrictions or "read-only" in restrictions
    network = "no-network" in restrictions or "calls" in restrictions
    if not (files and network):
        raise NoSandbox(
            f"this machine cannot restrict uploaded code's access to its {'network' if files else 'files'} (only "
            f"{', '.join(restrictions)}): use a kernel with Landlock and seccomp, or install the app"
        )


def _drop_inherited_state(link: int) -> None:
    """Remove the environment, the directory, and all other files. Only the standard streams and ``link`` stay open."""
    os.environ.clear()
    os.chdir("/")
    os.umask(0o077)
    os.closerange(3, link)
    os.closerange(link + 1, 1 << 16)
    sys.dont_write_bytecode = True


def _readable_paths() -> Iterator[Path]:
    """Yield the paths that Python needs for further imports."""
    for entry in sys.path:
        if entry and os.path.isabs(entry):
            yield Path(os.path.realpath(entry))
    for name in _SYSTEM_PATHS:
        yield Path(name)


def _limit_resources(memory: int) -> None:
    if memory:
        _lower_limit(resource.RLIMIT_AS, memory)
    _lower_limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    for none in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK):
        _lower_limit(none, 0)


def _lower_limit(limit: int, most: int) -> None:
    """Lower a limit for good. A limit that is already lower does not change."""
    _, hard = resource.getrlimit(limit)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(limit, (most, most))


def _leave_network() -> bool:
    """Enter a separate network namespace. Without privileges, use one that requires none."""
    unshare = ctypes.CDLL(None).unshare
    return unshare(_NEW_NET | _NEW_IPC) == 0 or (os.geteuid() != 0 and unshare(_NEW_USER | _NEW_NET | _NEW_IPC) == 0)


def _switch_user(readable: list[Path]) -> bool:
    """Switch to a separate user. Returns False if not root, or if that user could not read Python."""
    if os.geteuid() != 0 or not all(map(_open_to_all, readable)):
        return False
    user = _USER_IDS[os.getpid() % len(_USER_IDS)]
    with suppress(OSError):
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        _lower_limit(resource.RLIMIT_NPROC, MAX_THREADS)  # a limit per user, so it does not suit a shared user
        return True
    return False


def _open_to_all(path: Path) -> bool:
    try:
        return all(above.stat().st_mode & 0o001 for above in path.parents) and bool(path.stat().st_mode & 0o004)
    except FileNotFoundError:
        return True


def _without_privileges() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise NoSandbox("the kernel does not let a process drop privileges for good: nothing was run")
    call = _CAPSET.get(os.uname().machine)
    if call is not None:
        libc.syscall(call, (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())
    if _has_capabilities():
        raise NoSandbox("the worker could not drop its capabilities: nothing was run")
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    die_with_parent()  # the kernel resets it when the user changes


def _has_capabilities() -> bool:
    with open("/proc/self/status") as status:
        return any(line.startswith("CapEff:") and int(line.split()[1], 16) for line in status)
