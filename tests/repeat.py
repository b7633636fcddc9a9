"""Repeat modules of tests to find flaky ones; print a table of runs and failures.

    python -m tests.repeat tests/e2e/apps tests/unit/up --times 10 --busy 2 [--minutes 30] [-- arguments of pytest]

Directories and files take turns, each in a separate process, so a busy minute of the machine affects all of them. The
output of each failed run stays in ``--into``, and the table counts by module. The exit status is 1 if a test failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from omnibus.process.tuning import die_with_parent

ROOT = Path(__file__).parents[1]
#: Time limit of one run in seconds; tests have their own limits.
RUN_SECONDS = 1800.0
#: Background load of `--busy`: it uses a whole processor at the priority of the tests.
_SPIN = "while True: pass"


class RepeatCase(NamedTuple):
    """One test of one run: ``failure`` is the first line of its report, or empty."""

    module: str
    name: str
    seconds: float
    failure: str


class Report:
    """Cases of all runs so far, by module."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.failures: dict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add_cases(self, cases: Sequence[RepeatCase]) -> list[RepeatCase]:
        """Count the cases of one run; return those that failed."""
        self.runs.update({case.module for case in cases})
        failed_cases = [case for case in cases if case.failure]
        for case in cases:
            self._seconds[case.module] += case.seconds
        for case in failed_cases:
            self.failures[case.module][case.name] += 1
        return failed_cases

    def __str__(self) -> str:
        """A table in Markdown: modules with failures first."""
        modules = sorted(self.runs, key=lambda module: (-self.failures[module].total(), module))
        rows = [
            f"| {module} | {self.runs[module]} | {self.failures[module].total()} | {self._seconds[module]:.0f} "
            f"| {', '.join(f'{name} ({count})' for name, count in self.failures[module].most_common())} |"
            for module in modules
        ]
        return "\n".join(["| module | runs | failures | seconds | which |", "|---|---|---|---|---|", *rows])


def run_target(target: str, arguments: Sequence[str], log: Path) -> list[RepeatCase]:
    """Run pytest on ``target`` once. A run that ends without results is one failed case of the target."""
    results = log.with_suffix(".xml")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "junit_family=xunit1", f"--junitxml={results}"]
    with log.open("wb") as output:
        try:
            status = subprocess.run(
                [*command, *arguments, target],
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=RUN_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return [RepeatCase(target, "the whole run", RUN_SECONDS, f"not finished after {RUN_SECONDS:.0f} s")]
    if status not in (0, 1):
        return [RepeatCase(target, "the whole run", 0.0, f"pytest ended with {status}")]
    return list(read_cases(results))


def read_cases(results: Path) -> Iterator[RepeatCase]:
    """Cases of a pytest report in the format ``xunit1``, without skipped tests."""
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        if case.find("skipped") is not None:
            continue
        element = next((each for kind in ("failure", "error") if (each := case.find(kind)) is not None), None)
        message = "" if element is None else (element.get("message") or "failed").splitlines()[0]
        seconds = float(case.get("time", 0))
        yield RepeatCase(case.get("file", "?"), case.get("name", "?").partition("@")[0], seconds, message)


@contextmanager
def busy_processors(count: int) -> Iterator[None]:
    """Keep ``count`` processors busy until the block ends."""
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN], preexec_fn=die_with_parent()) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def main() -> int:
    """Repeat the targets of the command line; return 0 if every test passed every time."""
    parser = argparse.ArgumentParser(prog="python -m tests.repeat", description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="+", help="directories, files or tests, as pytest takes them")
    parser.add_argument("--times", type=int, default=10, metavar="N", help="runs of each")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="processes that compute beside the tests")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run later than that")
    parser.add_argument("--into", type=Path, help="directory for the output of runs that failed")
    options, rest = parser.parse_known_args()
    arguments = [each for each in rest if each != "--"]
    ends, report = time.monotonic() + 60 * options.minutes, Report()
    into = options.into or Path(tempfile.mkdtemp(prefix="omnibus-repeat-"))
    into.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(busy_processors(options.busy))
        for number, target in ((n, target) for n in range(options.times) for target in options.targets):
            if time.monotonic() < ends:
                _repeat_target(number, target, arguments, into, report)
    print(f"\n{report}")
    return 1 if any(report.failures.values()) else 0


def _repeat_target(number: int, target: str, arguments: Sequence[str], into: Path, report: Report) -> None:
    log = into / f"{target.strip('/').replace('/', '+').replace(':', '+')}.{number + 1}.log"
    failed_cases = report.add_cases(run_target(target, arguments, log))
    load = os.getloadavg()[0]
    print(f"{number + 1} {target}: {len(failed_cases)} failed (load {load:.0f})", flush=True)
    for case in failed_cases:
        print(f"    {case.module}::{case.name}: {case.failure[:200]}", flush=True)
    log.with_suffix(".xml").unlink(missing_ok=True)
    if not failed_cases:
        log.unlink()


if __name__ == "__main__":
    sys.exit(main())
