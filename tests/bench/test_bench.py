"""``make bench``: every benchmark by name (``make bench ONLY=control.text``), and ``ONLY=processes``.

All selected benchmarks are measured together, in interleaved rounds, before the first result is shown.
``OMNIBUS_BENCH_CPROFILE=<directory> make bench ONLY=processes`` also writes one cProfile file per Python process there,
for ``python -m pstats``. Profiling slows the system, which affects the figures of such a run.
"""

from collections.abc import Iterator

import pytest

from tests.bench import report
from tests.bench.cases import MAY_BE_ZERO, NAMES, PROCESSES
from tests.bench.measure import Measured, Row, measure, rows

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Measured:
    """Everything that was selected, measured in one go."""
    wanted = {
        item.callspec.params["name"] if hasattr(item, "callspec") else PROCESSES
        for item in request.session.items
        if item.path == request.path
    }
    return measure(wanted)


@pytest.fixture(scope="module")
def results(found: Measured) -> Iterator[dict[str, Row]]:
    measured = rows(found)
    report.write(measured)
    yield {row.name: row for row in measured}
    print(f"\n\n{report.table(measured)}\n\n{report.RESULTS}")


@pytest.mark.parametrize("name", NAMES)
def test_benchmark(name: str, results: dict[str, Row]) -> None:
    assert results[name].value > 0 or name in MAY_BE_ZERO


def test_processes(found: Measured) -> None:
    print(f"\n\n{report.profile(found)}\n")

    assert all(sample.total > 0 for samples in found.samples.values() for sample in samples)
