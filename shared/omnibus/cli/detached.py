"""``omnibus up --detach``, and ``omnibus serve --detach``: runs the same command as a process in the background."""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from omnibus.cli.format.runs import address_text
from omnibus.cli.output import print_json
from omnibus.cli.processes import run_summary
from omnibus.cli.progress import ProgressBar
from omnibus.errors import DeadlineExceeded
from omnibus.process.spec import python_path
from omnibus.up import runs
from omnibus.up.runs import RunState

#: Seconds that the stack may take to start: plans, executors, apps.
START_TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.1
_SHOWN_LINES = 3
_DETACHING = frozenset({"-d", "--detach"})
#: What a command adds to the description of a run: for programs, and as text.
Description = tuple[Mapping[str, Any], str]


async def start_detached(
    options: argparse.Namespace, describe: Callable[[RunState], Description] = lambda state: ({}, "")
) -> int:
    """Start ``omnibus`` with the arguments of this process in the background. Returns 0 once it serves, or its exit
    code. Prints the run, with what ``describe`` adds.

    Raises ``DeadlineExceeded`` and stops the process if it does not serve in time.
    """
    with tempfile.TemporaryFile() as output:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "omnibus.cli", *_arguments(options),
            stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, "PYTHONPATH": python_path()},
        )  # fmt: skip
        with ProgressBar() as bar:
            state = await _wait_until_ready(child, bar)
        if state is None:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
            error_lines = [line for line in lines if line.startswith('{"error"')] if options.json else lines
            print("\n".join((error_lines or lines)[-_SHOWN_LINES:]), file=sys.stderr)
            return child.returncode or 1
    more, text = describe(state)
    if options.json:
        print_json({**run_summary(state), **more})
        return 0
    name = state.name
    print(
        f"{address_text(state, state.admin_token)}\nIn the background as {name}: `omnibus logs --run {name}`, ", end=""
    )
    print(f"`omnibus down --run {name}`")
    if text:
        print(f"\n{text}")
    return 0


def silence_output() -> None:
    """Release the output file, which the parent reads until the stack serves. Later logs are in the run's directory."""
    with open(os.devnull, "w") as nothing:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(nothing.fileno(), stream.fileno())


def _arguments(options: argparse.Namespace) -> list[str]:
    return [*(word for word in options.arguments if word not in _DETACHING), "--detached"]


async def _wait_until_ready(child: asyncio.subprocess.Process, bar: ProgressBar) -> RunState | None:
    """Return the state of the run once it serves. Returns None if ``child`` has ended."""
    try:
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            while child.returncode is None:
                run = next((state for state in runs.list_runs() if state.pid == child.pid), None)
                if run is not None and run.ready:
                    return run
                if run is not None and run.executors:
                    bar.update("loading weights", run.loaded, run.executors)
                await asyncio.sleep(_POLL_SECONDS)
            return None
    except TimeoutError:
        os.killpg(child.pid, signal.SIGTERM)
        raise DeadlineExceeded(f"not up within {START_TIMEOUT_SECONDS:g} s: it is being stopped") from None
