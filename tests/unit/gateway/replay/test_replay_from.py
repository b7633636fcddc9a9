"""Replays from an inner stage, on another path, or on given executors."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import Delivery, subjects
from omnibus.executor.runner import Job
from omnibus_gateway.dispatch import retention as capture
from tests.unit.gateway.house import (
    OMNI,
    TOYS,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_chat_answer,
    start_toy_gateway,
)

PATIENCE = 20.0  # seconds
SPEECH = {"modalities": ["text", "audio"], "audio": {"voice": "Ethan", "format": "wav"}}


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path, record="stages") as gateway:
        gateway.ran = Counter()
        yield gateway


async def start_counting(home: ToyGateway, model: str, **options: tuple[str, ...]) -> None:
    """Start executors of ``options`` whose toys count their runs."""

    def count_runs(component: str) -> Any:
        async def run_toy(job: Job) -> None:
            home.ran[component] += 1
            await TOYS[component](job)

        return run_toy

    for option, components in options.items():
        await home.executor(model, option, *components, **{each: count_runs(each) for each in components})


async def start_speech(home: ToyGateway) -> None:
    home.serve(OMNI)
    await start_counting(home, OMNI, EA=("vision", "audio"), Th=("thinker",), Ta=("talker",), V=("vocoder",))


async def record_request(home: ToyGateway, **asked: Any) -> bytes:
    response = await home.ask(**asked)
    read_chat_answer(response)
    id = response.headers["x-request-id"]
    await home.ended(id)
    home.ran.clear()
    return (await home.bus.read_records(f"{subjects.ROOT}.inv.*.{id}"))[0].data


async def replay_invocation(home: ToyGateway, body: bytes, **headers: str) -> list[dict[str, Any]]:
    omnibus_headers = {f"Omnibus-{name.capitalize()}": value for name, value in headers.items()}
    return [
        json.loads(part) async for part in home.bus.request_stream(subjects.REPLAY, body, PATIENCE, omnibus_headers)
    ]


async def expect_refusal(home: ToyGateway, body: bytes, **headers: str) -> dict[str, Any]:
    [only] = await replay_invocation(home, body, **headers)
    assert only["status"] == "failed"
    await home.emptied()
    return dict(only["problem"])


# From a stage


async def test_what_comes_before_a_stage_is_played_and_not_run_again(home: ToyGateway):
    home.serve(VL)
    await start_counting(home, VL, E=("vision",), L=("thinker",))
    body = await record_request(home, content=[make_text_part("look"), make_image_part()], path="E>L")

    running, reply = await replay_invocation(home, body, **{"from": "thinker"})

    assert running["from"] == 1
    assert running["route"][0].startswith("record-of-")
    assert (reply["status"], reply["identical"]) == ("done", True)
    assert home.ran == {"thinker": 1}
    await home.emptied()


@pytest.mark.parametrize(
    ("start", "ran"), [("0", {"thinker", "talker", "vocoder"}), ("1", {"talker", "vocoder"}), ("vocoder", {"vocoder"})]
)
async def test_streams_between_stages_are_played_too(home: ToyGateway, start: str, ran: set[str]):
    await start_speech(home)
    body = await record_request(home, model=OMNI, content="hi", path="Th>Ta>V", **SPEECH)

    _, reply = await replay_invocation(home, body, **{"from": start})

    assert (reply["status"], reply["identical"]) == ("done", True)
    assert set(home.ran) == ran
    assert reply["answer"]["audio_seconds"] == 4 * 240 / 24000
    await home.emptied()


async def test_only_what_runs_is_compared(home: ToyGateway):
    await start_speech(home)
    body = await record_request(home, model=OMNI, content="hi", **SPEECH)

    _, reply = await replay_invocation(home, body, **{"from": "talker"})

    assert (reply["answer"].get("text", ""), reply["identical"]) == ("", True)


async def test_a_replay_from_a_stage_is_recorded_with_its_route_and_can_be_shown(home: ToyGateway):
    home.serve(VL)
    await start_counting(home, VL, E=("vision",), L=("thinker",))
    body = await record_request(home, content=[make_text_part("look"), make_image_part()], path="E>L")
    running, _ = await replay_invocation(home, body, **{"from": "1"})

    await home.ended(running["id"])
    whole = (await home.http.get(f"/v1/invocations/{running['id']}")).json()

    assert [row["state"] for row in whole["nodes"]] == ["done", "done"]
    assert whole["nodes"][0]["executor"] == running["route"][0]
    assert whole["summary"]["replay_of"] == graph.decode_invocation(body).id


async def test_when_its_executor_dies_it_is_played_to_the_next_one(home: ToyGateway):
    deaths: list[str] = []

    async def die_once(job: Job) -> None:
        await job.value("items")
        if not deaths and len(home.ran):
            deaths.append("x")
            home.bus.publish(subjects.event_subject(subjects.GONE), b"L-0")
            await job.value("never")
            raise AssertionError
        await TOYS["thinker"](job)

    home.serve(VL)
    await start_counting(home, VL, E=("vision",))
    for number in range(2):
        await home.executor(VL, "L", "thinker", id=f"L-{number}", thinker=die_once)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()], path="E>L")
    home.ran["replay"] = 1

    _, reply = await replay_invocation(home, body, **{"from": "thinker"})

    assert (reply["identical"], home.ran["vision"]) == (True, 0)


async def test_without_what_was_passed_on_it_says_which_setting_keeps_it(tmp_path: Path):
    async with start_toy_gateway(tmp_path, record="full") as home:
        home.ran = Counter()
        await home.all_of(VL)
        body = await record_request(home, content=[make_text_part("look"), make_image_part()], path="E>L")

        problem = await expect_refusal(home, body, **{"from": "thinker"})

    assert problem["code"] == "bad_request"
    assert "output 'embedding' of node 0 (vision), which was not kept" in problem["message"]
    assert "OMNIBUS_GATEWAY_RECORD=stages" in problem["message"]


async def test_a_graph_of_one_node_needs_nothing_that_was_kept(tmp_path: Path):
    async with start_toy_gateway(tmp_path, record="full") as home:
        home.ran = Counter()
        await home.all_of(VL)
        body = await record_request(home, content="hello")

        assert (await replay_invocation(home, body, **{"from": "thinker"}))[-1]["identical"] is True


async def test_media_that_left_the_keep_are_not_found(home: ToyGateway, tmp_path: Path):
    await home.all_of(VL)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()], path="E>L")
    [one] = (await home.ended(graph.decode_invocation(body).id)).kept
    assert await home.keep.get(one.sha256)
    (tmp_path / "kept" / one.sha256[:2] / one.sha256).unlink()

    assert (await expect_refusal(home, body, **{"from": "thinker"}))["code"] == "not_found"


@pytest.mark.parametrize("start", ["2", "talker", "-1", "²", "x" * 100, "9" * 30])
async def test_a_stage_that_is_not_there_is_refused_with_those_that_are(home: ToyGateway, start: str):
    await home.all_of(VL)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()], path="E>L")

    problem = await expect_refusal(home, body, **{"from": start})

    assert (problem["code"], problem["param"]) == ("bad_request", "omnibus-from")
    assert "use one of 0 (vision), 1 (thinker)" in problem["message"]


async def test_an_unknown_header_is_refused(home: ToyGateway):
    await home.all_of(VL)
    body = await record_request(home, content="hello")

    assert "use omnibus-from" in (await expect_refusal(home, body, form="1"))["message"]


async def test_recording_stages_changes_no_answer(home: ToyGateway, tmp_path: Path):
    await start_speech(home)
    first_answer = read_chat_answer(await home.ask(OMNI, "hi", seed=1, **SPEECH))
    (tmp_path / "other").mkdir()
    async with start_toy_gateway(tmp_path / "other", record="full") as plain:
        await plain.all_of(OMNI)
        assert read_chat_answer(await plain.ask(OMNI, "hi", seed=1, **SPEECH)) == first_answer
    await home.emptied()


async def test_what_is_kept_is_told_by_output_and_not_asked_for_again(home: ToyGateway):
    await start_speech(home)
    body = await record_request(home, model=OMNI, content="hi", path="Th>Ta>V", **SPEECH)

    invocation = graph.decode_invocation(body)
    kept_outputs = (await home.ended(invocation.id)).kept

    assert {(one.node, one.output) for one in kept_outputs} == {use for node in invocation.nodes for use in node.uses}
    assert all(one.digest and one.chunks for one in kept_outputs)
    assert set(invocation.outputs).isdisjoint(
        {(one.node, one.output) for one in kept_outputs} - set(invocation.outputs)
    )


async def test_what_is_too_large_is_not_kept(home: ToyGateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(capture, "MAX_OUTPUT_BYTES", 10)
    await home.all_of(VL)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()], path="E>L")

    assert (await home.ended(graph.decode_invocation(body).id)).kept == ()
    await home.emptied()


# Another route


async def test_another_path_is_taken_when_it_is_asked_for(home: ToyGateway):
    await home.all_of(VL)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()], path="E>L")

    running, reply = await replay_invocation(home, body, path="EL")

    assert (running["path"], len(set(running["route"]))) == ("EL", 1)
    assert reply["identical"] is True


async def test_a_path_that_is_not_there_is_refused(home: ToyGateway):
    await home.all_of(VL)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()])

    assert "no path 'X>Y'" in (await expect_refusal(home, body, path="X>Y"))["message"]


async def test_a_stage_may_run_along_another_path(home: ToyGateway):
    await home.all_of(VL)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()], path="E>L")

    running, reply = await replay_invocation(home, body, path="EL", **{"from": "thinker"})

    assert "EL" in running["route"][1]
    assert reply["identical"] is True


async def start_executors(home: ToyGateway) -> list[str]:
    home.serve(VL)
    await home.executor(VL, "E", "vision")
    return [await home.executor(VL, "L", "thinker", id=f"L-{number}") for number in range(3)]


async def test_the_recorded_executors_are_taken_when_they_are_asked_for(home: ToyGateway):
    await start_executors(home)
    for _ in range(4):
        body = await record_request(home, content=[make_text_part("look"), make_image_part()])
        running, reply = await replay_invocation(home, body, route="recorded")

        assert running["route"] == list(graph.decode_invocation(body).route)
        assert reply["identical"] is True


async def test_one_node_may_be_pinned_and_others_left_free(home: ToyGateway):
    thinkers = await start_executors(home)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()])

    for name in thinkers:
        running, _ = await replay_invocation(home, body, route=f",{name}")
        assert running["route"][1] == name


async def test_a_stage_may_run_on_a_certain_executor(home: ToyGateway):
    thinkers = await start_executors(home)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()])

    running, reply = await replay_invocation(home, body, route=f",{thinkers[2]}", **{"from": "1"})

    assert (running["route"][1], reply["identical"]) == (thinkers[2], True)


@pytest.mark.parametrize(
    ("route", "code", "expected_text"),
    [
        ("a", "bad_request", "an executor for each of 2 nodes"),
        (",a b", "bad_request", "an executor for each of 2 nodes"),
        (",>", "bad_request", "an executor for each of 2 nodes"),
        (",nobody", "stage_unavailable", "executor nobody of the route is not available"),
        ("L-0,", "not_found", "executor L-0 has no"),
    ],
)
async def test_an_executor_that_cannot_take_it_is_refused(home: ToyGateway, route: str, code: str, expected_text: str):
    await start_executors(home)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()])

    problem = await expect_refusal(home, body, route=route)

    assert problem["code"] == code
    assert expected_text in problem["message"]


async def test_digests_of_a_run_leave_no_record_and_are_those_that_were_kept(home: ToyGateway):
    thinkers = await start_executors(home)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()])
    invocation = graph.decode_invocation(body)
    [kept_output] = (await home.ended(invocation.id)).kept
    before = len(await home.bus.read_records(subjects.RECORDS))

    [reply] = await replay_invocation(home, body, route=f"{invocation.route[0]},{thinkers[2]}", digests="all")

    assert (reply["status"], reply["route"][1]) == ("done", thinkers[2])
    assert reply["digests"]["0.embedding"] == kept_output.digest
    assert reply["digests"]["1.text"]
    assert len(await home.bus.read_records(subjects.RECORDS)) == before
    await home.emptied()


async def test_digests_are_those_of_whole_runs(home: ToyGateway):
    await start_executors(home)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()])

    assert "remove omnibus-from" in (await expect_refusal(home, body, digests="all", **{"from": "1"}))["message"]


async def test_whoever_stops_listening_to_a_replay_stops_it(home: ToyGateway):
    await home.all_of(VL)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()])
    parts = home.replayer.respond(Delivery("s", body))
    first = json.loads(await anext(parts))

    await parts.aclose()

    assert (await home.ended(first["id"])).status == "cancelled"
    await home.emptied()
