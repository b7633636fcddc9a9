"""``make bench``: every benchmark by name (``make bench ONLY=control.text``), and ``ONLY=processes``.

All selected benchmarks are measured together, in interleaved rounds, before the first result is shown.
``OMNIBUS_BENCH_CPROFILE=<directory> make bench ONLY=processes`` also writes one cProfile file per Python process there,
for ``python -m pstats``. Profiling slows the system, which affects the figures of such a run.
"""

from collections.abc import Iterator

import pytest

from tests.bench import report
from tests.bench.cases import MAY_BE_ZERO, NAMES, PROCESSES
from tests.bench.measure import BenchResults, BenchRow, make_rows, measure_cases

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def bench_results(request: pytest.FixtureRequest) -> BenchResults:
    """Everything that was selected, measured in one go."""
    targets = {
        item.callspec.params["name"] if hasattr(item, "callspec") else PROCESSES
        for item in request.session.items
        if item.path == request.path
    }
    return measure_cases(targets)


@pytest.fixture(scope="module")
def result_rows(bench_results: BenchResults) -> Iterator[dict[str, BenchRow]]:
    all_rows = make_rows(bench_results)
    report.write_results(all_rows)
    yield {row.name: row for row in all_rows}
    print(f"\n\n{report.format_table(all_rows)}\n\n{report.RESULTS}")


@pytest.mark.parametrize("name", NAMES)
def test_benchmark(name: str, result_rows: dict[str, BenchRow]) -> None:
    assert result_rows[name].value > 0 or name in MAY_BE_ZERO


def test_processes(bench_results: BenchResults) -> None:
    print(f"\n\n{report.format_profile(bench_results)}\n")

    assert all(sample.total > 0 for samples in bench_results.samples.values() for sample in samples)
