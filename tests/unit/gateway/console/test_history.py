"""The console's history: from the counters of gateways to the store, and then to columns."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import StoreUnavailable
from omnibus.metrics import GATEWAY
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus.store.history import COARSE_STEP_SECONDS, FINE_STEP_SECONDS, KEPT_SECONDS, MIDDLE_STEP_SECONDS
from omnibus_gateway.console.history import read_history
from omnibus_gateway.console.recorder import HistoryRecorder
from omnibus_gateway.routing.executors import ExecutorTable
from tests.unit.cli.watched import make_status
from tests.unit.gateway.house import VL, read_chat_answer, read_error_body, start_toy_gateway
from tests.unit.sidecar.node import wait_until

KEPT = 7 * 24 * 3600.0
MODEL, STAGE = "history-model", "thinker"


@pytest.fixture
async def store(valkey_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    history_store = Store(StoreSettings(url=valkey_url, prefix=f"history-{request.node.name}-{time.time_ns()}"))
    yield history_store
    await history_store.close()


async def read_column(store: Store, *names: str, seconds: float = 600.0) -> list[Any]:
    """Return a column of the last ``seconds``."""
    value: Any = await read_history(store, seconds, time.time())
    for name in names:
        value = value.get(name, {})
    return list(value)


async def test_what_gateways_count_is_added_up_once(store: Store):
    one, other = (HistoryRecorder(name, store, ExecutorTable(), KEPT) for name in ("one", "other"))
    GATEWAY.arrivals.labels(MODEL, STAGE).inc(3)
    GATEWAY.ended.labels(MODEL, STAGE, "done").inc(2)
    GATEWAY.ended.labels(MODEL, STAGE, "failed").inc()
    GATEWAY.request_counter(MODEL, "stage_failed").inc()
    for seconds in (0.2, 0.2, 40.0):
        GATEWAY.duration_histogram(MODEL).observe(seconds)

    await one.record()
    await one.record()  # no news
    await other.record()  # in one process both recorders read the same counters

    assert sum(await read_column(store, "models", MODEL, "came")) == 6
    assert sum(await read_column(store, "models", MODEL, "types", STAGE, "done")) == 4
    assert sum(await read_column(store, "models", MODEL, "codes", "stage_failed")) == 2
    half = [value for value in await read_column(store, "models", MODEL, "total_p50") if value is not None]
    most = [value for value in await read_column(store, "models", MODEL, "total_p95") if value is not None]
    assert all(0.1 <= value <= 0.25 for value in half)
    assert all(30 <= value <= 60 for value in most)


async def test_what_a_store_that_is_away_missed_comes_later(store: Store):
    away = Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))
    recorder = HistoryRecorder("one", away, ExecutorTable(), KEPT)
    GATEWAY.arrivals.labels(MODEL, "late").inc(5)

    with pytest.raises(StoreUnavailable):
        await recorder.record()
    recorder._store = store
    await recorder.record()
    await away.close()

    assert sum(await read_column(store, "models", MODEL, "types", "late", "came")) == 5


async def test_stages_are_written_by_one_gateway_from_heartbeats(store: Store):
    members = ExecutorTable()
    recorders = [HistoryRecorder(name, store, members, KEPT) for name in ("one", "other")]
    members.handle_status(make_status("a", busy=5.0, done=7))
    for recorder in recorders:
        await recorder.record()  # earlier work of an executor is not counted

    members.handle_status(make_status("a", busy=8.0, done=19))
    for recorder in recorders:
        await recorder.record()

    model, component = members.statuses()[0].model, members.statuses()[0].components[0]
    assert sum(await read_column(store, "stages", model, component, "jobs")) == 12
    assert sum(await read_column(store, "stages", model, component, "busy")) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("seconds", "step"),
    [(900, FINE_STEP_SECONDS), (6 * 3600, MIDDLE_STEP_SECONDS), (7 * 24 * 3600, COARSE_STEP_SECONDS)],
)
async def test_longer_spans_have_coarser_buckets_of_the_same_sums(store: Store, seconds: float, step: int):
    at = time.time() - 120
    await store.add_history({'["came","m","t"]': 4}, KEPT, at)
    await store.add_history({'["came","m","t"]': 3}, KEPT, at)

    history = await read_history(store, seconds, time.time())

    assert history["step"] == step
    assert len(history["starts"]) == len(history["models"]["m"]["came"])
    assert history["models"]["m"]["came"][[start <= at < start + step for start in history["starts"]].index(True)] == 7


async def test_what_is_kept_expires(store: Store):
    await store.add_history({'["came","m","t"]': 1}, 3600.0)

    keys = [key async for key in store._redis.scan_iter(f"{store._settings.prefix}:history:*")]
    lives = {int(key.split(b":")[-2]): await store._redis.ttl(key) for key in keys}

    assert set(lives) == set(KEPT_SECONDS)
    assert all(0 < life <= 3600 + step for step, life in lives.items())


async def test_a_request_is_in_the_history_of_its_gateway(tmp_path: Path, store: Store):
    async with start_toy_gateway(tmp_path, store) as home:
        await home.all_of(VL)
        recorder = HistoryRecorder("one", store, home.router.members, KEPT)
        read_chat_answer(await home.ask())

        async def has_requests() -> bool:
            await recorder.record()
            history = (await home.http.get("/v1/console/history?seconds=600")).json()
            return sum(history["models"].get(VL, {}).get("done", [])) >= 1

        await wait_until(has_requests)  # the load is counted once a second
        rejection = await home.http.get("/v1/console/history?seconds=1")

    assert (rejection.status_code, read_error_body(rejection)["param"]) == (400, "seconds")


async def test_requests_that_are_rejected_are_counted_by_code_and_no_failures_of_ours_among_them(store: Store):
    counts = {"bad_request": 60, "not_found": 6, "ok": 755, "stage_failed": 2, "client_closed": 3, "overloaded": 4}
    await store.add_history({f'["code","m","{code}"]': count for code, count in counts.items()}, KEPT)

    model_history = (await read_history(store, 600, time.time()))["models"]["m"]

    assert sum(model_history["rejected"]) == 66
    assert model_history["rejected_codes"] == {"bad_request": 60, "not_found": 6}


@pytest.mark.parametrize("late", [0.0, FINE_STEP_SECONDS - 1.0])
async def test_the_bucket_that_still_grows_is_told_from_those_that_are_over(store: Store, late: float):
    bucket_start = time.time() // FINE_STEP_SECONDS * FINE_STEP_SECONDS
    await store.add_history({'["came","m","t"]': 4}, KEPT, bucket_start - 1)
    await store.add_history({'["came","m","t"]': 1}, KEPT, bucket_start)

    history = await read_history(store, 600, bucket_start + late)

    assert history["models"]["m"]["came"][: history["whole"]][-1] == 4
    assert history["models"]["m"]["came"][history["whole"] :] == [1]
