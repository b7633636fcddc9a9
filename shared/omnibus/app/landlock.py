"""File restrictions through Landlock: only the named paths can be read, and nothing can be written. Linux 5.13."""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

# linux/landlock.h; the numbers of these calls are the same on every machine.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
#: Rights over files that each version of the interface knows, as a bit mask.
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_CONNECT_AND_BIND_TCP, _ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3
#: First versions that support TCP, and abstract sockets and signals.
_WITH_TCP, _WITH_SCOPES = 4, 6


class _Rules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def read_only(paths: Iterable[Path]) -> bool:
    """Restrict this process to reading ``paths``, files and directories. If the kernel supports it, TCP and signals to
    other processes are denied too. Returns False if the kernel lacks Landlock.

    Needs ``PR_SET_NO_NEW_PRIVS`` and a process of one thread.
    """
    call = ctypes.CDLL(None, use_errno=True).syscall
    version = call(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    size = 24 if version >= _WITH_SCOPES else 16 if version >= _WITH_TCP else 8
    files = _RIGHTS[max(abi for abi in _RIGHTS if abi <= version)]
    ruleset = _Rules(files, _CONNECT_AND_BIND_TCP, _ABSTRACT_SOCKETS_AND_SIGNALS)
    rules = call(_CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), 0)
    if rules < 0:
        return False
    try:
        return all(_allow_path(call, rules, path) for path in paths) and call(_RESTRICT, rules, 0) == 0
    finally:
        os.close(rules)


def _allow_path(call: "ctypes._NamedFuncPointer", rules: int, path: Path) -> bool:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return True  # not there: nothing to allow
    try:
        beneath = _Beneath(_READ_FILE | _READ_DIR if path.is_dir() else _READ_FILE, parent)
        return bool(call(_ADD, rules, _PATH_BENEATH, ctypes.byref(beneath), 0) == 0)
    finally:
        os.close(parent)
