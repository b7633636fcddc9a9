"""A cluster without machines, and Helm."""

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.api import Api
from tests.kube.helm import Helm
from tests.kube.serve import Door, serving
from tests.unit.chart.shapes import Renders, Site


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helm's home directory. Its library is built for one platform."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the library of Helm is for Linux on x86-64")
    return tmp_path_factory.mktemp("helm")


def there(home: Path, api: Api) -> Iterator[Site]:
    door = Door(api)
    with serving(door) as url:
        yield Site(url, door, Helm(url, home))


@pytest.fixture(scope="session")
def rendered(home: Path) -> Iterator[Renders]:
    """Renders in a cluster where operators have installed all their kinds; nothing is kept there."""
    for site in there(home, Api()):
        yield Renders(site)


@pytest.fixture
def bare(home: Path) -> Iterator[Renders]:
    """Renders in a cluster with only the built-in kinds."""
    for site in there(home, Api(added={})):
        yield Renders(site)


@pytest.fixture
def site(home: Path) -> Iterator[Site]:
    """A cluster that belongs to one test."""
    yield from there(home, Api())
