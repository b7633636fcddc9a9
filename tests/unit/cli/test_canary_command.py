"""``omnibus canary`` on a real store, found as a reader finds it: by the run of ``omnibus up``."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from omnibus.cli import main
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus.up.runs import RunDirectory, RunState
from tests.unit.cli.test_plans import make_model, make_plan

SECRET = "of this run"


def test_a_candidate_is_signed_with_the_secret_of_the_run(
    valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("OMNIBUS_STORE_URL", raising=False)
    monkeypatch.delenv("OMNIBUS_STORE_SECRET", raising=False)

    async def write_plan() -> None:
        store = Store(StoreSettings(url=valkey_url, secret=SECRET))
        await store.swap_plan(make_plan(1, m=make_model()))
        await store.close()

    async def read_candidates() -> list[str]:
        store = Store(StoreSettings(url=valkey_url, secret=SECRET))
        try:
            return list(await store.candidates())
        finally:
            await store.close()

    asyncio.run(write_plan())
    with RunDirectory() as run:
        run.write_state(
            RunState(str(run.path), os.getpid(), time.time(), "nats://n", valkey_url, store_secret=SECRET, ready=True)
        )

        assert main(["canary", "start", "m", "--option", "L", "--dtype", "bfloat16"]) == 0

    assert asyncio.run(read_candidates()) == ["m"]
