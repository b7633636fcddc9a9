"""``python -m omnibus.up.fork_server SOCKET MODULE...``: imports modules once and forks the processes that need them.

The libraries of engines take seconds and hundreds of megabytes to import, those of a gateway a second. Forked from a
process that has them, an executor or a service starts within milliseconds. It shares their memory until it writes to
it. Each connection to the socket, made by ``omnibus.up.fork_client``, is one process. The fork server returns the
process's id with a descriptor of it, and later its wait status. A closed connection kills the process and its group.
Linux only.

Processes outlive the fork server. Each holds a *lifeline*, a pipe whose other end its proxy holds. When that end is
closed, the kernel kills the process and its group.

Only a process with a single thread can be forked safely. The driver of a GPU does not survive a fork after its first
use. If a module starts a thread or uses a GPU, processes are forked and start a new interpreter at once. They then
start as slowly as any other process, and share nothing.

Unmaps pages of library files from this process, on Linux.
"""

import ctypes
import gc
import importlib
import os
import re
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from omnibus.errors import Fatal
from omnibus.executor.settings import ExecutorSettings
from omnibus.process.command_line import show_command_line, show_environment
from omnibus.process.spec import python_command
from omnibus.process.tuning import die_with_lifeline
from omnibus.service import set_log_level
from omnibus.settings import ServiceSettings, UpSettings, read_settings
from omnibus.up import fork_client

#: One mapping of ``/proc/self/smaps``: its first and last address, mode and file, and its lines of counts.
_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ +(/.*)\n((?:[A-Z]\w+:.*\n)+)", re.MULTILINE)
_UNCHANGED = re.compile(rb"^Anonymous: +0 kB$", re.MULTILINE)
_DONT_NEED = 4  # MADV_DONTNEED


def drop_clean_pages(smaps: Path = Path("/proc/self/smaps")) -> int:
    """Unmap what this process has read of files that it maps privately, and has not changed.

    Imports read 80 MB of libraries that a process may never use again. The kernel keeps the pages in its cache while
    memory is free, and maps each again when it is used. Returns the bytes of the mappings; 0 if the system does not
    list them, as in a namespace of processes without a ``/proc`` of its own.
    """
    if not smaps.is_file():
        return 0
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    dropped = 0
    for first, last, mode, _, counts in _MAPPING.findall(smaps.read_bytes()):
        start, end = int(first, 16), int(last, 16)
        if mode.endswith(b"p") and _UNCHANGED.search(counts) and madvise(start, end - start, _DONT_NEED) == 0:
            dropped += end - start
    return dropped


_READ_BYTES = 1 << 16  # bytes
_DESCRIPTOR_COUNT = 4  # standard input, output and error, and the lifeline
_BACKLOG = 128
#: Threads that survive a fork: jemalloc, a part of pyarrow, restarts its thread in the child.
_FORK_SAFE_THREADS = {"jemalloc_bg_thd"}
#: Devices that drivers of GPUs (NVIDIA's, AMD's) open on their first use. Counting devices does not open them.
_GPU_DEVICES = {"/dev/nvidia-uvm", "/dev/kfd"}


def can_fork(environ: Mapping[str, str]) -> bool:
    """Return whether processes with this environment are forked: on Linux, unless it is turned off."""
    return sys.platform == "linux" and read_settings(UpSettings, environ).fork_server


def can_fork_executors(environ: Mapping[str, str]) -> bool:
    """Return whether executors with this environment are forked: like others, and with the default engine."""
    return can_fork(environ) and read_settings(ExecutorSettings, environ).engine == ExecutorSettings().engine


