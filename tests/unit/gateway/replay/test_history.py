"""The list of invocations and the waterfall of one, over HTTP."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from omnibus import graph
from omnibus.recording.records import WHOLE_RECORD_SECONDS
from omnibus_gateway.replay import history
from tests.unit.cli.documents import make_invocation
from tests.unit.gateway.house import (
    OMNI,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_error_body,
    start_toy_gateway,
)


@pytest.fixture
async def home(home: ToyGateway) -> ToyGateway:
    await home.all_of(VL)
    return home


async def send_requests(home: ToyGateway, count: int, model: str = VL) -> list[str]:
    """Run requests and return their ids."""
    ids = []
    for number in range(count):
        response = await home.ask(model, f"request {number}")
        ids.append(response.headers["x-request-id"])
        await home.ended(ids[-1])
    return ids


async def read_page(home: ToyGateway, **parameters: Any) -> dict[str, Any]:
    response = await home.http.get("/v1/invocations", params=parameters)
    assert response.status_code == 200, response.text
    return dict(response.json())


def list_ids(page: dict[str, Any]) -> list[str]:
    return [each["id"] for each in page["data"]]


async def test_the_latest_come_first_with_status_and_times(home: ToyGateway):
    request_ids = await send_requests(home, 3)

    first_page = await read_page(home)

    assert list_ids(first_page) == request_ids[::-1]
    assert (first_page["object"], first_page["next"]) == ("list", None)
    first = first_page["data"][0]
    assert (first["status"], first["model"], first["app"]) == ("done", VL, "chat")
    assert 0 <= first["first"] <= first["seconds"]


async def test_what_was_just_answered_at_any_gateway_is_listed(home: ToyGateway):
    running = await _record_running(home)
    asyncio.get_running_loop().call_later(WHOLE_RECORD_SECONDS, home.records.write_begin, running)

    assert list_ids(await read_page(home)) == [running.invocation.id]


async def test_pages_follow_each_other_without_gaps_or_repeats(home: ToyGateway):
    request_ids = await send_requests(home, 5)

    listed_ids, before = [], 0
    while True:
        part = await read_page(home, limit=2, before=before)
        assert all(each["status"] == "done" for each in part["data"])
        listed_ids += list_ids(part)
        if part["next"] is None:
            break
        before = part["next"]

    assert listed_ids == request_ids[::-1]


async def test_what_still_runs_is_listed_on_every_page_as_running(home: ToyGateway):
    home.records.write_begin(await _record_running(home))
    request_ids = await send_requests(home, 1)

    assert [(each["id"], each["status"]) for each in (await read_page(home))["data"]] == [
        (request_ids[0], "done"),
        ("g-0-9", "running"),
    ]
    assert list_ids(await read_page(home, status="running")) == ["g-0-9"]


async def _record_running(home: ToyGateway) -> Any:
    """Record an invocation that never ends."""
    one = make_invocation(id="g-0-9")
    return SimpleNamespace(invocation=one, body=graph.encode_invocation(one), tapes={})


async def test_words_are_looked_for_in_ids_models_executors_and_codes(home: ToyGateway):
    [one, two] = await send_requests(home, 2)
    await home.all_of(OMNI)
    spoken_id = (await home.ask(OMNI, "and you")).headers["x-request-id"]
    await home.ended(spoken_id)

    assert list_ids(await read_page(home, q=two)) == [two]
    assert list_ids(await read_page(home, q=f"{VL} DONE", limit=10)) == [two, one]
    assert list_ids(await read_page(home, model=OMNI)) == [spoken_id]
    assert list_ids(await read_page(home, app="other")) == []
    assert list_ids(await read_page(home, q="thinker vocoder no-such-word")) == []
    route = (await home.http.get(f"/v1/invocations/{one}")).json()["nodes"][0]["executor"]
    assert one in list_ids(await read_page(home, q=route))


async def test_a_question_reads_only_so_much_and_says_where_to_go_on(home: ToyGateway, monkeypatch: pytest.MonkeyPatch):
    request_ids = await send_requests(home, 4)
    monkeypatch.setattr(history, "READ_BATCH_COUNT", 2)
    monkeypatch.setattr(history, "MAX_READ_RECORDS", 4)

    part = await read_page(home, q=request_ids[0])
    assert list_ids(part) == []
    assert list_ids(await read_page(home, q=request_ids[0], before=part["next"])) == [request_ids[0]]


async def test_one_request_is_shown_with_its_nodes_and_edges(home: ToyGateway):
    response = await home.ask(VL, [make_text_part("what is it"), make_image_part()], path="E>L")
    id = response.headers["x-request-id"]
    await home.ended(id)

    whole = (await home.http.get(f"/v1/invocations/{id}")).json()

    assert [(row["component"], row["state"]) for row in whole["nodes"]] == [("vision", "done"), ("thinker", "done")]
    assert all(row["taken"] <= row["ready"] <= row["end"] for row in whole["nodes"])
    [edge] = whole["edges"]
    assert (edge["source"], edge["output"], edge["target"], edge["local"]) == (0, "embedding", 1, False)
    assert edge["sent"] <= edge["arrived"]
    assert whole["nodes"][0]["nbytes"] == 16  # a row of four float32
    [media] = whole["nodes"][0]["inputs"]
    assert (media["kind"], media["mime"]) == ("media", "image/png")
    assert whole["outcome"]["characters"] == len(response.json()["choices"][0]["message"]["content"])
    assert "what is it" not in str(whole)


async def test_an_unknown_invocation_is_a_404(home: ToyGateway):
    response = await home.http.get("/v1/invocations/no-such-id")

    assert response.status_code == 404
    assert read_error_body(response)["code"] == "not_found"


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"limit": 0}, "limit"), ({"limit": 201}, "limit"), ({"limit": "x"}, "limit"), ({"limit": "-1"}, "limit"),
        ({"before": "9" * 30}, "before"), ({"before": "²"}, "before"), ({"status": "odd"}, "status"),
        ({"page": 2}, "page"),
    ],
)  # fmt: skip
async def test_a_bad_parameter_is_named(home: ToyGateway, parameters: dict[str, Any], param: str):
    response = await home.http.get("/v1/invocations", params=parameters)

    assert response.status_code == 400
    assert read_error_body(response)["param"] == param


@pytest.mark.parametrize("path", ["/v1/invocations", "/v1/invocations/x"])
@pytest.mark.parametrize(
    ("settings", "token", "status"),
    [
        ({"admin_token": "right"}, "", 401),
        ({"admin_token": "right"}, "wrong", 401),
        ({"admin_token": "right"}, "right", 200),
        ({"host": "0.0.0.0"}, "", 403),
        ({"host": "0.0.0.0", "admin_token": "right"}, "right", 200),
        ({"host": "::1"}, "", 200),
        ({"host": "my.host"}, "", 403),
    ],
)
async def test_only_operators_may_look(tmp_path: Path, path: str, settings: dict[str, str], token: str, status: int):
    async with start_toy_gateway(tmp_path, **settings) as gateway:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        response: httpx.Response = await gateway.http.get(path, headers=headers)

    assert response.status_code == (404 if status == 200 and path.endswith("x") else status)


async def test_time_and_duration_narrow_the_list(home: ToyGateway):
    request_ids = await send_requests(home, 2)
    whole = await read_page(home)
    first, last = whole["data"][-1], whole["data"][0]
    longest = int(max(each["seconds"] for each in whole["data"]) * 1000) + 1

    assert (
        list_ids(await read_page(home, since=int(first["created"]), until=int(last["created"]) + 1))
        == request_ids[::-1]
    )
    assert list_ids(await read_page(home, since=int(last["created"]) + 60)) == []
    assert list_ids(await read_page(home, until=int(first["created"]) - 60)) == []
    assert list_ids(await read_page(home, max_ms=longest)) == request_ids[::-1]
    assert list_ids(await read_page(home, min_ms=longest)) == []
