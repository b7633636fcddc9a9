"""Python module in a separate process. This is for work that needs torch or takes long.

A module with a result prints it as the last line on its stdout, in JSON: ``{"answer": ...}`` or ``{"problem": ...}``.
Its stderr is for people.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from omnibus.errors import DeadlineExceeded, Fatal, OmnibusError, ProblemDetails, from_problem
from omnibus.process.spec import python_command

#: Returns the command line of ``python -m`` with these arguments.
Command = Callable[..., Sequence[str]]

_ROOT = str(Path(__file__).parents[2])
_MAX_QUOTED_CHARS = 2000  # characters of stderr to quote from a child without a result


class ProcessResult(NamedTuple):
    """Exit code and output of a process that ended."""

    code: int
    output: str
    said: str  # stderr, if that was read separately


async def run_module(
    module: str,
    *arguments: str,
    within: float,
    env: Mapping[str, str] | None = None,
    stderr: int | None = PIPE,
    command: Command | None = None,
) -> ProcessResult:
    """Run ``python -m module`` to its end. ``env`` is added to its environment; ``stderr`` is as in
    ``asyncio.subprocess``. ``command`` returns another command line for it, such as that of a fork server.

    Raises ``DeadlineExceeded`` after ``within`` seconds. The process never outlives this call.
    """
    path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH", "")]))
    process = await asyncio.create_subprocess_exec(
        *(command or python_command)(module, *arguments),
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=stderr,
    )
    try:
        async with asyncio.timeout(within):
            output, errors = await process.communicate()
    except TimeoutError:
        raise DeadlineExceeded(f"{module} {' '.join(arguments)} took more than {within:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return ProcessResult(
        process.returncode or 0, output.decode(errors="replace"), (errors or b"").decode(errors="replace")
    )


async def call_module(
    module: str,
    *arguments: str,
    within: float,
    env: Mapping[str, str] | None = None,
    show: bool = False,
    command: Command | None = None,
) -> Any:
    """Return the result of ``python -m module``. ``env`` is added to its environment; with ``show``, its stderr is this
    process's. ``command`` is as in ``run_module``.

    Raises its problem, ``DeadlineExceeded`` after ``within`` seconds, and ``Fatal`` if it prints no result.
    """
    result = await run_module(
        module, *arguments, within=within, env=env, stderr=None if show else PIPE, command=command
    )
    return _parse_answer(module, result)


def report_answer(work: Callable[[], Any]) -> int:
    """Do the work of the child and print the result. Returns the exit code."""
    try:
        answer = {"answer": work()}
    except OmnibusError as error:
        answer = {"problem": msgspec.to_builtins(error.to_problem())}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    return 1 if "problem" in answer else 0


def _parse_answer(module: str, result: ProcessResult) -> Any:
    lines = result.output.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
        problem = msgspec.convert(answer["problem"], ProblemDetails) if "problem" in answer else None
    except (LookupError, ValueError, TypeError):
        raise Fatal(f"{module} ended without an answer:\n{result.said[-_MAX_QUOTED_CHARS:]}") from None
    if problem is not None:
        raise from_problem(problem)
    return answer["answer"]
