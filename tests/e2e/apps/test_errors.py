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
from tests.e2e.apps.estate import AppSystem, make_source, read_error, read_events, wait_until
from tests.e2e.system import start_system
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

DEADLINE = 4.0  # seconds
MAX_BODY = 1 << 16  # bytes


@pytest.fixture(scope="module")
def strict_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppSystem]:
    """One gateway with a short deadline and small bodies, and three apps: one is wrong, one is endless, one is fine."""
    directory = tmp_path_factory.mktemp("strict")
    apps = directory / "apps"
    apps.mkdir()
    modules = {
        "wrong": (texts.WRONG, {"cls": "Spell"}),
        "endless": (texts.ENDLESS, {"cls": "Count"}),
        "plain": (texts.PLAIN, {}),
    }
    for name, (text, values) in modules.items():
        (apps / f"{name}.py").write_text(texts.fill_text(text, by="fine", **values))
    flags = ["--apps-dir", str(apps)]
    for name in modules:
        flags += ["--app", str(apps / f"{name}.py")]
    limits = {"OMNIBUS_GATEWAY_DEADLINE": str(DEADLINE), "OMNIBUS_GATEWAY_MAX_BODY": str(MAX_BODY)}
    with start_system(directory, {}, *flags, **limits) as system:
        yield AppSystem(system, apps)


@pytest.fixture(autouse=True)
async def wait_for_workers(strict_system: AppSystem) -> None:
    """Wait until the worker of each app is ready again."""

    async def are_ready() -> bool:
        states = [await strict_system.show(name) for name in ("wrong", "endless", "plain")]
        return all(app is not None and (app["worker"] or {}).get("state") == "ready" for app in states)

    await wait_until(are_ready)


async def went_wrong(estate: AppSystem, fault: str, status: int, code: str) -> dict[str, Any]:
    """Error of the app for ``fault``; afterwards it must serve as before."""
    answer = await estate.invoke("wrong", {"what": fault})
    body = read_error(answer)
    assert (answer.status_code, body["code"]) == (status, code), answer.text
    assert answer.headers["x-request-id"] == body["request_id"]
    await serves_again(estate)
    await estate.system.ledger_is_empty()
    return body


async def serves_again(estate: AppSystem) -> None:
    """Wait until the faulty app serves again."""

    async def is_fine() -> bool:
        answer = await estate.invoke("wrong", {"what": "fine"})
        if answer.status_code == 500:  # its worker did not answer, and was ended with what it had
            assert "was frozen" in read_error(answer)["message"]
        else:
            # 503 while its worker starts again, 504 where a busy machine takes longer than the deadline
            assert answer.status_code in (200, 503, 504), answer.text
        return answer.status_code == 200

    await wait_until(is_fine)


async def test_an_exception_is_the_apps_failure_and_its_words_stay_inside(strict_system: AppSystem):
    body = await went_wrong(strict_system, "value error", 500, "app_failed")

    assert "wrong" in body["message"]
    assert "ValueError" in body["message"]
    assert "secret" not in body["message"]
    assert "a secret of the inside" in strict_system.system.log
    assert body["request_id"] in strict_system.system.log


async def test_what_the_app_refuses_is_the_clients_fault_in_its_own_words(strict_system: AppSystem):
    body = await went_wrong(strict_system, "bad request", 400, "bad_request")

    assert (body["message"], body["param"]) == ("times must be even", "times")


async def test_an_app_that_never_answers_meets_its_deadline(strict_system: AppSystem):
    began = time.monotonic()

    body = await went_wrong(strict_system, "never", 504, "deadline_exceeded")

    assert "the app wrong did not answer within its deadline" in body["message"]
    assert time.monotonic() - began >= DEADLINE * 0.9


async def test_an_app_that_blocks_stops_nobody_else_and_is_started_again(strict_system: AppSystem):
    before = strict_system.system.log.count("blocks from now on")
    blocked_call = asyncio.create_task(strict_system.invoke("wrong", {"what": "blocks"}))
    await wait_until(lambda: strict_system.system.log.count("blocks from now on") > before)
    answers = await asyncio.gather(*(strict_system.invoke_json("plain", {}) for _ in range(3)))
    answered_meanwhile = not blocked_call.done()
    answer = await blocked_call

    assert (answer.status_code, read_error(answer)["code"]) == (504, "deadline_exceeded")
    assert "wrong" in read_error(answer)["message"]
    assert (answers, answered_meanwhile) == (["fine"] * 3, True)
    await serves_again(strict_system)


async def test_a_worker_that_is_killed_fails_what_it_had_and_comes_back(strict_system: AppSystem):
    before = {worker.pid for worker in strict_system.workers(0)}
    async with Watch.on(strict_system.system) as watch:
        asking = asyncio.create_task(strict_system.invoke("endless", 5))
        await watch.first("omnibus.reply.")
        for worker in strict_system.workers(0):
            os.kill(worker.pid, signal.SIGKILL)
        answer = await asking

    *_, last = read_events(answer) if answer.status_code == 200 else [answer.json()]
    assert last["error"]["code"] == "app_failed"
    assert "endless" in last["error"]["message"]
    assert "signal 9" in last["error"]["message"]
    # The gateway may learn of each end after another: until then it may still send a request to a worker that is gone.
    await wait_until(
        lambda: len(strict_system.workers(0)) == 3 and not before & {worker.pid for worker in strict_system.workers(0)}
    )
    await serves_again(strict_system)
    await strict_system.system.ledger_is_empty()


async def test_an_app_that_ends_its_process_fails_alone(strict_system: AppSystem):
    body = await went_wrong(strict_system, "exits", 500, "app_failed")

    assert "exit code 7" in body["message"]


