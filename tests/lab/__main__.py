"""``python -m tests.lab``: runs experiments. `make lab` writes the page.

python -m tests.lab                 list the experiments
python -m tests.lab NAME ...        run and print
python -m tests.lab --write [--all] run those with changed code, or all; write docs/lab.md
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path as File

import msgspec

from omnibus.errors import NotFound, OmnibusError, error_line
from tests.lab.page import format_value, write_page
from tests.lab.registry import EXPERIMENTS, PAPERS
from tests.lab.results import (
    REPOSITORY,
    LabResult,
    read_results,
    results_directory,
    run_experiments,
    stale_experiments,
    write_results,
)

#: The page, relative to the repository.
PAGE = "docs/lab.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return 0 if all experiments ran."""
    options = _parse_arguments(arguments)
    try:
        if unknown := sorted(set(options.names) - EXPERIMENTS.keys()):
            raise NotFound(f"there is no experiment {unknown[0]!r}; there is {', '.join(EXPERIMENTS)}")
        if options.write or options.check:
            return _write_results(options)
        _print_results(options)
    except OmnibusError as error:
        sys.stderr.write(f"{error_line(error, options.json)}\n")
        return 1
    return 0


def _print_results(options: argparse.Namespace) -> None:
    """Print results of the named experiments, or the list of all.

    Results are printed as experiments end.
    """
    if not options.names:
        every = [
            {"name": each.name, "title": each.title, "figures": each.figures, "paper": PAPERS[each.paper]}
            for each in EXPERIMENTS.values()
        ]
        sys.stdout.write(
            f"{msgspec.json.encode(every).decode()}\n" if options.json else "\n".join([*_list_lines(), ""])
        )
    for name, result in run_experiments(options.names, options.jobs):
        if options.json:
            found = {"name": name, "seconds": result.seconds, **msgspec.to_builtins(result.findings)}
            sys.stdout.write(f"{msgspec.json.encode(found).decode()}\n")
        else:
            sys.stdout.write("\n".join(_result_lines(name, result)) + "\n\n")
        sys.stdout.flush()


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description="Repeat the experiments of the papers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments; none: list them")
    parser.add_argument("--jobs", type=int, default=2, help="experiments at a time (default 2)")
    parser.add_argument("--json", action="store_true", help="print JSON, a line for each experiment")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE} of what the code has changed for")
    parser.add_argument("--all", action="store_true", help="with --write: run all")
    parser.add_argument("--check", action="store_true", help="say which results are older than their code")
    return parser.parse_args(arguments)


def _write_results(options: argparse.Namespace) -> int:
    directory = results_directory()
    names = options.names or (list(EXPERIMENTS) if options.all else stale_experiments(directory))
    if options.check:
        sys.stdout.write("".join(f"{name} is older than its code: run `make lab`\n" for name in names))
        return 1 if names else 0
    for name, result in run_experiments(names, options.jobs):
        write_results(directory, {name: result})
        sys.stdout.write(f"{name}: {result.seconds:.0f} s of CPU time\n")
        sys.stdout.flush()
    File(REPOSITORY, PAGE).write_text(write_page(read_results(directory)))
    return 0


def _list_lines() -> Iterator[str]:
    width = max(map(len, EXPERIMENTS))
    for paper, title in PAPERS.items():
        yield title
        for each in EXPERIMENTS.values():
            if each.paper == paper:
                yield f"  {each.name:<{width}}  {each.title} ({each.figures})"


def _result_lines(name: str, result: LabResult) -> Iterator[str]:
    experiment, found = EXPERIMENTS[name], result.findings
    yield f"{experiment.title} ({experiment.figures}), in virtual time"
    yield from (f"- {condition}" for condition in found.conditions)
    yield from _column_lines([("", "PAPER", "OURS"), *((each.what, each.paper, each.ours) for each in found.claims)])
    for table in found.tables:
        yield ""
        yield table.title
        rows = [tuple(format_value(value) for value in row) for row in table.rows]
        yield from _column_lines([tuple(name.upper() for name in table.columns), *rows])
    yield from found.remarks


def _column_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
