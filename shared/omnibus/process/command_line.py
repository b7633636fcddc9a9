"""The command line that the kernel shows of a process: ``/proc/PID/cmdline``, and so ``ps``."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

#: Fields of ``/proc/PID/stat`` behind the name: addresses of the first byte of the arguments, and behind the last one.
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46  # 48 and 49 of proc(5), which counts from 1, and the two before


def show_command_line(argv: Sequence[str]) -> None:
    """Have the kernel show ``argv`` for this process, which was forked and would be shown as its parent.

    The memory of the former arguments is overwritten: what does not fit there is cut off. Linux only; where the kernel
    does not say where they are, nothing changes.
    """
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # in a namespace of processes without a /proc of its own
        return
    begin, end = (int(fields[number]) for number in (_ARGUMENTS_BEGIN, _ARGUMENTS_END))
    size = end - begin
    if begin == 0 or size <= 0:
        return
    text = b"\0".join(map(os.fsencode, argv))[: size - 1]
    ctypes.memmove(begin, text.ljust(size, b"\0"), size)
