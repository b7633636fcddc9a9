"""One closed town for all tests of this room."""

from collections.abc import Iterator

import pytest

from tests.e2e.safe.town import Town, town


@pytest.fixture(scope="package")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with town(tmp_path_factory.mktemp("safe")) as made:
        yield made
