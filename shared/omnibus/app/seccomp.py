"""Filter of system calls: calls that an app does not need fail with EPERM. Linux on x86-64 and 64-bit ARM.

The filter covers gaps of the other restrictions: Unix sockets in the file system, new processes, signals to processes
of the same user, and changed modes and times of files.
"""

import ctypes
import os
import platform
from collections.abc import Iterator
from errno import ENOSYS, EPERM

#: ``uname`` machine to the audit code of its calls, and the column of the table below.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_NONE = -1

#: Calls that always fail, with their numbers on the two machines.
_DENIED = {
    # The network, and rings that could make its calls without the filter.
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Programs and processes.
    "fork": (57, _NONE),
    "vfork": (58, _NONE),
    "execve": (59, 221),
    "execveat": (322, 281),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kcmp": (312, 272),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # Memory and queues that outlive a process.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    # Metadata of files.
    "chmod": (90, _NONE),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, _NONE),
    "fchown": (93, 55),
    "lchown": (94, _NONE),
    "fchownat": (260, 54),
    "utime": (132, _NONE),
    "utimes": (235, _NONE),
    "futimesat": (261, _NONE),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "truncate": (76, 45),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # Views of the system.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # The kernel itself.
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "personality": (135, 92),
    "syslog": (103, 116),
}
_CLONE, _CLONE3, _KILL, _TGKILL, _PRCTL, _PRLIMIT = (56, 220), (435, 435), (62, 129), (234, 131), (157, 167), (302, 261)
_CLONE_THREAD = 0x00010000
_X32 = 0x40000000
#: prctl: the worker must end with the gateway, and other processes must not read its memory.
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

# linux/bpf_common.h, linux/seccomp.h
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000

_Step = tuple[int, int, int, int]


class _Filter(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Filter)))


def install_filter() -> bool:
    """Filter the calls of this process from now on. Returns False if that is not possible.

    Needs ``PR_SET_NO_NEW_PRIVS`` and a process of one thread.
    """
    constants = _MACHINES.get(platform.machine())
    if constants is None:
        return False
    steps = list(_filter_steps(*constants))
    filters = (_Filter * len(steps))(*(_Filter(*step) for step in steps))
    program = _Program(len(steps), filters)
    return ctypes.CDLL(None).prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) == 0


def _filter_steps(arch: int, column: int) -> Iterator[_Step]:
    yield _LOAD, 0, 0, _ARCH
    yield _JUMP_EQUAL, 1, 0, arch
    yield _RETURN, 0, 0, _ERRNO | EPERM
    yield _LOAD, 0, 0, _NUMBER
    yield _JUMP_AT_LEAST, 0, 1, _X32  # x86-64's second table of calls
    yield _RETURN, 0, 0, _ERRNO | EPERM
    for numbers in _DENIED.values():
        if numbers[column] != _NONE:
            yield from _fail_call(numbers[column], EPERM)
    yield from _fail_call(_CLONE3[column], ENOSYS)  # a filter cannot see its flags: libc falls back to clone
    yield from _allow_only(_CLONE[column], _JUMP_BITS, _CLONE_THREAD)
    for call in (_KILL, _TGKILL):
        yield from _allow_only(call[column], _JUMP_EQUAL, os.getpid())
    yield from _allow_only(_PRLIMIT[column], _JUMP_EQUAL, 0)
    for option in (_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE):
        yield from _deny_value(_PRCTL[column], option)
    yield _RETURN, 0, 0, _ALLOW


def _fail_call(call: int, errno: int) -> Iterator[_Step]:
    yield _JUMP_EQUAL, 0, 1, call
    yield _RETURN, 0, 0, _ERRNO | errno


def _allow_only(call: int, test: int, value: int) -> Iterator[_Step]:
    """Allow ``call`` only if its first argument passes ``test`` with ``value``."""
    yield _JUMP_EQUAL, 0, 4, call
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    yield test, 0, 1, value
    yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _ERRNO | EPERM


def _deny_value(call: int, value: int) -> Iterator[_Step]:
    """Reject ``call`` if its first argument is ``value``."""
    yield _JUMP_EQUAL, 0, 4, call
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    yield _JUMP_EQUAL, 0, 1, value
    yield _RETURN, 0, 0, _ERRNO | EPERM
    yield _LOAD, 0, 0, _NUMBER
