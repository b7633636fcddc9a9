"""Limit of open files and sockets of a process."""

import resource


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