@pytest.mark.parametrize(
    ("fault", "code", "expected_message"),
    [
        ("branch", "placeholder_observed", "has no value while the graph is recorded"),
        ("format", "placeholder_observed", "has no value while the graph is recorded"),
        ("chance", "side_effect", "random"),
        ("clock", "side_effect", "time"),
        ("twice", "stream_consumed", "read once"),
    ],
)
async def test_a_wrong_graph_says_what_is_wrong_before_anything_runs(
    strict_system: AppSystem, fault: str, code: str, expected_message: str
):
    body = await went_wrong(strict_system, fault, 500, code)

    assert expected_message in body["message"]


async def test_a_graph_without_end_is_refused(strict_system: AppSystem):
    answer = await strict_system.invoke("wrong", {"what": "forever"})

    assert (answer.status_code, read_error(answer)["code"]) == (413, "too_large")
    assert "256 segments of 512 calls each: loop less" in read_error(answer)["message"]
    await serves_again(strict_system)


async def test_an_answer_that_is_no_json_is_the_apps_failure(strict_system: AppSystem):
    body = await went_wrong(strict_system, "no JSON", 500, "app_failed")

    assert "must return JSON" in body["message"]


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
async def test_a_body_that_does_not_fit_is_400_with_its_place(strict_system: AppSystem, content: bytes, param: str):
    async with strict_system.system.http() as http:
        answer = await http.post("/v1/apps/wrong/invoke", content=content)

    body = read_error(answer)
    assert (answer.status_code, body["code"]) == (400, "bad_request")
    assert (body["param"] or "") == param


async def test_an_unknown_app_names_those_that_there_are(strict_system: AppSystem):
    answer = await strict_system.invoke("none", {})

    assert (answer.status_code, read_error(answer)["code"]) == (404, "not_found")
    assert "registered apps: endless, plain, wrong" in read_error(answer)["message"]


async def test_a_body_over_the_limit_is_413(strict_system: AppSystem):
    answer = await strict_system.invoke("plain", "x" * MAX_BODY)

    assert (answer.status_code, read_error(answer)["code"]) == (413, "too_large")
    assert str(MAX_BODY) in read_error(answer)["message"]


async def test_a_client_that_leaves_a_stream_stops_everything(strict_system: AppSystem):
    event_count = 0
    async with Watch.on(strict_system.system) as watch:
        async with (
            strict_system.system.http() as http,
            http.stream("POST", "/v1/apps/endless/invoke", json=3) as answer,
        ):
            id = answer.headers["x-request-id"]
            async for line in answer.aiter_lines():
                event_count += line.startswith("data: ")
                if event_count == 5:
                    break
        end = await watch.end(id)
        await strict_system.system.ledger_is_empty()
        await wait_for_heartbeats(watch)  # an executor may hear of the end later than this test
        last = len(watch.seen)
        await wait_for_heartbeats(watch)

    assert end.status == "cancelled"
    late = Watch()
    late.seen = watch.seen[last:]
    assert watch.chunks(id, "numbers")
    assert late.chunks(id, "numbers") == []
    _, record = await strict_system.system.record(id)
    assert record["status"] == "cancelled"


async def wait_for_heartbeats(watch: Watch, count: int = 4) -> None:
    """Wait for a number of heartbeats of executors."""
    before = len(watch.seen)
    await watch.until(lambda: sum(one.subject == "omnibus.event.executor" for one in watch.seen[before:]) > count)


async def test_a_stream_that_meets_its_deadline_ends_with_the_error(strict_system: AppSystem):
    answer = await strict_system.invoke("endless", 3)

    *values, last = read_events(answer)
    assert values[:3] == [4, 5, 6]
    assert last["error"]["code"] == "deadline_exceeded"
    await strict_system.system.ledger_is_empty()


async def test_uploads_are_off_unless_they_are_switched_on(strict_system: AppSystem):
    body = {"source": {"upload": dedent(texts.PLAIN), "name": "sent"}}

    response = await strict_system.ask("POST", "/v1/apps", body)

    assert response.status_code == 403
    assert "OMNIBUS_GATEWAY_APP_UPLOADS=1" in read_error(response)["message"]


async def test_directories_outside_are_off_limits(strict_system: AppSystem, tmp_path: Path):
    (tmp_path / "outside.py").write_text(texts.fill_text(texts.PLAIN))
    (strict_system.directory / "link").symlink_to(tmp_path, target_is_directory=True)

    responses = [
        await strict_system.ask("POST", "/v1/apps", {"source": {**make_source("outside"), "directory": directory}})
        for directory in (str(tmp_path), "..", "link")
    ]

    assert [answer.status_code for answer in responses] == [403, 403, 403]


async def test_the_failures_of_apps_are_counted_by_their_codes(strict_system: AppSystem):
    await strict_system.invoke("wrong", {"what": "value error"})
    async with strict_system.system.http() as http:
        metrics = (await http.get("/metrics")).text

    lines = [line for line in metrics.splitlines() if line.startswith("omnibus_app_requests_total")]
    assert any('app="wrong",code="app_failed"' in line for line in lines)
    assert not any('app="none"' in line for line in lines)


async def test_many_that_leave_at_once_leave_nothing_behind(strict_system: AppSystem):
    async def leave_stream() -> None:
        async with (
            strict_system.system.http() as http,
            http.stream("POST", "/v1/apps/endless/invoke", json=1) as answer,
        ):
            assert answer.status_code == 200
            await anext(answer.aiter_lines())

    await asyncio.gather(*(leave_stream() for _ in range(20)))

    await strict_system.system.ledger_is_empty(5.0)
    app = json.loads((await strict_system.ask("GET", "/v1/apps/endless")).text)
    assert app["worker"]["state"] == "ready"
    assert isinstance(await strict_system.invoke_json("plain", {}), str)
