"""``omnibus ps``, ``status``, ``down`` and ``logs``: the runs of ``omnibus up`` on this machine."""

import argparse
import asyncio
import os
import signal
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from omnibus.cli.format.plan import age_text
from omnibus.cli.format.tables import table_lines
from omnibus.cli.gateway import Gateway
from omnibus.cli.output import print_json, print_names
from omnibus.errors import DeadlineExceeded, NotFound, OmnibusError
from omnibus.up import runs
from omnibus.up.health import not_ready
from omnibus.up.runs import RunState, remove_leftovers
from omnibus.up.stack import LOG_FILE
from omnibus.up.tls import trusted_context

#: Seconds to wait for the end of a run: gateways drain for 30.
DOWN_TIMEOUT_SECONDS = 90.0
_POLL_SECONDS = 0.1


async def list_runs(options: argparse.Namespace) -> int:
    """Print the runs of this user, oldest first. Removes the leftovers of killed runs."""
    remove_leftovers()
    running = runs.list_runs()
    if options.json:
        print_json([run_summary(state) for state in running])
        return 0
    if options.quiet:
        print_names(state.name for state in running)
        return 0
    rows = [
        [state.name, state.gateway_url, str(state.pid), age_text(state.started), _stage(state)] for state in running
    ]
    print("\n".join(table_lines(["RUN", "URL", "PID", "STARTED", "STATE"], rows)))
    return 0


async def show_status(options: argparse.Namespace) -> int:
    """Print the addresses, processes and models of one run. The exit code is 1 if something is missing."""
    state = runs.read_state()
    missing = await asyncio.to_thread(not_ready, state.gateway_url, trusted_context(state.certificate))
    models = [] if missing else await asyncio.to_thread(_served_models, state)
    if options.json:
        print_json({**run_summary(state), "missing": missing, "models": models, "pids": state.pids})
    elif options.quiet:
        print(f"missing: {missing}" if missing else "ready")
    else:
        print("\n".join(_status_lines(state, missing, models)))
    return 1 if missing else 0


async def stop_runs(options: argparse.Namespace) -> int:
    """Stop one run, or all of them, and wait for the end. Raises ``DeadlineExceeded``."""
    remove_leftovers()
    states = runs.list_runs() if options.all else [runs.read_state()]
    for state in states:
        os.kill(state.pid, signal.SIGTERM)
    for state in states:
        await _wait_for_end(state)
        if not options.json:
            print(f"{state.name} is down")
    if options.json:
        print_json([run_summary(state) for state in states])
    return 0


async def print_logs(options: argparse.Namespace) -> int:
    """Print the last lines of a run. With ``--follow``, also print new lines until the run ends."""
    state = runs.read_state()
    file = Path(state.directory) / LOG_FILE
    processes = {line.split(" ", 1)[0] for line in file.read_text().splitlines()} - {""}
    if unknown := set(options.process) - processes:
        raise NotFound(
            f"no process {', '.join(sorted(unknown))} of {state.name} has logged anything; "
            f"there is {', '.join(sorted(processes))}"
        )
    selected_lines = [line for line in file.read_text().splitlines() if _is_chosen(line, options.process)]
    for line in selected_lines[-options.lines :] if options.lines > 0 else []:
        _print_log_line(line, options.json)
    if options.follow:
        await _follow_file(file, state, options)
    return 0


def _print_log_line(line: str, as_json: bool) -> None:
    if as_json:
        process, _, text = line.partition("|")
        print_json({"process": process.strip(), "text": text.removeprefix(" ")})
    else:
        print(line, flush=True)


async def _follow_file(file: Path, state: RunState, options: argparse.Namespace) -> None:
    with file.open() as lines:
        lines.seek(0, os.SEEK_END)
        while runs.is_locked(Path(state.directory)):
            if line := lines.readline():
                if _is_chosen(line, options.process):
                    _print_log_line(line.removesuffix("\n"), options.json)
            else:
                await asyncio.sleep(_POLL_SECONDS)


def _is_chosen(line: str, processes: list[str]) -> bool:
    return not processes or line.split(" ", 1)[0] in processes


async def _wait_for_end(state: RunState) -> None:
    try:
        async with asyncio.timeout(DOWN_TIMEOUT_SECONDS):
            while runs.is_locked(Path(state.directory)):  # noqa: ASYNC110 a lock of another process
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise DeadlineExceeded(
            f"{state.name} (process {state.pid}) has not ended within {DOWN_TIMEOUT_SECONDS:g} s: "
            f"repeat `kill {state.pid}` to kill the processes that it waits for"
        ) from None


def run_summary(state: RunState) -> dict[str, Any]:
    """Return a run in the format for programs, without its tokens."""
    return {
        "name": state.name, "url": state.gateway_url, "pid": state.pid, "started": state.started,
        "ready": state.ready, "executors": state.executors, "loaded": state.loaded,
        "directory": state.directory, "nats_url": state.nats_url, "passing": state.passing,
    }  # fmt: skip


def _served_models(state: RunState) -> list[str]:
    try:
        gateway = Gateway(state.gateway_url, state.admin_token, state.apps_dir, state.certificate)
        return [str(model["id"]) for model in gateway.call("GET", "/v1/models")["data"]]
    except OmnibusError:  # the gateway requires API keys, or has just stopped
        return []


def _status_lines(state: RunState, missing: str, models: list[str]) -> Iterator[str]:
    yield f"{state.name}: {'ready' if not missing else f'missing: {missing}'}, started {age_text(state.started)}"
    yield f"  API        {state.gateway_url}/v1"
    yield f"  console    {state.gateway_url}/console/"
    yield f"  models     {', '.join(models) or '-'}"
    yield f"  directory  {state.directory}"
    names = max(map(len, state.pids), default=0)
    for head, (name, pid) in zip(chain(["processes"], repeat("")), state.pids.items(), strict=False):
        yield f"  {head:<9}  {name:<{names}}  {pid}"


def _stage(state: RunState) -> str:
    passing = ", for one command" if state.passing else ""
    loading = f"loading {state.loaded}/{state.executors}" if state.executors else "starting"
    return ("ready" if state.ready else loading) + passing
