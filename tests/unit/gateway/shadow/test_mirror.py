"""Finished requests run again on a candidate for comparison, without side effects."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omnibus.bus import subjects
from omnibus.canary.candidate import Candidate, OptionChange, overlay_model
from omnibus.errors import BadInput
from omnibus.executor import loop as acks
from omnibus.executor.runner import Job
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus_gateway.shadow.mirror import CandidateMirror, is_sampled
from tests.unit.executor.arithmetic import Work
from tests.unit.gateway.house import (
    TOYS,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_chat_answer,
    start_toy_gateway,
)
from tests.unit.gateway.samples import make_sample_picture
from tests.unit.sidecar.node import wait_until

SLOW_SECONDS = 1.0  # much longer than a loaded machine takes for the rest
CANDIDATE = Candidate("one", VL, (OptionChange("E", dtype="bfloat16"),), mirror=1.0)


class Stage:
    """A house with the usual executors and a candidate for the encoder."""

    def __init__(self, home: ToyGateway, store: Store) -> None:
        self.home, self.store = home, store
        self.waiting = 0
        self.mirror = CandidateMirror(home.router, home.records, home.replayer, store, lambda: self.waiting)

    async def open_mirror(self, vision: Work, candidate: Candidate = CANDIDATE, **others: Work) -> None:
        await self.home.all_of(VL)
        await self.home.executor(VL, "E@canary", "vision", vision=vision)
        self.set_state(candidate)
        self.mirror.startup()
        await self.store.put_candidate(candidate, None)
        await wait_until(lambda: self.home.records.on_end is not None)

    def set_state(self, candidate: Candidate) -> None:
        plan = self.home.router.plan
        assert plan is not None
        models = {**plan.models, VL: overlay_model(plan.models[VL], candidate)}
        self.home.router.plan = msgspec.structs.replace(plan, epoch=plan.epoch + 1, models=models)

    async def ask(self, times: int = 1, **more: Any) -> list[str]:
        answers = []
        for number in range(times):
            content = [make_text_part("look"), make_image_part(make_sample_picture("PNG", (8 + number, 8)))]
            answers.append(read_chat_answer(await self.home.ask(content=content, path="E>L", **more)))
        return answers

    async def counts(self, pairs: int) -> dict[str, int]:
        """Return the counts once there are ``pairs`` pairs."""
        pair_counts: dict[str, int] = {}

        async def has_pairs() -> bool:
            pair_counts.update(await self.store.counts(CANDIDATE.id))
            return pair_counts.get("pairs", 0) >= pairs

        await wait_until(has_pairs)
        return pair_counts


@pytest.fixture
async def stage(tmp_path: Path, valkey_url: str) -> AsyncIterator[Stage]:
    store = Store(StoreSettings(url=valkey_url))
    await store._redis.flushall()
    async with start_toy_gateway(tmp_path, record="full") as home:
        mirror_stage = Stage(home, store)
        yield mirror_stage
        await mirror_stage.mirror.shutdown()
        await home.emptied()
    await store.close()


async def encode_wrong(job: Job) -> None:
    await job.put("embedding", {"tokens": 1}, (await job.value("media")).array[:4].astype("float32")[None])


async def encode_slowly(job: Job) -> None:
    media = (await job.value("media")).array
    await asyncio.sleep(SLOW_SECONDS)
    rows = np.full((1 + len(media) // 1024, 4), media.sum() % 1000, np.float32)
    await job.put("embedding", {"tokens": len(rows)}, rows)


async def refuse_image(job: Job) -> None:
    raise BadInput("the new version takes no such image")


async def fail_batch(job: Job) -> None:
    raise ValueError("two requests in one batch")


async def test_a_candidate_that_is_equal_is_found_so_and_nobody_notices_it(stage: Stage):
    await stage.open_mirror(TOYS["vision"])

    for number in range(1, 3):
        [answer] = await stage.ask()
        assert "saw" in answer
        counts = await stage.counts(number)

    assert not {"failed", "differed"} & counts.keys()
    assert counts["compared"] == 4  # embeddings and texts
    records = await stage.home.bus.read_records(subjects.RECORDS)
    assert b"replay_of" not in b"".join(each.data for each in records).replace(b'"replay_of":""', b"")


async def test_no_run_takes_what_an_engine_kept_of_the_prompt_for_another(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """The serving executor has cached the prompt, an unfair advantage."""
    salts: list[str] = []
    conversations: list[str] = []

    async def record_and_think(job: Job) -> None:
        params = job.inputs["params"] or {}
        salts.append(params.get("cache_salt", ""))
        conversations.append(params.get("cache_key", ""))
        await usual(job)

    usual = TOYS["thinker"]
    monkeypatch.setitem(TOYS, "thinker", record_and_think)
    await stage.open_mirror(TOYS["vision"])

    await stage.ask(prompt_cache_key="us")
    await stage.counts(1)

    user, *shadow_salts = salts
    assert user == ""
    assert len({*shadow_salts} - {""}) == 2
    assert [bool(each) for each in conversations] == [True, *(False for _ in shadow_salts)]  # nor leaves data there


async def test_outputs_that_were_retained_of_the_recorded_run_are_compared(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """Retained outputs arrive again, late; with a short answer they arrive too late to matter."""
    monkeypatch.setattr(acks, "ACK_DELAY_SECONDS", 0.0)
    await stage.open_mirror(TOYS["vision"])

    await stage.ask()

    assert (await stage.counts(1))["compared"] == 2  # embedding and text


async def test_outputs_that_differ_are_told_with_the_stage_that_began_it(stage: Stage):
    await stage.open_mirror(encode_wrong)

    await stage.ask()

    counts = await stage.counts(1)
    assert (counts["differed"], counts["differed.vision"]) == (1, 1)
    [finding] = await stage.store.findings(CANDIDATE.id)
    assert finding["stage"] == "vision"
    assert "vision.embedding: relative error" in finding["what"]
    assert "E@canary" in finding["route"][0]


async def test_a_slow_candidate_is_told_with_the_stage_that_is(stage: Stage):
    await stage.open_mirror(encode_slowly)

    await stage.ask()

    assert (await stage.counts(1))["slower"] == 1
    [finding] = await stage.store.findings(CANDIDATE.id)
    assert (finding["outcome"], finding["stage"]) == ("slower", "vision")


async def test_a_candidate_that_fails_fails_no_user_and_becomes_no_dead_letter(stage: Stage):
    await stage.open_mirror(refuse_image)

    [answer] = await stage.ask()

    assert "saw" in answer
    assert (await stage.counts(1))["failed"] == 1
    assert "takes no such image" in (await stage.store.findings(CANDIDATE.id))[0]["what"]
    assert await stage.home.bus.read_records(subjects.DEAD) == []


async def test_requests_that_the_candidate_has_no_part_in_are_not_run_again(stage: Stage):
    await stage.open_mirror(refuse_image)

    read_chat_answer(await stage.home.ask(content="only text"))
    await stage.ask()

    assert (await stage.counts(1))["pairs"] == 1


async def test_a_comparison_waits_while_users_do_and_is_given_up_when_they_come(stage: Stage):
    begin_event, end_event = asyncio.Event(), asyncio.Event()

    async def encode_forever(job: Job) -> None:
        begin_event.set()
        try:
            await asyncio.sleep(60)
        finally:
            end_event.set()

    await stage.open_mirror(encode_forever)
    stage.waiting = 1
    await stage.ask()
    await asyncio.sleep(0.1)
    assert not begin_event.is_set()

    stage.waiting = 0
    await asyncio.wait_for(begin_event.wait(), 20)
    stage.waiting = 1

    await asyncio.wait_for(end_event.wait(), 20)
    assert await stage.store.counts(CANDIDATE.id) == {}


async def test_without_a_candidate_nothing_is_called_when_requests_end(stage: Stage):
    await stage.open_mirror(TOYS["vision"])

    await stage.store.put_candidate(CANDIDATE.enter_state("aborted", "", 0), CANDIDATE)

    await wait_until(lambda: stage.home.records.on_end is None)


async def test_in_the_shadow_a_candidate_serves_nobody_even_where_nobody_else_can(stage: Stage):
    stage.home.serve(VL)
    await stage.home.executor(VL, "L", "thinker")
    await stage.home.executor(VL, "E@canary", "vision")
    stage.set_state(CANDIDATE)

    response = await stage.home.ask(content=[make_text_part("look"), make_image_part()])

    assert response.status_code == 503
    assert "'vision'" in response.json()["error"]["message"]


async def test_a_canary_serves_its_share_of_users_and_their_failures_are_counted(stage: Stage):
    canary = msgspec.structs.replace(CANDIDATE, state="canary", share=0.5, mirror=1e-9)
    await stage.open_mirror(refuse_image, canary)

    codes = [
        (await stage.home.ask(content=[make_text_part(f"look {number}"), make_image_part()])).status_code
        for number in range(20)
    ]

    async def has_failures() -> bool:
        return (await stage.store.counts(CANDIDATE.id)).get("served", 0) == codes.count(422)

    assert abs(codes.count(422) - 10) <= 2
    await wait_until(has_failures)


async def test_a_users_request_that_a_canary_failed_is_told_with_its_stage(stage: Stage):
    canary = msgspec.structs.replace(CANDIDATE, state="canary", share=0.5, mirror=1e-9)
    await stage.open_mirror(fail_batch, canary)

    answers = [
        await stage.home.ask(content=[make_text_part(f"look {number}"), make_image_part()]) for number in range(4)
    ]

    async def has_findings() -> bool:
        return bool(await stage.store.findings(CANDIDATE.id))

    await wait_until(has_findings)
    finding = (await stage.store.findings(CANDIDATE.id))[0]
    assert (finding["outcome"], finding["stage"]) == ("failed", "vision")
    assert finding["id"] in [each.headers["x-request-id"] for each in answers if each.status_code != 200]


def test_a_share_of_requests_is_chosen_by_their_ids_alone():
    ids = [f"gw-0-{number:016x}" for number in range(4000)]

    sampled_ids = [id for id in ids if is_sampled(id, 0.1)]

    assert abs(len(sampled_ids) - 400) < 80
    assert sampled_ids == [id for id in ids if is_sampled(id, 0.1)]
    assert set(sampled_ids) < {id for id in ids if is_sampled(id, 0.3)}
    assert all(is_sampled(id, 1.0) for id in ids)
