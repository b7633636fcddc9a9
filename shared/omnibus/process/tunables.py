"""Tunables of glibc for processes that copy tensors."""

from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
_NAME = "glibc.cpu.x86_non_temporal_threshold"
#: Bytes from which a copy goes past the caches. glibc begins at three quarters of a core's share of the last cache,
#: tens of megabytes on a server. A tensor for another process is not read again by the core that writes it, and a write
#: through the caches reads each line of the target first.
_NON_TEMPORAL_BYTES = 4 << 20


def copy_tunables(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment that lets copies of tensors go past the caches, unless ``environ`` says from which size they do.

    On processors other than x86, and without glibc, it changes nothing.
    """
    given = environ.get(VARIABLE, "")
    if _NAME in given:
        return {}
    return {VARIABLE: ":".join(filter(None, [given, f"{_NAME}={_NON_TEMPORAL_BYTES:#x}"]))}