class ForkedProcess:
    """Connection and the process that is forked for it."""

    def __init__(self, fork_server: "ForkServer", connection: socket.socket) -> None:
        self._fork_server = fork_server
        self._connection = connection
        self._received = b""
        self._streams: list[int] = []
        self._pid = 0  # until the fork
        self._end = -1  # a descriptor that becomes readable when the process ends
        self._closed = False
        fork_server.watch_descriptor(connection.fileno(), self._on_readable)

    def close(self) -> None:
        """Close every descriptor. Closing twice is harmless."""
        self._connection.close()
        self._close_streams()
        if self._end >= 0:
            os.close(self._end)
            self._end = -1

    def _on_readable(self) -> None:
        if self._closed:  # by another event of the same round
            return
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, _READ_BYTES, _DESCRIPTOR_COUNT)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        self._streams += descriptors
        if not data:
            self._on_disconnect()
        elif not self._pid:
            self._on_request(data)

    def _on_request(self, data: bytes) -> None:
        self._received += data
        if self._received == fork_client.PING:
            self._leave_fork_server()
            return
        try:
            request = fork_client.unpack_request(self._received)
            if request is not None:
                self._fork_process(*request)
        except (OSError, ValueError) as error:
            _print_line(f"a process was not forked: {error}")
            self._handle_failure()

    def _fork_process(self, argv: list[str], environ: dict[str, str], cwd: str) -> None:
        if len(self._streams) != _DESCRIPTOR_COUNT:
            raise ValueError(
                f"a request must have {_DESCRIPTOR_COUNT} standard streams and lifelines, not {len(self._streams)}"
            )
        pid = os.fork()
        if pid == 0:
            run = _run_module if self._fork_server.shares_modules else _exec_module
            _run_child(lambda: self._set_up_child(argv, environ, cwd), partial(run, argv))
        self._pid, self._received = pid, b""
        with suppress(OSError):  # the child does the same: it has a group from here on, in either order
            os.setpgid(pid, pid)
        self._close_streams()
        self._end = os.pidfd_open(pid)
        self._fork_server.watch_descriptor(self._end, self._on_process_end)
        with suppress(OSError):  # the proxy has ended, which also closes the connection
            socket.send_fds(self._connection, [pid.to_bytes(fork_client.STATUS_BYTES, "big")], [self._end])

    def _set_up_child(self, argv: Sequence[str], environ: dict[str, str], cwd: str) -> None:
        """Set up the child as the kernel sets up a new process."""
        show_command_line(python_command(*argv))
        os.setpgid(0, 0)
        *streams, lifeline = self._streams
        lifeline = os.dup(lifeline)
        os.set_inheritable(lifeline, not self._fork_server.shares_modules)
        die_with_lifeline(lifeline)
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
        self._fork_server.close()
        os.environ.clear()
        os.environ.update(environ)
        show_environment(environ)
        os.chdir(cwd)
        sys.path[0] = os.getcwd()

    def _handle_failure(self) -> None:
        if self._pid:  # forked, but no descriptor was left to watch it
            self._on_process_end()
        else:
            self._leave_fork_server()

    def _on_disconnect(self) -> None:
        """Kill the process, as its proxy has ended. Its end closes this connection."""
        if self._pid:
            self._fork_server.forget_descriptor(self._connection.fileno())
            self._kill_group()
        else:
            self._leave_fork_server()

    def _on_process_end(self) -> None:
        self._kill_group()  # the rest of its group
        _, status = os.waitpid(self._pid, 0)
        with suppress(OSError):
            self._connection.send(status.to_bytes(fork_client.STATUS_BYTES, "big"))
        self._leave_fork_server()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    def _leave_fork_server(self) -> None:
        self._closed = True
        for descriptor in (self._connection.fileno(), self._end):
            self._fork_server.forget_descriptor(descriptor)
        self._fork_server.processes.discard(self)
        self.close()

    def _close_streams(self) -> None:
        for descriptor in self._streams:
            os.close(descriptor)
        self._streams = []


