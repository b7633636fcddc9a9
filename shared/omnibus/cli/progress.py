"""Progress bar on stderr that disappears after the work."""

import asyncio
import os
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_REFRESH_SECONDS = 0.2


class ProgressBar:
    """Progress bar for one kind of work after another.

    The bar is drawn on terminals only, while the context is open. In files and pipes, and with ``silent``, nothing is
    written, except one line per update with ``lines``. Output of the command appears above the bar. The event loop, if
    one runs, updates the clock of the bar. There is no thread for that, since processes are forked meanwhile.
    """

    def __init__(self, stream: TextIO | None = None, *, silent: bool = False, lines: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._drawn = not silent and _is_terminal(self._stream)
        self._lines = lines and not silent and not self._drawn
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._what = ""
        self._refreshed = 0.0

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(self, phase: str, done_count: int, count: int, words: str = "") -> None:
        """Show that ``done_count`` of ``count`` units of ``phase`` are done. ``words`` describe it."""
        if self._lines:
            print(f"{phase}: {words or 'done'} ({done_count} of {count})", file=self._stream, flush=True)
        if not self._drawn:
            return
        bar = self._progress = self._progress or self._open()
        begins = self._task is None or phase != self._what
        if self._task is None or phase != self._what:
            for task in bar.task_ids:
                bar.remove_task(task)
            self._task, self._what = bar.add_task(phase, total=count, words=words), phase
        bar.update(self._task, completed=done_count, total=count, words=words)
        if begins or done_count >= count or time.monotonic() - self._refreshed >= _REFRESH_SECONDS:
            self._refresh()

    def close(self) -> None:
        """Remove the bar from the screen. The next update draws it again."""
        if self._timer is not None:
            self._timer.cancel()
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._task = self._timer = None

    def _open(self) -> "Progress":
        # Imported here: it takes 70 ms, and most commands draw nothing.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", markup=False),
        )
        console = Console(file=self._stream, soft_wrap=True, highlight=False)
        bar = Progress(
            *columns, console=console, auto_refresh=False, transient=True, redirect_stdout=sys.stdout.isatty()
        )
        bar.start()
        with suppress(RuntimeError):  # no event loop runs
            self._timer = asyncio.get_running_loop().call_later(_REFRESH_SECONDS, self._tick)
        return bar

    def _tick(self) -> None:
        self._refresh()
        self._timer = asyncio.get_running_loop().call_later(_REFRESH_SECONDS, self._tick)

    def _refresh(self) -> None:
        if self._progress is not None:
            self._progress.refresh()
            self._refreshed = time.monotonic()


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
