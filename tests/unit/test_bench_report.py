"""Benchmark results are kept in one file, regardless of the order of measurement."""

import json
from pathlib import Path

from tests.bench import report
from tests.bench.measure import BenchRow


def test_results_that_were_not_measured_again_stay(tmp_path: Path):
    path = tmp_path / "results.json"
    report.write_results([BenchRow("a", 1.0, "ms"), BenchRow("b", 2.0, "ms", "a", 2.0)], path)

    report.write_results([BenchRow("b", 3.0, "ms", "a", 3.0), BenchRow("c", 4.0, "ms")], path)

    results = {each["name"]: each for each in json.loads(path.read_text())}
    assert {name: each["value"] for name, each in results.items()} == {"a": 1.0, "b": 3.0, "c": 4.0}
    assert results["b"]["ratio"] == 3.0
    assert all(each["measured"].endswith("+00:00") for each in results.values())
