"""A cluster without machines, and Helm."""

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.api import Api
from tests.kube.helm import Helm
from tests.kube.serve import Door, serve_door
from tests.unit.chart.shapes import ChartSite, Renders


@pytest.fixture(scope="session")
def helm_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helm's home directory. Its library is built for one platform."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the library of Helm is for Linux on x86-64")
    return tmp_path_factory.mktemp("helm")


def open_site(home: Path, api: Api) -> Iterator[ChartSite]:
    door = Door(api)
    with serve_door(door) as url:
        yield ChartSite(url, door, Helm(url, home))


@pytest.fixture(scope="session")
def render_chart(helm_home: Path) -> Iterator[Renders]:
    """Renders in a cluster where operators have installed all their kinds; nothing is kept there."""
    for site in open_site(helm_home, Api()):
        yield Renders(site)


@pytest.fixture
def render_bare(helm_home: Path) -> Iterator[Renders]:
    """Renders in a cluster with only the built-in kinds."""
    for site in open_site(helm_home, Api(extra_kinds={})):
        yield Renders(site)


@pytest.fixture
def site(helm_home: Path) -> Iterator[ChartSite]:
    """A cluster that belongs to one test."""
    yield from open_site(helm_home, Api())
