"""Lint and render the chart with Helm's library, without ``helm``.

    python -m tests.kube.chart lint                       # the chart, with every overlay
    python -m tests.kube.chart template mine.yaml ...     # the objects of an install with these values
    python -m tests.kube.chart package --into dist        # the archive to publish

Each command renders the chart as an install would.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.kube.api import Api
from tests.kube.helm import CHART, Helm, Values, merge_values
from tests.kube.schemas import VERSIONS, find_faults
from tests.kube.serve import Door, serve_door

_OVERLAYS = sorted(path.name for path in CHART.glob("values-*.yaml"))


def render(files: Sequence[Path], release: str = "omnibus") -> list[dict[str, Any]]:
    """Objects of an install in a simulated cluster. Raises Helm's errors."""
    values: Values = {}
    for path in files:
        merge_values(values, yaml.safe_load(path.read_text()) or {})
    with tempfile.TemporaryDirectory() as home, serve_door(Door(Api())) as url:
        return asyncio.run(Helm(url, Path(home)).install(release, values))


def lint_chart() -> list[str]:
    """Describe faults of the chart.

    They are Helm's errors, and objects that some version of Kubernetes rejects.
    """
    problems: list[str] = []
    for overlay in ("", *_OVERLAYS):
        try:
            objects = render([CHART / overlay] if overlay else [])
        except Exception as error:  # noqa: BLE001 any error of Helm is the answer
            problems.append(f"{overlay or 'values.yaml'}: {error}")
            continue
        problems += [
            f"{overlay}: {version}: {fault}"
            for each in objects
            for version in VERSIONS
            for fault in find_faults(each, version)
        ]
    return problems


def package_chart(into: Path) -> str:
    """Write the chart as an archive into ``into``; returns its path."""
    import helm_sdkpy

    return str(asyncio.run(helm_sdkpy.Package(helm_sdkpy.Configuration()).run(str(CHART), str(into))))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kube.chart", description=__doc__)
    parser.add_argument("verb", choices=("lint", "template", "package"))
    parser.add_argument("--into", metavar="DIR", default=".", help="where the archive of the chart goes")
    parser.add_argument("values", nargs="*", type=Path, metavar="FILE", help="values, the last one wins")
    options = parser.parse_args(arguments)
    if options.verb == "template":
        yaml.safe_dump_all(render(options.values), sys.stdout, sort_keys=False)
        return 0
    if options.verb == "package":
        print(package_chart(Path(options.into)))
        return 0
    wrong = lint_chart()
    print("\n".join(wrong) or f"the chart is right, for Kubernetes {VERSIONS[0]} to {VERSIONS[-1]}, with every overlay")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
