"""The console's data routes: access control, the plan, and replays."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnibus.plan import Plan
from omnibus.plan_score import OptionScore, PlanScore, score_value
from omnibus.recording import records
from omnibus.settings import StoreSettings
from omnibus.store import Store
from tests.unit.gateway.house import (
    OMNI,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_chat_answer,
    read_error_body,
    read_sse_events,
    start_toy_gateway,
)

TOKEN = {"authorization": "Bearer secret"}
PAGES = (
    "plan",
    "events",
    "executors",
    "executors/x",
    "keys",
    "deadletters",
    "deadletters/x-0-0",
    "settings",
    "logs",
    "history",
    "failures",
    "alerts",
)
CHANGES = [("POST", "replay/x-0-0"), ("POST", "fork/x-0-0"), ("POST", "keys"), ("DELETE", "keys/0123456789ab")]
DATA = [(method, f"/v1/console/{page}") for method, page in (*(("GET", page) for page in PAGES), *CHANGES)]


async def send_local(home: ToyGateway, method: str, path: str, **more: Any) -> httpx.Response:
    """Send a request as a client on this machine."""
    more["headers"] = {"host": "127.0.0.1:8000", **more.get("headers", {})}
    return await home.http.request(method, path, **more)


# Access


@pytest.mark.parametrize(("method", "path"), DATA)
async def test_with_a_token_set_data_needs_it(tmp_path: Path, method: str, path: str):
    async with start_toy_gateway(tmp_path, admin_token="secret") as home:
        without = await send_local(home, method, path)
        wrong = await send_local(home, method, path, headers={"authorization": "Bearer guessed"})

    assert (without.status_code, wrong.status_code) == (401, 401)
    assert without.headers["www-authenticate"] == "Bearer"
    assert "OMNIBUS_GATEWAY_ADMIN_TOKEN" in read_error_body(without)["message"]


@pytest.mark.parametrize(("method", "path"), DATA)
async def test_without_a_token_data_is_for_this_machine_alone(tmp_path: Path, method: str, path: str):
    async with start_toy_gateway(tmp_path, host="10.0.0.1") as home:
        elsewhere = await send_local(home, method, path)
    async with start_toy_gateway(tmp_path) as home:
        foreign = await send_local(home, method, path, headers={"origin": "https://example.com"})
        other_host_response = await send_local(home, method, path, headers={"host": "example.com"})

    assert [each.status_code for each in (elsewhere, foreign, other_host_response)] == [403, 403, 403]


async def test_the_page_itself_needs_no_token(tmp_path: Path):
    async with start_toy_gateway(tmp_path, admin_token="secret") as home:
        assert (await home.http.get("/console/")).status_code == 200


# The plan


@pytest.fixture
async def store(valkey_url: str) -> Any:
    console_store = Store(StoreSettings(url=valkey_url, prefix="console"))
    yield console_store
    await console_store.close()


async def test_the_plan_is_told_with_what_changed_and_what_models_take_and_give(tmp_path: Path, store: Store):
    async with start_toy_gateway(tmp_path, store, admin_token="secret") as home:
        home.serve(VL, OMNI)
        second = home.router.plan
        assert second is not None
        first = Plan(1, 0, 999.0, {VL: second.models[VL]}, reason="declared")
        await store.swap_plan(first)
        await store.swap_plan(Plan(2, 0, 1000.0, second.models, reason="another model"))
        await store.put_plan_score(
            PlanScore(2, 1.0, 60.0, 0.5, options=(OptionScore(VL, "L", 9, score_value(0.5, 0.6)),))
        )

        document = (await send_local(home, "GET", "/v1/console/plan", headers=TOKEN)).json()

    assert (document["plan"]["epoch"], document["plan"]["reason"], document["staged"]) == (2, "another model", None)
    assert [f"model {OMNI}", "-", "served"] in document["changes"]
    assert document["score"]["options"][0]["busy"]["error"] == pytest.approx(0.2)
    assert [each["epoch"] for each in document["history"]] == [2, 1]
    assert document["history"][1]["reason"] == "declared"
    assert document["models"][VL]["takes"] == ["text", "image", "video"]
    assert document["models"][VL]["gives"] == ["text"]
    assert document["models"][OMNI]["gives"] == ["text", "speech"]


async def test_a_store_that_is_away_is_a_problem_and_not_a_fault(tmp_path: Path):
    async with start_toy_gateway(tmp_path, admin_token="secret") as home:
        response = await send_local(home, "GET", "/v1/console/plan", headers=TOKEN)

    assert response.status_code == 503
    assert "store" in read_error_body(response)["message"]


# Replay


async def test_a_replay_says_where_it_runs_and_how_it_compares(tmp_path: Path):
    async with start_toy_gateway(tmp_path, admin_token="secret") as home:
        await home.all_of(VL)
        chat_response = await home.ask(content=[make_text_part("again")])
        read_chat_answer(chat_response)
        id = chat_response.headers["x-request-id"]
        await home.ended(id)

        again = await send_local(home, "POST", f"/v1/console/replay/{id}", headers=TOKEN)

    assert again.headers["content-type"].startswith("text/event-stream")
    running, outcome = read_sse_events(again)
    assert (running["status"], running["replay_of"]) == ("running", id)
    assert (outcome["status"], outcome["identical"], outcome["id"]) == ("done", True, running["id"])


async def test_a_replay_may_take_another_path(tmp_path: Path):
    async with start_toy_gateway(tmp_path, admin_token="secret") as home:
        await home.all_of(VL)
        chat_response = await home.ask(content=[make_text_part("look"), make_image_part()], path="E>L")
        read_chat_answer(chat_response)
        id = chat_response.headers["x-request-id"]
        await home.ended(id)

        again = await send_local(home, "POST", f"/v1/console/replay/{id}?path=EL", headers=TOKEN)

    running, outcome = read_sse_events(again)
    assert (running["path"], outcome["identical"]) == ("EL", True)


@pytest.mark.parametrize("query", ["to=2", "path=a%0d%0ab", "from=%c3%a9"])
async def test_what_no_replay_knows_is_refused(tmp_path: Path, query: str):
    async with start_toy_gateway(tmp_path, admin_token="secret") as home:
        response = await send_local(home, "POST", f"/v1/console/replay/x-0-0?{query}", headers=TOKEN)

    assert (response.status_code, read_error_body(response)["param"]) == (400, query.partition("=")[0])


async def test_a_replay_of_nothing_is_a_404(tmp_path: Path):
    async with start_toy_gateway(tmp_path, admin_token="secret") as home:
        response = await send_local(home, "POST", "/v1/console/replay/nobody-0-0", headers=TOKEN)
        bad = await send_local(home, "POST", "/v1/console/replay/a%20b", headers=TOKEN)

    assert (response.status_code, bad.status_code) == (404, 404)
    assert json.loads(response.content)["error"]["type"]


# Forks


async def test_a_fork_changes_one_input_and_names_what_it_came_from(tmp_path: Path):
    async with start_toy_gateway(tmp_path, admin_token="secret") as home:
        await home.all_of(VL)
        chat_response = await home.ask(content=[make_text_part("look")])
        read_chat_answer(chat_response)
        id = chat_response.headers["x-request-id"]
        await home.ended(id)

        fork_request = {"node": "thinker", "changes": {"messages.0.content.0.text": "listen"}, "seed": 7}
        fork_response = await send_local(home, "POST", f"/v1/console/fork/{id}", headers=TOKEN, json=fork_request)
        running, outcome = read_sse_events(fork_response)
        await home.ended(outcome["id"])
        after = await records.find_record(home.bus, outcome["id"])

    assert (running["status"], running["replay_of"]) == ("running", id)
    assert (outcome["status"], outcome["identical"]) == ("done", False)
    assert outcome["answer"]["text"].startswith("You said listen")
    assert (after.invocation.replay_of, after.invocation.seed) == (id, 7)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "node"),
        ({"node": 9, "seed": 1}, "unknown stage '9'"),
        ({"node": 0}, "a fork changes something"),
        ({"node": 0, "seed": 1 << 70}, "seed"),
        ({"node": 0, "changes": {"nothing": 1}}, "no input 'nothing'"),
        ({"node": 0, "path": "E"}, "path"),
    ],
)
async def test_a_fork_that_cannot_be_says_why(tmp_path: Path, body: dict[str, Any], why: str):
    async with start_toy_gateway(tmp_path, admin_token="secret") as home:
        await home.all_of(VL)
        chat_response = await home.ask(content=[make_text_part("look")])
        read_chat_answer(chat_response)
        await home.ended(chat_response.headers["x-request-id"])

        path = f"/v1/console/fork/{chat_response.headers['x-request-id']}"
        response = await send_local(home, "POST", path, headers=TOKEN, json=body)

    assert (response.status_code, read_error_body(response)["code"]) == (400, "bad_request")
    assert why in read_error_body(response)["message"]
