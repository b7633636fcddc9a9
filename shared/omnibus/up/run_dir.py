"""Private directory of one ``omnibus up``. It has a lock that is held while the run lasts."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from omnibus.errors import Conflict, Fatal
from omnibus.up import runs
from omnibus.up.runs import RunState
from omnibus.up.shm import remove_orphaned_arenas, remove_shared_memory

_PREFIX = "omnibus-run-"


class RunDirectory:
    """Private directory (mode 0700) of one supervisor, while the context is open.

    Without ``path``, it is a fresh temporary one, removed at the end. First, the leftovers of killed supervisors are
    removed. Raises ``Conflict`` if another run has the ``name``.
    """

    def __init__(self, path: Path | None = None, environ: Mapping[str, str] | None = None, *, name: str = "") -> None:
        self._temporary = path is None
        self._given = path
        self._registry = runs.registry_path(environ)
        self._name = name
        self._entry: Path | None = None

    def __enter__(self) -> "RunDirectory":
        self._registry.mkdir(mode=0o700, parents=True, exist_ok=True)  # if this fails, nothing has started yet
        remove_leftovers()
        runs.remove_stale_entries(self._registry)
        if self._name:
            self._check_name(self._name)
        if self._given is None:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        else:
            self.path = self._given.resolve()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = runs.take_lock(self.path)
        if self._lock is None:
            raise Fatal(f"{self.path} is in use by a running `omnibus up`: choose another directory")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entry is not None:
            self._entry.unlink(missing_ok=True)
        (self.path / runs.STATE).unlink(missing_ok=True)
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def write_state(self, state: RunState) -> None:
        """Publish ``state`` atomically: readers get the old one or the new one."""
        name = state.name or self._name or self.path.name
        if self._entry is None:
            self._check_name(name)
        text = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(state, name=name)))
        _replace_file(self.path / runs.STATE, text)
        self._registry.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._entry = self._registry / f"{name}.json"
        _replace_file(self._entry, text)

    def _check_name(self, name: str) -> None:
        there = runs.load_state(self._registry / f"{name}.json")
        if there is not None and runs.is_locked(Path(there.directory)):
            raise Conflict(f"a run named {name} is up at {there.gateway_url}: choose another name with --name")


def remove_leftovers(root: Path | None = None) -> list[Path]:
    """Remove run directories and shared memory of this user's killed supervisors."""
    removed_paths = []
    for path in (root or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
        # A directory without a state may be a new one.
        state = runs.load_state(path / runs.STATE) if _is_mine(path) else None
        if state is not None and not runs.is_locked(path):
            remove_shared_memory(state.shm_prefix)
            shutil.rmtree(path, ignore_errors=True)
            removed_paths.append(path)
    remove_orphaned_arenas()  # of runs with directories elsewhere, or without one
    return removed_paths


def _is_mine(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid() and not path.is_symlink()
    except FileNotFoundError:
        return False


def _replace_file(path: Path, text: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
