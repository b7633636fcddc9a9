"""Recorded omni invocations stay replayable: text, audio and images to text and speech."""

import pytest

from tests.e2e.golden import is_recorded_as_it_was, runs_as_it_ran
from tests.e2e.system import OMNI, System
from tests.golden import corpus
from tests.golden.corpus import Golden

pytestmark = pytest.mark.e2e

RECORDED = {golden.name: golden for golden in corpus.read_recorded(OMNI)}


@pytest.mark.parametrize("golden", RECORDED.values(), ids=RECORDED.keys())
async def test_an_old_record_gives_its_answer_again(omni: System, golden: Golden):
    await runs_as_it_ran(omni, golden)


@pytest.mark.parametrize("golden", RECORDED.values(), ids=RECORDED.keys())
async def test_an_old_request_makes_the_same_calls_and_gets_the_same_answer(omni: System, golden: Golden):
    await is_recorded_as_it_was(omni, golden)
