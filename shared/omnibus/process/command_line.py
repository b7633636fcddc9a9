"""Command line of a process as the kernel shows it. It is in ``/proc/PID/cmdline`` and ``ps``."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

#: Fields of ``/proc/PID/stat`` after the name: address of the first byte of the arguments, and the end address.
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46  # 48 and 49 of proc(5), which counts from 1, and the two before


def show_command_line(argv: Sequence[str]) -> None:
    """Show ``argv`` as the command line of this process.

    A forked process would otherwise be shown as its parent. The memory of the former arguments is overwritten, so a
    longer text is cut off. Linux only. If the kernel does not report the addresses, nothing changes.
    """
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # in a namespace of processes without its own /proc
        return
    begin, end = (int(fields[number]) for number in (_ARGUMENTS_BEGIN, _ARGUMENTS_END))
    size = end - begin
    if begin == 0 or size <= 0:
        return
    text = b"\0".join(map(os.fsencode, argv))[: size - 1]
    ctypes.memmove(begin, text.ljust(size, b"\0"), size)
