"""Tunables of glibc for processes that copy tensors."""

from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
_NAME = "glibc.cpu.x86_non_temporal_threshold"
#: Minimum bytes of a copy that bypasses the caches. glibc's default is three quarters of a core's share of the last
#: cache, tens of megabytes on a server. The core that writes a tensor for another process does not read it again, and a
#: write through the caches reads each line of the target first.
_NON_TEMPORAL_BYTES = 4 << 20


def copy_tunables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that let copies of tensors bypass the caches.

    If ``environ`` has the size from which copies bypass them, nothing is returned. On processors other than x86, and
    without glibc, the variables have no effect.
    """
    value = environ.get(VARIABLE, "")
    if _NAME in value:
        return {}
    return {VARIABLE: ":".join(filter(None, [value, f"{_NAME}={_NON_TEMPORAL_BYTES:#x}"]))}
