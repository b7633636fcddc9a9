"""The only executor of a stage freezes, is killed, and serves again.

Its requests fail with the stage's name.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.system import VL, System, declare_model, start_system
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

DEADLINE = 60.0  # seconds
ONLY = "qwen2_5-vl-tiny-EL-0"
LONG: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path) -> Iterator[System]:
    options = {"EL": {"components": ["vision", "thinker"], "service": "llm"}}
    model = declare_model("qwen2_5_vl", vl_checkpoint, options=options, paths=[{"options": ["EL"], "share": 1}])
    settings = {
        "OMNIBUS_GATEWAY_DEADLINE": str(DEADLINE),
        "OMNIBUS_GATEWAY_QUARANTINE": "0",
        "OMNIBUS_UP_FROZEN": "3",
    }
    with start_system(tmp_path_factory.mktemp("freezes"), {VL: model}, **settings) as system:
        yield system


def make_body(**more: Any) -> dict[str, Any]:
    return {
        "model": VL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 8,
        "temperature": 0,
        **more,
    }


async def test_who_holds_it_and_who_comes_meanwhile_get_an_answer_by_their_deadline(system: System) -> None:
    pids = await system.whole()
    async with system.http() as http, Watch.on(system) as watch:
        whole = (await http.post("/v1/chat/completions", json=make_body())).json()
        holding = asyncio.create_task(http.post("/v1/chat/completions", json=make_body(**LONG)))
        await watch.until(lambda: sum(len(watch.ids(one.inv)) for one in watch.replies()[-1:]) > 0)
        os.kill(pids[ONLY], signal.SIGSTOP)
        coming = asyncio.create_task(http.post("/v1/chat/completions", json=make_body()))
        async with asyncio.timeout(DEADLINE + 2):  # promised in docs/reliability.md
            answers = await asyncio.gather(holding, coming)
        back = await system.whole()
        await system.becomes_ready()
        again = (await http.post("/v1/chat/completions", json=make_body())).json()

    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["stage"]) == (503, "stage_unavailable", "thinker")
    assert back[ONLY] != pids[ONLY], "it was replaced"
    # The second is the error of one that froze before its first request.
    assert "does not answer for" in system.log or "has not begun to answer" in system.log
    assert again["choices"] == whole["choices"]
    await system.ledger_is_empty()
