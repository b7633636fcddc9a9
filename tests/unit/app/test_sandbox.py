"""Each restriction of uploaded code, applied in a separate process. It is permanent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omnibus.app import sandbox
from omnibus.errors import NoSandbox

ROOT = Path(__file__).parents[3]

HEAD = """
import ctypes, os, resource, signal, socket, subprocess, sys, threading, time
from pathlib import Path
from omnibus.app import landlock, sandbox, seccomp

def tried(what, *arguments):
    try:
        return what(*arguments)
    except OSError as error:
        return type(error).__name__
"""


def run_code(text: str, **more: str) -> list[str]:
    """The lines that a fresh process printed."""
    env = {"PYTHONPATH": str(ROOT / "shared"), "OPENBLAS_NUM_THREADS": "1", **more}
    process = subprocess.run(
        [sys.executable, "-P", "-c", HEAD + text], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def test_nothing_is_readable_but_what_is_named(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").write_text("yes")
    (tmp_path / "secret").write_text("no")

    lines = run_code(f"""
here = Path({str(tmp_path)!r})
sandbox._without_privileges()
print(landlock.read_only([here / "open", here / "absent"]))
print((here / "open" / "file").read_text())
for attempt in [
    lambda: (here / "secret").read_text(),
    lambda: os.listdir(here),
    lambda: os.listdir("/proc"),
    lambda: (here / "open" / "file").write_text("changed"),
    lambda: (here / "open" / "new").touch(),
    lambda: (here / "open" / "file").unlink(),
    lambda: (here / "open" / "file").rename(here / "open" / "other"),
    lambda: (here / "open" / "directory").mkdir(),
    lambda: os.symlink("/", here / "open" / "link"),
    lambda: os.execv(sys.executable, [sys.executable]),
]:
    print(tried(attempt))
""")

    assert lines == ["True", "yes", *["PermissionError"] * 10]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "open", "secret"]


def test_a_single_file_can_be_named(tmp_path):
    (tmp_path / "one").write_text("yes")
    (tmp_path / "two").write_text("no")

    lines = run_code(f"""
here = Path({str(tmp_path)!r})
sandbox._without_privileges()
print(landlock.read_only([here / "one"]))
print((here / "one").read_text(), tried((here / "two").read_text))
""")

    assert lines == ["True", "yes PermissionError"]


def test_calls_that_an_app_needs_none_of_fail(tmp_path):
    (tmp_path / "file").touch()

    lines = run_code(f"""
here = Path({str(tmp_path)!r})
parent = os.getppid()
sandbox._without_privileges()
print(seccomp.install_filter())
libc = ctypes.CDLL(None)
for attempt in [
    lambda: socket.socket(socket.AF_INET),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    lambda: socket.socket(socket.AF_UNIX),
    os.fork,
    lambda: subprocess.run(["/bin/true"]),
    lambda: os.posix_spawn("/bin/true", ["true"], {{}}),
    lambda: os.execv("/bin/true", ["true"]),
    lambda: os.kill(parent, 0),
    lambda: os.kill(-1, 0),
    lambda: os.chmod(here / "file", 0o777),
    lambda: os.chown(here / "file", 1, 1),
    lambda: os.utime(here / "file"),
    lambda: os.truncate(here / "file", 0),
    lambda: os.setxattr(here / "file", "user.a", b"b"),
    lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE, (1, 1)),
    lambda: os.setpriority(os.PRIO_PROCESS, parent, 19),
    lambda: os.sched_setaffinity(parent, [0]),
]:
    print(tried(attempt))
for call in [(101, 16, parent), (425, 8, 0), (272, 0x40000000), (165, 0), (29, 0, 4096, 0o1600)]:  # x86-64's numbers
    print(libc.syscall(*call))
print(libc.prctl(sandbox._PR_SET_PDEATHSIG, 0), libc.prctl(sandbox._PR_SET_DUMPABLE, 1))
""")

    assert lines[0] == "True"
    assert lines[1:18] == ["PermissionError"] * 17
    if os.uname().machine == "x86_64":
        assert lines[18:23] == ["-1"] * 5
    assert lines[23] == "-1 -1"


def test_calls_that_an_app_needs_still_work():
    lines = run_code("""
