"""One closed town for all tests of this room."""

from collections.abc import Iterator

import pytest

from tests.e2e.safe.town import SecuredSystem, start_secured


@pytest.fixture(scope="package")
def secured_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredSystem]:
    with start_secured(tmp_path_factory.mktemp("safe")) as new_system:
        yield new_system
