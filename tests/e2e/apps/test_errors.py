"""A faulty app causes a typed error for its client only."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.e2e.apps import texts
from tests.e2e.apps.estate import Estate, error, parts, source, until
from tests.e2e.system import running
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

DEADLINE = 4.0  # seconds
MAX_BODY = 1 << 16  # bytes


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """One gateway with a short deadline and small bodies, and three apps: one is wrong, one is endless, one is fine."""
    directory = tmp_path_factory.mktemp("strict")
    apps = directory / "apps"
    apps.mkdir()
    written = {
        "wrong": (texts.WRONG, {"cls": "Spell"}),
        "endless": (texts.ENDLESS, {"cls": "Count"}),
        "plain": (texts.PLAIN, {}),
    }
    for name, (text, values) in written.items():
        (apps / f"{name}.py").write_text(texts.filled(text, by="fine", **values))
    flags = ["--apps-dir", str(apps)]
    for name in written:
        flags += ["--app", str(apps / f"{name}.py")]
    limits = {"OMNIBUS_GATEWAY_DEADLINE": str(DEADLINE), "OMNIBUS_GATEWAY_MAX_BODY": str(MAX_BODY)}
    with running(directory, {}, *flags, **limits) as system:
        yield Estate(system, apps)


@pytest.fixture(autouse=True)
async def everybody(strict: Estate) -> None:
    """Wait until the worker of each app is ready again."""

    async def ready() -> bool:
        shown = [await strict.show(name) for name in ("wrong", "endless", "plain")]
        return all(app is not None and (app["worker"] or {}).get("state") == "ready" for app in shown)

    await until(ready)


async def went_wrong(estate: Estate, what: str, status: int, code: str) -> dict[str, Any]:
    """Error of the app for ``what``; afterwards it must serve as before."""
    answer = await estate.invoke("wrong", {"what": what})
    found = error(answer)
    assert (answer.status_code, found["code"]) == (status, code), answer.text
    assert answer.headers["x-request-id"] == found["request_id"]
    await serves_again(estate)
    await estate.system.ledger_is_empty()
    return found


async def serves_again(estate: Estate) -> None:
    """Wait until the faulty app serves again."""

    async def fine() -> bool:
        answer = await estate.invoke("wrong", {"what": "fine"})
        if answer.status_code == 500:  # its worker did not answer, and was ended with what it had
            assert "was frozen" in error(answer)["message"]
        else:
            # 503 while its worker starts again, 504 where a busy machine takes longer than the deadline
            assert answer.status_code in (200, 503, 504), answer.text
        return answer.status_code == 200

    await until(fine)


async def test_an_exception_is_the_apps_failure_and_its_words_stay_inside(strict: Estate):
    found = await went_wrong(strict, "value error", 500, "app_failed")

    assert "wrong" in found["message"]
    assert "ValueError" in found["message"]
    assert "secret" not in found["message"]
    assert "a secret of the inside" in strict.system.log
    assert found["request_id"] in strict.system.log


async def test_what_the_app_refuses_is_the_clients_fault_in_its_own_words(strict: Estate):
    found = await went_wrong(strict, "bad request", 400, "bad_request")

    assert (found["message"], found["param"]) == ("times must be even", "times")


async def test_an_app_that_never_answers_meets_its_deadline(strict: Estate):
    began = time.monotonic()

    found = await went_wrong(strict, "never", 504, "deadline_exceeded")

    assert "the app wrong did not answer within its deadline" in found["message"]
    assert time.monotonic() - began >= DEADLINE * 0.9


async def test_an_app_that_blocks_stops_nobody_else_and_is_started_again(strict: Estate):
    before = strict.system.log.count("blocks from now on")
    blocked = asyncio.create_task(strict.invoke("wrong", {"what": "blocks"}))
    await until(lambda: strict.system.log.count("blocks from now on") > before)
    others = await asyncio.gather(*(strict.said("plain", {}) for _ in range(3)))
    answered_meanwhile = not blocked.done()
    answer = await blocked

    assert (answer.status_code, error(answer)["code"]) == (504, "deadline_exceeded")
    assert "wrong" in error(answer)["message"]
    assert (others, answered_meanwhile) == (["fine"] * 3, True)
    await serves_again(strict)


async def test_a_worker_that_is_killed_fails_what_it_had_and_comes_back(strict: Estate):
    before = {worker.pid for worker in strict.workers(0)}
    async with Watch.on(strict.system) as watch:
        asking = asyncio.create_task(strict.invoke("endless", 5))
        await watch.first("omnibus.reply.")
        for worker in strict.workers(0):
            os.kill(worker.pid, signal.SIGKILL)
        answer = await asking

    *_, last = parts(answer) if answer.status_code == 200 else [answer.json()]
    assert last["error"]["code"] == "app_failed"
    assert "endless" in last["error"]["message"]
    assert "signal 9" in last["error"]["message"]
    # The gateway may learn of each end after another: until then it may still send a request to a worker that is gone.
    await until(lambda: len(strict.workers(0)) == 3 and not before & {worker.pid for worker in strict.workers(0)})
    await serves_again(strict)
    await strict.system.ledger_is_empty()


async def test_an_app_that_ends_its_process_fails_alone(strict: Estate):
    found = await went_wrong(strict, "exits", 500, "app_failed")

    assert "exit code 7" in found["message"]


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("branch", "placeholder_observed", "has no value while the graph is recorded"),
        ("format", "placeholder_observed", "has no value while the graph is recorded"),
        ("chance", "side_effect", "random"),
        ("clock", "side_effect", "time"),
        ("twice", "stream_consumed", "read once"),
    ],
)
async def test_a_wrong_graph_says_what_is_wrong_before_anything_runs(strict: Estate, what: str, code: str, said: str):
    found = await went_wrong(strict, what, 500, code)

    assert said in found["message"]


async def test_a_graph_without_end_is_refused(strict: Estate):
    answer = await strict.invoke("wrong", {"what": "forever"})

    assert (answer.status_code, error(answer)["code"]) == (413, "too_large")
    assert "256 segments of 512 calls each: loop less" in error(answer)["message"]
    await serves_again(strict)


async def test_an_answer_that_is_no_json_is_the_apps_failure(strict: Estate):
    found = await went_wrong(strict, "no JSON", 500, "app_failed")

    assert "must return JSON" in found["message"]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"", ""),
        (b"{", ""),
        (b'"\xff"', ""),
        (b"[" * 20_000, ""),
        (b"{}", "what"),
        (b'{"what": 1}', "what"),
        (b'{"what": "fine", "times": "x"}', "times"),
    ],
    ids=["empty", "cut", "no UTF-8", "deep", "missing", "wrong type", "wrong value"],
)
async def test_a_body_that_does_not_fit_is_400_with_its_place(strict: Estate, content: bytes, param: str):
    async with strict.system.http() as http:
        answer = await http.post("/v1/apps/wrong/invoke", content=content)

    found = error(answer)
    assert (answer.status_code, found["code"]) == (400, "bad_request")
    assert (found["param"] or "") == param


async def test_an_unknown_app_names_those_that_there_are(strict: Estate):
    answer = await strict.invoke("none", {})

    assert (answer.status_code, error(answer)["code"]) == (404, "not_found")
    assert "registered apps: endless, plain, wrong" in error(answer)["message"]


async def test_a_body_over_the_limit_is_413(strict: Estate):
    answer = await strict.invoke("plain", "x" * MAX_BODY)

    assert (answer.status_code, error(answer)["code"]) == (413, "too_large")
    assert str(MAX_BODY) in error(answer)["message"]


async def test_a_client_that_leaves_a_stream_stops_everything(strict: Estate):
    seen = 0
    async with Watch.on(strict.system) as watch:
        async with strict.system.http() as http, http.stream("POST", "/v1/apps/endless/invoke", json=3) as answer:
            id = answer.headers["x-request-id"]
            async for line in answer.aiter_lines():
                seen += line.startswith("data: ")
                if seen == 5:
                    break
        end = await watch.end(id)
        await strict.system.ledger_is_empty()
        await heartbeats(watch)  # an executor may hear of the end later than this test
        last = len(watch.seen)
        await heartbeats(watch)

    assert end.status == "cancelled"
    late = Watch()
    late.seen = watch.seen[last:]
    assert watch.chunks(id, "numbers")
    assert late.chunks(id, "numbers") == []
    _, record = await strict.system.record(id)
    assert record["status"] == "cancelled"


async def heartbeats(watch: Watch, count: int = 4) -> None:
    """Wait for a number of heartbeats of executors."""
    before = len(watch.seen)
    await watch.until(lambda: sum(one.subject == "omnibus.event.executor" for one in watch.seen[before:]) > count)


async def test_a_stream_that_meets_its_deadline_ends_with_the_error(strict: Estate):
    answer = await strict.invoke("endless", 3)

    *told, last = parts(answer)
    assert told[:3] == [4, 5, 6]
    assert last["error"]["code"] == "deadline_exceeded"
    await strict.system.ledger_is_empty()


async def test_uploads_are_off_unless_they_are_switched_on(strict: Estate):
    body = {"source": {"upload": dedent(texts.PLAIN), "name": "sent"}}

    refused = await strict.ask("POST", "/v1/apps", body)

    assert refused.status_code == 403
    assert "OMNIBUS_GATEWAY_APP_UPLOADS=1" in error(refused)["message"]


async def test_directories_outside_are_off_limits(strict: Estate, tmp_path: Path):
    (tmp_path / "outside.py").write_text(texts.filled(texts.PLAIN))
    (strict.directory / "link").symlink_to(tmp_path, target_is_directory=True)

    refused = [
        await strict.ask("POST", "/v1/apps", {"source": {**source("outside"), "directory": directory}})
        for directory in (str(tmp_path), "..", "link")
    ]

    assert [answer.status_code for answer in refused] == [403, 403, 403]


async def test_the_failures_of_apps_are_counted_by_their_codes(strict: Estate):
    await strict.invoke("wrong", {"what": "value error"})
    async with strict.system.http() as http:
        counted = (await http.get("/metrics")).text

    lines = [line for line in counted.splitlines() if line.startswith("omnibus_app_requests_total")]
    assert any('app="wrong",code="app_failed"' in line for line in lines)
    assert not any('app="none"' in line for line in lines)


async def test_many_that_leave_at_once_leave_nothing_behind(strict: Estate):
    async def leave() -> None:
        async with strict.system.http() as http, http.stream("POST", "/v1/apps/endless/invoke", json=1) as answer:
            assert answer.status_code == 200
            await anext(answer.aiter_lines())

    await asyncio.gather(*(leave() for _ in range(20)))

    await strict.system.ledger_is_empty(5.0)
    listed = json.loads((await strict.ask("GET", "/v1/apps/endless")).text)
    assert listed["worker"]["state"] == "ready"
    assert isinstance(await strict.said("plain", {}), str)
