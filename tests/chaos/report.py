"""Format a run as Markdown tables, to paste into docs/reliability.md.

The figures are those of this machine.
"""

import os
import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import psutil

from tests.chaos.judge import compute_percentile, list_recoveries
from tests.chaos.outcome import ChaosOutcome
from tests.chaos.run import Options, Result
from tests.chaos.watch import find_peaks

_SHOWN = 5  # violations of one promise


def format_report(options: Options, result: Result) -> str:
    """The whole report."""
    parts = [
        _format_summary(options, result),
        _format_outcomes(result.record.outcomes),
        _format_faults(result),
        _format_jobs(result),
        _format_processes(result),
        _format_violations(result),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; empty without rows."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]) if lines else ""


def _format_summary(options: Options, result: Result) -> str:
    memory = psutil.virtual_memory().total / 2**30
    machine = f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}"
    record = result.record
    summary = f"{options.minutes:g} min, {options.clients} clients"
    if options.overload:
        summary += f", overload {options.overload:g} times"
    if options.hostile:
        summary += f", {options.hostile} hostile inputs"
    if result.alone:
        meanwhile = [outcome.seconds for outcome in record.outcomes if outcome.is_ok and outcome.case in record.answers]
        summary += f"; p99 of good answers {compute_percentile(meanwhile, 99):.2f} s, alone {compute_percentile(result.alone, 99):.2f} s"
        summary += f"; {result.restarts} restarts"
    summary += f"; clients themselves were late by up to {record.stalled_seconds:.1f} s"
    faults = [event for event in record.events if not event.skipped]
    return (
        f"{machine}; {summary}; seed {options.seed}: {len(record.outcomes)} requests, {len(faults)} faults, "
        f"{len(record.jobs)} jobs, {len(result.violations)} broken promises."
    )


def _format_outcomes(outcomes: Sequence[ChaosOutcome]) -> str:
    by_label: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        by_label[label_outcome(outcome)].append(outcome.seconds)
    rows = [
        (name, len(times), _format_times(times))
        for name, times in sorted(by_label.items(), key=lambda each: -len(each[1]))
    ]
    return format_table(("outcome", "n", "p50 / p99 / max s"), rows)


def label_outcome(outcome: ChaosOutcome) -> str:
    """A short label for the outcome of a request."""
    sort = "" if outcome.harmless else "hostile: "
    if outcome.is_ok:
        return f"{sort}answered"
    error = f"{outcome.status} {outcome.code or 'untyped'}"
    return sort + (outcome.broken or error)


def _format_times(times: Sequence[float]) -> str:
    return " / ".join(f"{compute_percentile(times, part):.2f}" for part in (50, 99, 100))


def _format_faults(result: Result) -> str:
    counts = Counter(event.name for event in result.record.events if not event.skipped)
    times = list_recoveries(result.record)
    rows = [(name, count, _format_times(times.get(name, []))) for name, count in sorted(counts.items())]
    reasons = {f"{event.name}: {event.skipped}" for event in result.record.events if event.skipped}
    notes = "\n".join(f"Skipped: {each}." for each in sorted(reasons))
    return "\n\n".join(filter(None, [format_table(("fault", "n", "recovery: median / p99 / max s"), rows), notes]))


def _format_jobs(result: Result) -> str:
    ends = Counter(job.states[-1][1] if job.states else "never seen" for job in result.record.jobs)
    return format_table(("jobs that ended as", "n"), sorted(ends.items()))


def _format_processes(result: Result) -> str:
    rows = [
        (name, f"{memory / 2**20:.0f}", descriptors)
        for name, (memory, descriptors) in sorted(find_peaks(result.record.samples).items())
    ]
    return format_table(("process", "most own memory, MiB", "most descriptors"), rows)


def _format_violations(result: Result) -> str:
    by_promise: dict[str, list[str]] = defaultdict(list)
    for violation in result.violations:
        by_promise[violation.promise].append(violation.detail)
    lines = []
    for promise, details in sorted(by_promise.items()):
        lines += [f"- **{promise}**: broken {len(details)} times", *(f"  - {each}" for each in details[:_SHOWN])]
    notes = [f"- note: {note}" for note in result.record.notes]
    return "\n".join(lines + notes) or "No promise was broken."
