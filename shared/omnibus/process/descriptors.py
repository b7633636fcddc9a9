"""Files and sockets that a process may have open."""

import resource


def raise_descriptor_limit() -> int:
    """Let this process open as many files as the kernel lets it; returns how many.

    The usual soft limit of 1024 is for programs that wait by ``select``. A server needs one for each of its clients.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS: unlimited is more than it takes
            return soft
    return hard
