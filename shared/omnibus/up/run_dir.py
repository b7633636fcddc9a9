"""The directory of one ``omnibus up`` and the file in it that tells other commands where everything is."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from omnibus.errors import Fatal, StageUnavailable
from omnibus.up.shm import remove_shared_memory

_PREFIX = "omnibus-run-"
_STATE = "up.json"
_LOCK = "up.lock"


class RunState(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Addresses of a running Omnibus: URLs, ports and process ids. ``started`` is in ``time.time()`` seconds.

    ``ports`` has one for each gateway: ``gateway``, ``gateway-1`` and so on. ``admin_token`` opens their
    control routes; ``apps_dir`` is where apps that are directories may lie. ``certificate`` is the file of
    gateways that speak TLS.
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
    apps_dir: str = ""
    certificate: str = ""


class RunDirectory:
    """A private directory (mode 0700) that belongs to one supervisor while the context is open.

    Without ``path`` a fresh temporary one, removed at the end. What an earlier supervisor left behind
    when it was killed is removed first. A ``passing`` run is not the one that other commands find while
    another one of this user goes on.
    """

    def __init__(
        self, path: Path | None = None, environ: Mapping[str, str] | None = None, *, passing: bool = False
    ) -> None:
        self._temporary = path is None
        self._passing = passing
        self._given = path
        self._pointer = pointer_path(environ)

    def __enter__(self) -> "RunDirectory":
        remove_leftovers()
        if self._given is None:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        else:
            self.path = self._given.resolve()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _take_lock(self.path)
        if self._lock is None:
            raise Fatal(f"{self.path} belongs to an `omnibus up` that is still running; choose another directory")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _points_to(self._pointer, self.path):
            self._pointer.unlink(missing_ok=True)
        (self.path / _STATE).unlink(missing_ok=True)
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def write_state(self, state: RunState) -> None:
        """Publish ``state``: readers see the old one or the new one, never half of one."""
        text = msgspec.json.format(msgspec.json.encode(state))
        _replace_file(self.path / _STATE, text)
        if self._passing and self._other_runs():
            return
        self._pointer.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace_file(self._pointer, text)

    def _other_runs(self) -> bool:
        there = _load_state(self._pointer)
        return there is not None and there.directory != str(self.path) and _is_locked(Path(there.directory))


def pointer_path(environ: Mapping[str, str] | None = None) -> Path:
    """The file that holds the state of the latest run of this user."""
    environ = os.environ if environ is None else environ
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "omnibus" / "current.json"
    return Path(environ.get("HOME") or Path.home()) / ".omnibus" / "run" / "current.json"


def read_state(directory: Path | None = None, environ: Mapping[str, str] | None = None) -> RunState:
    """The state of the run in ``directory``, or of the latest run of this user.

    Raises ``StageUnavailable`` when no Omnibus runs there.
    """
    path = directory / _STATE if directory else pointer_path(environ)
    state = _load_state(path)
    if state is None or not _is_locked(Path(state.directory)):
        raise StageUnavailable(f"no running Omnibus found at {path}; start one with `omnibus up`")
    return state


def remove_leftovers(root: Path | None = None) -> list[Path]:
    """Remove temporary run directories and shared memory of supervisors of this user that were killed."""
    removed = []
    for path in (root or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
        # Without a state it may be one that is just being made.
        state = _load_state(path / _STATE) if _is_mine(path) else None
        if state is not None and not _is_locked(path):
            remove_shared_memory(state.shm_prefix)
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def _load_state(path: Path) -> RunState | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _is_mine(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid() and not path.is_symlink()
    except FileNotFoundError:
        return False


def _take_lock(path: Path) -> int | None:
    """Take the lock of ``path``, which the kernel drops when the holder dies; None when it is held."""
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if _try_flock(descriptor, fcntl.LOCK_EX):
        return descriptor
    os.close(descriptor)
    return None


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_flock(descriptor, fcntl.LOCK_SH)  # shared: two readers do not disturb each other
    finally:
        os.close(descriptor)


def _try_flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _points_to(pointer_file: Path, directory: Path) -> bool:
    state = _load_state(pointer_file)
    return state is not None and state.directory == str(directory)


def _replace_file(path: Path, text: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
