"""Recorded invocations stay replayable.

They cover text, long messages, images, video, sampling, every path, and moves.
"""

import pytest

from tests.e2e.golden import is_recorded_as_it_was, publish_replay, replay_golden, runs_as_it_ran
from tests.e2e.system import VL, System
from tests.golden import corpus
from tests.golden.corpus import Golden

pytestmark = pytest.mark.e2e

RECORDED = {golden.name: golden for golden in corpus.read_recorded(VL)}
DONE = {name: golden for name, golden in RECORDED.items() if golden.done and golden.full}
DIGESTS = {name: golden for name, golden in RECORDED.items() if not golden.full}
FAILED = {name: golden for name, golden in RECORDED.items() if golden.end["status"] == "failed"}


@pytest.mark.parametrize("golden", DONE.values(), ids=DONE.keys())
async def test_an_old_record_gives_its_answer_again(vl: System, golden: Golden):
    await runs_as_it_ran(vl, golden)


@pytest.mark.parametrize("golden", DONE.values(), ids=DONE.keys())
async def test_an_old_request_makes_the_same_calls_and_gets_the_same_answer(vl: System, golden: Golden):
    await is_recorded_as_it_was(vl, golden)


async def test_a_body_whose_record_is_gone_runs_and_has_nothing_to_be_compared_with(vl: System):
    golden = DONE["v1/vl_text"]
    other = golden._replace(body=golden.body.replace(golden.id.encode(), b"long-gone"))

    first, last = await publish_replay(vl, other)

    assert first["replay_of"] == "long-gone"
    assert (last["status"], last["identical"]) == ("done", None)
    assert last["answer"]["finish_reason"] == golden.end["answer"]["finish_reason"]
    await vl.ledger_is_empty()


@pytest.mark.parametrize("golden", FAILED.values(), ids=FAILED.keys())
async def test_an_old_record_that_failed_fails_in_the_same_way(vl: System, golden: Golden):
    *_, last = await replay_golden(vl, golden)

    assert last["status"] == "failed"
    for key in ("code", "stage", "message"):
        assert last["problem"][key] == golden.end["problem"][key]
    await vl.ledger_is_empty()


@pytest.mark.parametrize("golden", DIGESTS.values(), ids=DIGESTS.keys())
async def test_an_old_record_of_digests_says_why_it_cannot_run(vl: System, golden: Golden):
    (only,) = await replay_golden(vl, golden)

    assert only["problem"]["code"] == "bad_request"
    assert "OMNIBUS_GATEWAY_RECORD=full" in only["problem"]["message"]
    await vl.ledger_is_empty()
