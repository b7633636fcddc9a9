"""Shared-memory files that killed processes have left behind."""

from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def remove_shared_memory(prefix: str, directory: Path = SHARED_MEMORY) -> list[str]:
    """Remove the files in ``directory`` whose name begins with ``prefix`` and return their names.

    An empty prefix removes nothing. Memory that is still mapped stays valid until it is unmapped.
    """
    if not prefix or not directory.is_dir():
        return []
    found = sorted(path for path in directory.iterdir() if path.name.startswith(prefix))
    for path in found:
        path.unlink(missing_ok=True)
    return [path.name for path in found]