class ForkServer:
    """Serves ``listener`` forever, without threads and without waiting for one process.

    With ``shares_modules``, processes start with the modules imported here; else each imports its own.
    """

    def __init__(self, listener: socket.socket, *, shares_modules: bool = True) -> None:
        if sys.platform != "linux":
            raise Fatal(
                "the fork server requires Linux: set OMNIBUS_UP_FORK_SERVER=0 to start executors as separate processes"
            )
        self.processes: set[ForkedProcess] = set()
        self.shares_modules = shares_modules
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self.watch_descriptor(listener.fileno(), self._accept_connection)

    def serve(self) -> NoReturn:
        """Fork a process per connection until a signal ends the fork server. The signal does not end the processes."""
        while True:
            for key, _ in self._selector.select():
                key.data()

    def watch_descriptor(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call ``call`` whenever ``descriptor`` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def forget_descriptor(self, descriptor: int) -> None:
        """Undo ``watch_descriptor``. Harmless if the descriptor is not watched."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    def close(self) -> None:
        """Close the descriptors of the fork server in a child. Other processes are not affected."""
        self._selector.close()
        self._listener.close()
        for process in self.processes:
            process.close()

    def _accept_connection(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # the client closed it meanwhile, or no descriptors are left
            _print_line(f"a connection was not accepted: {error}")
            return
        connection.setblocking(False)
        self.processes.add(ForkedProcess(self, connection))


def _run_child(settle: Callable[[], None], run: Callable[[], int]) -> NoReturn:
    """Run the whole life of a child. This never returns to the fork server's loop."""
    code = 1
    try:
        settle()
        _reset_process_state()
        code = run()
    except BaseException:  # noqa: BLE001 the boundary of a process: an interpreter would end it like this
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        # A regular exit of the interpreter would write to, and so copy, all the shared memory.
        os._exit(code)


def _reset_process_state() -> None:
    """Reset state that two processes must not share. ``random`` and ``secrets`` reset themselves."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "numpy.random" in sys.modules:
        import numpy as np

        np.random.seed()
    gc.enable()


def _run_module(argv: list[str]) -> int:
    """Run the module ``argv[0]`` as ``python -m`` does, and return its exit code."""
    sys.argv = list(argv)
    try:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        _print_line(str(end.code))
        return 1
    return 0


def _exec_module(argv: list[str]) -> NoReturn:
    """Become ``python -m`` of the module ``argv[0]``. Descriptors that are not inheritable are closed."""
    os.execve(sys.executable, python_command(*argv), os.environ)  # noqa: S606 there is nothing for a shell to do


def _print_line(line: str) -> None:
    sys.stderr.write(line + "\n")


def warn_of_threads() -> bool:
    """Return whether threads would not survive a fork, with a warning."""
    threads = [task for task in os.scandir("/proc/self/task") if int(task.name) != os.getpid()]
    unsafe = {Path(thread.path, "comm").read_text().strip() for thread in threads} - _FORK_SAFE_THREADS
    if unsafe:
        _print_line(
            f"the imports started threads ({', '.join(sorted(unsafe))}), so each process imports its libraries "
            "and starts more slowly; try OMP_NUM_THREADS=1"
        )
    return bool(unsafe)


def warn_of_gpu_drivers() -> bool:
    """Return whether this process uses a GPU driver, with a warning."""
    open_files = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the directory itself
            open_files.add(os.readlink(f"/proc/self/fd/{name}"))
    in_use = sorted(open_files & _GPU_DEVICES)
    if in_use:
        _print_line(
            f"the imports used a GPU ({', '.join(in_use)}), so each process imports its libraries and "
            "starts more slowly"
        )
    return bool(in_use)


def _open_listener(path: str) -> socket.socket:
    Path(path).unlink(missing_ok=True)  # left by a killed fork server
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(mask)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def main(arguments: Sequence[str]) -> NoReturn:
    """Import ``arguments[1:]``, then listen at ``arguments[0]`` and serve forever.

    An argument ``module:function:text`` also calls a function of the module with ``text``.
    """
    # Garbage of the imports is never freed. A search for it takes half a second, and each child would get a copy of
    # the pages whose holes it reuses.
    gc.disable()
    for argument in arguments[1:]:
        name, *call = argument.split(":", 2)
        module = importlib.import_module(name)
        if call:
            function, text = call
            getattr(module, function)(text)
    set_log_level(read_settings(ServiceSettings, os.environ).log_level)
    warnings = [warn_of_threads(), warn_of_gpu_drivers()]
    gc.freeze()
    drop_clean_pages()
    ForkServer(_open_listener(arguments[0]), shares_modules=not any(warnings)).serve()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Fatal as failed:
        sys.exit(failed.message)
