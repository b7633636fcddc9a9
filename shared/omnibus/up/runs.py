"""Runs of ``omnibus up`` of this user: where they register, and the choice of one for a command.

Private directory of one ``omnibus up``. It has a lock that is held while the run lasts.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from omnibus.errors import BadRequest, Conflict, Fatal, StageUnavailable
from omnibus.up.join import JoinFile
from omnibus.up.shm import remove_orphaned_arenas, remove_shared_memory

#: The file of a run directory that contains all addresses.
STATE = "up.json"
#: Variable with the name of the run that commands connect to.
RUN = "OMNIBUS_RUN"
_LOCK = "up.lock"


class RunState(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Addresses of a running Omnibus: URLs, ports and process ids. ``started`` is in ``time.time()`` seconds.

    ``ports`` has one for each gateway: ``gateway``, ``gateway-1`` and so on. ``admin_token`` grants access to their
    control routes. ``store_secret`` signs documents in the store. ``apps_dir`` is the directory from which apps may be
    registered. ``certificate`` is the file of gateways with TLS. A ``passing`` run serves one command and ends: other
    commands connect to it only if it is named, or the only run. ``ready`` means that the whole system serves.
    ``loaded`` of the ``executors`` in the first plan are ready. ``join`` has the credentials for other machines, if
    they may join. ``bus_ca`` is the file of the bus's certificate, if it uses TLS.
    """

    directory: str
    pid: int  # of the supervisor
    started: float
    nats_url: str
    store_url: str
    monitor_url: str = ""
    gateway_url: str = ""
    ports: dict[str, int] = {}
    pids: dict[str, int] = {}
    shm_prefix: str = ""
    admin_token: str = ""
    store_secret: str = ""
    apps_dir: str = ""
    certificate: str = ""
    name: str = ""
    passing: bool = False
    ready: bool = False
    executors: int = 0
    loaded: int = 0
    bus_ca: str = ""
    join: JoinFile | None = None


def registry_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory in which this user's runs register. Each run has a file in it."""
    environ = os.environ if environ is None else environ
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "omnibus" / "runs"
    return Path(environ.get("HOME") or Path.home()) / ".omnibus" / "runs"


def list_runs(environ: Mapping[str, str] | None = None) -> list[RunState]:
    """Return this user's runs that are up or starting, oldest first."""
    states = [load_state(path) for path in registry_path(environ).glob("*.json")]
    running = [state for state in states if state is not None and is_locked(Path(state.directory))]
    return sorted(running, key=lambda state: (state.started, state.name))


def read_state(directory: Path | None = None, environ: Mapping[str, str] | None = None) -> RunState:
    """Return the state of the chosen run. It is the one in ``directory``, the one that ``OMNIBUS_RUN`` names, or this
    user's only one.

    Raises ``StageUnavailable`` if no Omnibus runs there, and ``BadRequest`` if several run and none is named.
    """
    environ = os.environ if environ is None else environ
    if directory is not None:
        state = load_state(directory / STATE)
        if state is None or not is_locked(Path(state.directory)):
            raise StageUnavailable(f"no running Omnibus found in {directory}; start one with `omnibus up`")
        return state
    running, name = list_runs(environ), environ.get(RUN, "")
    if name:
        return _named_run(running, name)
    lasting = [state for state in running if not state.passing] or running
    if not lasting:
        raise StageUnavailable("no running Omnibus found; start one with `omnibus up`")
    if len(lasting) > 1:
        raise BadRequest(f"name one of several runs with --run NAME or {RUN}: {_describe(lasting)}")
    return lasting[0]


def load_state(path: Path) -> RunState | None:
    """Return the state in the file ``path``, None if unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def remove_stale_entries(registry: Path) -> None:
    """Remove the entries of killed runs from ``registry``."""
    for path in registry.glob("*.json"):
        state = load_state(path)
        if state is None or not is_locked(Path(state.directory)):
            path.unlink(missing_ok=True)


def take_lock(path: Path) -> int | None:
    """Take the lock of ``path``, or return None if it is held. The kernel releases it when the holder ends."""
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if _try_flock(descriptor, fcntl.LOCK_EX):
        return descriptor
    os.close(descriptor)
    return None


def is_locked(path: Path) -> bool:
    """Return whether the supervisor of the run directory ``path`` is running."""
    try:
        descriptor = os.open(path / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_flock(descriptor, fcntl.LOCK_SH)  # shared, for concurrent readers
    finally:
        os.close(descriptor)


def _try_flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _named_run(running: list[RunState], name: str) -> RunState:
    for state in running:
        if state.name == name:
            return state
    there = f"running are {_describe(running)}" if running else "none is running"
    raise StageUnavailable(f"unknown run {name}: {there}")


def _describe(states: list[RunState]) -> str:
    return ", ".join(f"{state.name} ({state.gateway_url})" for state in states)


_PREFIX = "omnibus-run-"


class RunDirectory:
    """Private directory (mode 0700) of one supervisor, while the context is open.

    Without ``path``, it is a fresh temporary one, removed at the end. First, the leftovers of killed supervisors are
    removed. Raises ``Conflict`` if another run has the ``name``.
    """

    def __init__(self, path: Path | None = None, environ: Mapping[str, str] | None = None, *, name: str = "") -> None:
        self._temporary = path is None
        self._given = path
        self._registry = registry_path(environ)
        self._name = name
        self._entry: Path | None = None

    def __enter__(self) -> "RunDirectory":
        self._registry.mkdir(mode=0o700, parents=True, exist_ok=True)  # if this fails, nothing has started yet
        remove_leftovers()
        remove_stale_entries(self._registry)
        if self._name:
            self._check_name(self._name)
        if self._given is None:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        else:
            self.path = self._given.resolve()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = take_lock(self.path)
        if self._lock is None:
            raise Fatal(f"{self.path} is in use by a running `omnibus up`: choose another directory")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entry is not None:
            self._entry.unlink(missing_ok=True)
        (self.path / STATE).unlink(missing_ok=True)
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
        _replace_file(self.path / STATE, text)
        self._registry.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._entry = self._registry / f"{name}.json"
        _replace_file(self._entry, text)

    def _check_name(self, name: str) -> None:
        there = load_state(self._registry / f"{name}.json")
        if there is not None and is_locked(Path(there.directory)):
            raise Conflict(f"a run named {name} is up at {there.gateway_url}: choose another name with --name")


def remove_leftovers(root: Path | None = None) -> list[Path]:
    """Remove run directories and shared memory of this user's killed supervisors."""
    removed_paths = []
    for path in (root or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
        # A directory without a state may be a new one.
        state = load_state(path / STATE) if _is_mine(path) else None
        if state is not None and not is_locked(path):
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