sandbox._without_privileges()
print(seccomp.install_filter())
import asyncio
threads = [threading.Thread(target=print, args=("thread",))]
[thread.start() for thread in threads], [thread.join() for thread in threads]
a, b = socket.socketpair()
a.send(b"pair"); print(b.recv(4).decode())
asyncio.run(asyncio.sleep(0)); print("loop")
os.kill(os.getpid(), 0); print("self")
resource.getrlimit(resource.RLIMIT_NOFILE); print("limits")
print(len(os.urandom(4)))
""")

    assert lines == ["True", "thread", "pair", "loop", "self", "limits", "4"]


@pytest.mark.parametrize("user", [0, 65534], ids=["as-it-is", "without-privileges"])
def test_the_network_is_left_behind(user):
    with_network, without = run_code(f"""
if {user} and os.geteuid() == 0:
    os.setresuid({user}, {user}, {user})
def names():
    return [name for _, name in socket.if_nameindex()]
before = set(names())
held = sandbox._leave_network()
print(len(before))
print(held, len(set(names()) - {{"lo"}}), tried(lambda: socket.socket().connect(("127.0.0.1", 9))))
""")

    assert int(with_network) >= 1
    if without.startswith("False"):
        pytest.skip("this kernel gives no network namespaces away: the filter on system calls has to do")
    assert without.startswith("True 0 ")
    assert without.endswith(("OSError", "ConnectionRefusedError"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_becomes_a_user_that_is_nobody_else(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("no")
    secret.chmod(0o600)

    lines = run_code(f"""
print(sandbox._switch_user([]))
print(set(os.getresuid() + os.getresgid()) == {{sandbox._USER_IDS[os.getpid() % len(sandbox._USER_IDS)]}}, os.getgroups())
print(tried(Path({str(secret)!r}).read_text), tried(os.setuid, 0))
sandbox._without_privileges()
print(sandbox._has_capabilities())
""")

    assert lines == ["True", "True []", "PermissionError PermissionError", "False"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_stays_root_without_privileges_where_others_could_not_read_python(tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)

    lines = run_code(f"""
print(sandbox._switch_user([Path({str(hidden)!r})]), os.geteuid())
sandbox._without_privileges()
print(sandbox._has_capabilities(), tried(os.setuid, 12345))
""")

    assert lines == ["False 0", "False PermissionError"]


def test_limits_hold_and_cannot_be_raised(tmp_path):
    lines = run_code(f"""
sandbox._limit_resources(1 << 30)
sandbox._without_privileges()
try:
    bytearray(2 << 30)
except MemoryError:
    print("memory")
files = []
try:
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    print("files", len(files) < sandbox.MAX_OPEN_FILES)
[os.close(file) for file in files]
path = {str(tmp_path / "file")!r}
def write():
    with open(path, "wb", buffering=0) as file:
        file.write(b"x")
print(tried(write))
for what in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
    try:
        resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, OSError):
        print("kept")
""")

    assert lines == ["memory", "files True", "OSError", "kept", "kept", "kept"]


def test_a_process_with_threads_is_not_restricted_and_runs_nothing():
    (line,) = run_code("""
from omnibus.errors import NoSandbox
stop = threading.Event()
threading.Thread(target=stop.wait).start()
try:
    sandbox.restrict_process(2, 0)
except NoSandbox as error:
    print(error)
stop.set()
""")

    assert "has several threads" in line


def test_all_walls_together_leave_python_working(tmp_path):
    lines = run_code(
        """
inherited = os.open("/dev/null", os.O_RDONLY)
ours, theirs = socket.socketpair()
print(*sandbox.restrict_process(theirs.fileno(), 4 << 30))
import sqlite3, json, zoneinfo, decimal
print(tried(os.fstat, inherited), tried(os.fstat, ours.fileno()), os.fstat(theirs.fileno()).st_size)
print(dict(os.environ), os.getcwd(), tried(lambda: Path("/proc/self/environ").read_text()))
""",
        SECRET="s3cret",
    )

    restrictions = lines[0].split()
    assert {"limits", "privileges", "read-only", "calls"} <= set(restrictions)
    assert lines[1] == "OSError OSError 0"
    assert lines[2] == "{} / PermissionError"


@pytest.mark.parametrize(
    ("restrictions", "missing"),
    [
        (["limits", "privileges"], "files"),
        (["limits", "own-user"], "network"),
        (["limits", "read-only"], "network"),
        (["limits", "no-network", "calls"], "files"),
    ],
)
def test_code_does_not_run_where_it_could_reach_files_or_the_network(restrictions, missing):
    with pytest.raises(NoSandbox, match=f"cannot restrict uploaded code's access to its {missing} .only limits"):
        sandbox._check_restrictions(restrictions)


@pytest.mark.parametrize("restrictions", [["own-user", "calls"], ["read-only", "no-network"], ["read-only", "calls"]])
def test_one_wall_for_files_and_one_for_the_network_are_enough(restrictions):
    sandbox._check_restrictions(restrictions)
