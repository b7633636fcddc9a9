"""Every command and block of the pages works, in page order, against the system that its page starts.

A page without a start gets plain ``omnibus up``. ``tests/documented/table.py`` lists what cannot run here, and
``tests/contract/test_documented.py`` checks that list by day.
"""

from pathlib import Path

import pytest

from tests.documented.blocks import PAGES_WITH_STEPS, read_steps
from tests.documented.run import open_page
from tests.documented.table import skipped_reason

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(5400)]

RUN = [page for page in PAGES_WITH_STEPS if not all(map(skipped_reason, read_steps(page)))]


@pytest.mark.parametrize("page", RUN)
def test_every_step_of_a_page_works(page: str, tmp_path: Path):
    with open_page(page, tmp_path) as reader:
        faults = [reader.find_fault(step) for step in read_steps(page) if not skipped_reason(step)]

    if any(faults):
        pytest.fail("\n\n".join(filter(None, faults)), pytrace=False)
