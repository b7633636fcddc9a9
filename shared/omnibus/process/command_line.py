"""Command line and environment of a process as the kernel shows them, in ``/proc/PID`` and ``ps``."""

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Fields of ``/proc/PID/stat`` after the name: address of the first byte of the arguments, the end address, and
#: those of the environment.
_ARGUMENTS, _ENVIRONMENT = (45, 46), (47, 48)  # 48 to 51 of proc(5), which counts from 1, and the two before


def show_command_line(argv: Sequence[str]) -> None:
    """Show ``argv`` as the command line of this process.

    A forked process would otherwise be shown as its parent. The memory of the former arguments is overwritten, so a
    longer text is cut off. Linux only. If the kernel does not report the addresses, nothing changes.
    """
    _overwrite(_ARGUMENTS, argv)


def show_environment(environ: Mapping[str, str]) -> None:
    """Show ``environ`` as the environment of this process, in its order. Works as ``show_command_line``.

    Call it when no variable of the former environment is in use, as it is overwritten.
    """
    _overwrite(_ENVIRONMENT, [f"{name}={value}" for name, value in environ.items()])


def _overwrite(addresses: tuple[int, int], texts: Sequence[str]) -> None:
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # in a namespace of processes without its own /proc
        return
    begin, end = (int(fields[number]) for number in addresses)
    size = end - begin
    if begin == 0 or size <= 0:
        return
    text = b"\0".join(map(os.fsencode, texts))[: size - 1]
    ctypes.memmove(begin, text.ljust(size, b"\0"), size)
