"""A Docker engine for the tests: the running one, or a temporary one.

If the Hub is unreachable, the Python base image is built from Debian packages under the Hub's name, so tests build the
real Dockerfile. Every step has a timeout.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from omnibus.process.tuning import die_with_parent

BASE_IMAGE = "python:3.11-slim-bookworm"
_ENGINE_UP_WITHIN = 60.0  # seconds
_ENGINE_DOWN_WITHIN = 30.0
_PULL_WITHIN = 180.0
_BOOTSTRAP_WITHIN = 900.0
_CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
_PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"


class NoEngine(Exception):
    """Docker engine or base image is not available; the message contains the reason."""


@dataclass(frozen=True)
class DockerEngine:
    """A running engine. ``docker`` and ``compose`` are the beginnings of command lines."""

    docker: tuple[str, ...]
    compose: tuple[str, ...]

    def run(self, *arguments: str, within: float, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run ``docker arguments`` and return the output. Raises ``CalledProcessError`` and ``TimeoutExpired``."""
        return _run_command([*self.docker, *arguments], within, cwd, {"DOCKER_BUILDKIT": "1", **(env or {})})

    def run_compose(
        self, *arguments: str, within: float, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> str:
        """Run ``docker compose arguments``, or ``docker-compose`` on older installations."""
        # Compose v1 builds through the docker command that it finds first in PATH.
        path = f"{Path(self.docker[0]).parent}:{os.environ.get('PATH', '')}"
        builder = {"PATH": path, "DOCKER_BUILDKIT": "1", "COMPOSE_DOCKER_CLI_BUILD": "1"}
        return _run_command([*self.compose, *arguments], within, cwd, {**builder, **(env or {})})


@contextmanager
def start_engine() -> Iterator[DockerEngine]:
    """A running Docker engine. Raises ``NoEngine``."""
    docker = _find_client()
    if _is_running(docker):
        yield DockerEngine((docker,), _compose_command(docker))
        return
    with _start_daemon(docker):
        yield DockerEngine((docker,), _compose_command(docker))


def ensure_image(engine: DockerEngine, name: str = BASE_IMAGE) -> str:
    """Ensure that a Python base image exists as ``name``; return "present", "pulled" or "built".

    Raises ``NoEngine`` if the Hub does not answer and debootstrap is unavailable.
    """
    if _is_success([*engine.docker, "image", "inspect", name], 30):
        return "present"
    if _is_success([*engine.docker, "pull", "--quiet", name], _PULL_WITHIN):
        return "pulled"
    _build_image(engine, name)
    return "built"


def _find_client() -> str:
    # The client next to the daemon's package supports BuildKit; another one in PATH may lack its plugin.
    for candidate in ("/usr/bin/docker", shutil.which("docker")):
        if candidate and Path(candidate).exists():
            return candidate
    raise NoEngine("no docker command")


def _compose_command(docker: str) -> tuple[str, ...]:
    if _is_success([docker, "compose", "version"], 30):
        return (docker, "compose")
    return (shutil.which("docker-compose") or "docker-compose",)


@contextmanager
def _start_daemon(docker: str) -> Iterator[None]:
    daemon = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if daemon is None or os.geteuid() != 0:
        raise NoEngine("no Docker engine runs, and starting one takes dockerd and root")
    with tempfile.NamedTemporaryFile(prefix="dockerd-", suffix=".log") as log:
        # Without CAP_SYS_RESOURCE the engine may not raise limits for containers. Below a group of their own all containers
        # together would get as much CPU as one session of processes: too little for their deadlines during other tests.
        command = [daemon, "--default-ulimit", "nofile=1024:1024", "--cgroup-parent", "/"]
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent(signal.SIGTERM))
        try:
            _wait_for(docker, process, Path(log.name))
            yield
        finally:
            process.terminate()
            try:
                process.wait(_ENGINE_DOWN_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(docker: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up = time.monotonic() + _ENGINE_UP_WITHIN
    while not _is_running(docker):
        if process.poll() is not None or time.monotonic() > give_up:
            last = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise NoEngine(f"dockerd did not come up within {_ENGINE_UP_WITHIN:g} s:\n{last}")
        time.sleep(0.2)


def _is_running(docker: str) -> bool:
    return _is_success([docker, "info"], 10)


def _build_image(engine: DockerEngine, name: str) -> None:
    debootstrap = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if debootstrap is None or os.geteuid() != 0:
        raise NoEngine(f"{name} cannot be pulled, and building it takes debootstrap and root")
    with tempfile.TemporaryDirectory(prefix="omnibus-base-") as directory:
        root = Path(directory) / "root"
        _run_bootstrap([debootstrap, "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root)])
        _finish_root(root)
        _import_image(engine, name, root)


def _run_bootstrap(command: list[str]) -> None:
    try:
        _run_command(command, _BOOTSTRAP_WITHIN)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        last = "\n".join((error.output or "").splitlines()[-5:])
        raise NoEngine(f"debootstrap failed: {error}\n{last}") from error


def _finish_root(root: Path) -> None:
    """Add the Hub image's files that Debian lacks, and local package settings."""
    for name, target in {"python": "/usr/bin/python3", "pip": "/usr/bin/pip3"}.items():
        (root / "usr/local/bin" / name).symlink_to(target)
    for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    if (certificates := Path("/") / _CERTIFICATES).exists():  # it may hold a private authority
        shutil.copyfile(certificates, root / _CERTIFICATES)
    for directory in _local_wheels():
        shutil.copytree(directory, root / directory.relative_to("/"))
    shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)


def _local_wheels() -> list[Path]:
    """Directories with wheels for pip on this machine; builds must use the same."""
    names = os.environ.get("PIP_FIND_LINKS", "").split()
    return [Path(name).resolve() for name in names if Path(name).is_absolute() and Path(name).is_dir()]


def _import_image(engine: DockerEngine, name: str, root: Path) -> None:
    changes = ["CMD python3", f"ENV PIP_CERT=/{_CERTIFICATES} SSL_CERT_FILE=/{_CERTIFICATES}"]
    if wheels := _local_wheels():
        changes.append(f'ENV PIP_FIND_LINKS="{" ".join(map(str, wheels))}"')
    flags = [flag for change in changes for flag in ("--change", change)]
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(
            [*engine.docker, "import", *flags, "-", name],
            stdin=tar.stdout,
            check=True,
            timeout=300,
            capture_output=True,
        )


def _is_success(command: list[str], within: float) -> bool:
    try:
        _run_command(command, within)
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return False
    return True


def _run_command(
    command: list[str], within: float, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    process = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=within,
        check=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
    return process.stdout
