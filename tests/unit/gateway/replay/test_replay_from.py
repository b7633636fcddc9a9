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
from omnibus_gateway.dispatch import capture
from tests.unit.gateway.house import OMNI, TOYS, VL, House, answered, house, image, text

PATIENCE = 20.0  # seconds
SPEECH = {"modalities": ["text", "audio"], "audio": {"voice": "Ethan", "format": "wav"}}


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path, record="stages") as made:
        made.ran = Counter()
        yield made


async def counted(home: House, model: str, **options: tuple[str, ...]) -> None:
    """Start executors of ``options`` whose toys count their runs."""

    def counting(component: str) -> Any:
        async def run(job: Job) -> None:
            home.ran[component] += 1
            await TOYS[component](job)

        return run

    for option, components in options.items():
        await home.executor(model, option, *components, **{each: counting(each) for each in components})


async def speaking(home: House) -> None:
    home.serve(OMNI)
    await counted(home, OMNI, EA=("vision", "audio"), Th=("thinker",), Ta=("talker",), V=("vocoder",))


async def begun(home: House, **asked: Any) -> bytes:
    response = await home.ask(**asked)
    answered(response)
    id = response.headers["x-request-id"]
    await home.ended(id)
    home.ran.clear()
    return (await home.bus.read_records(f"{subjects.ROOT}.inv.*.{id}"))[0].data


async def replay(home: House, body: bytes, **headers: str) -> list[dict[str, Any]]:
    given = {f"Omnibus-{name.capitalize()}": value for name, value in headers.items()}
    return [json.loads(part) async for part in home.bus.request_stream(subjects.REPLAY, body, PATIENCE, given)]


async def refused(home: House, body: bytes, **headers: str) -> dict[str, Any]:
    [only] = await replay(home, body, **headers)
    assert only["status"] == "failed"
    await home.emptied()
    return dict(only["problem"])


# From a stage


async def test_what_comes_before_a_stage_is_played_and_not_run_again(home: House):
    home.serve(VL)
    await counted(home, VL, E=("vision",), L=("thinker",))
    body = await begun(home, content=[text("look"), image()], path="E>L")

    running, done = await replay(home, body, **{"from": "thinker"})

    assert running["from"] == 1
    assert running["route"][0].startswith("record-of-")
    assert (done["status"], done["identical"]) == ("done", True)
    assert home.ran == {"thinker": 1}
    await home.emptied()


@pytest.mark.parametrize(
    ("start", "ran"), [("0", {"thinker", "talker", "vocoder"}), ("1", {"talker", "vocoder"}), ("vocoder", {"vocoder"})]
)
async def test_streams_between_stages_are_played_too(home: House, start: str, ran: set[str]):
    await speaking(home)
    body = await begun(home, model=OMNI, content="hi", path="Th>Ta>V", **SPEECH)

    _, done = await replay(home, body, **{"from": start})

    assert (done["status"], done["identical"]) == ("done", True)
    assert set(home.ran) == ran
    assert done["answer"]["audio_seconds"] == 4 * 240 / 24000
    await home.emptied()


async def test_only_what_runs_is_compared(home: House):
    await speaking(home)
    body = await begun(home, model=OMNI, content="hi", **SPEECH)

    _, done = await replay(home, body, **{"from": "talker"})

    assert (done["answer"].get("text", ""), done["identical"]) == ("", True)


async def test_a_replay_from_a_stage_is_recorded_with_its_route_and_can_be_shown(home: House):
    home.serve(VL)
    await counted(home, VL, E=("vision",), L=("thinker",))
    body = await begun(home, content=[text("look"), image()], path="E>L")
    running, _ = await replay(home, body, **{"from": "1"})

    await home.ended(running["id"])
    whole = (await home.http.get(f"/v1/invocations/{running['id']}")).json()

    assert [row["state"] for row in whole["nodes"]] == ["done", "done"]
    assert whole["nodes"][0]["executor"] == running["route"][0]
    assert whole["summary"]["replay_of"] == graph.decode_invocation(body).id


async def test_when_its_executor_dies_it_is_played_to_the_next_one(home: House):
    died: list[str] = []

    async def once(job: Job) -> None:
        await job.value("items")
        if not died and len(home.ran):
            died.append("x")
            home.bus.publish(subjects.event_subject(subjects.GONE), b"L-0")
            await job.value("never")
            raise AssertionError
        await TOYS["thinker"](job)

    home.serve(VL)
    await counted(home, VL, E=("vision",))
    for number in range(2):
        await home.executor(VL, "L", "thinker", id=f"L-{number}", thinker=once)
    body = await begun(home, content=[text("look"), image()], path="E>L")
    home.ran["replay"] = 1

    _, done = await replay(home, body, **{"from": "thinker"})

    assert (done["identical"], home.ran["vision"]) == (True, 0)


async def test_without_what_was_passed_on_it_says_which_setting_keeps_it(tmp_path: Path):
    async with house(tmp_path, record="full") as home:
        home.ran = Counter()
        await home.all_of(VL)
        body = await begun(home, content=[text("look"), image()], path="E>L")

        problem = await refused(home, body, **{"from": "thinker"})

    assert problem["code"] == "bad_request"
    assert "output 'embedding' of node 0 (vision), which was not kept" in problem["message"]
    assert "OMNIBUS_GATEWAY_RECORD=stages" in problem["message"]


async def test_a_graph_of_one_node_needs_nothing_that_was_kept(tmp_path: Path):
    async with house(tmp_path, record="full") as home:
        home.ran = Counter()
        await home.all_of(VL)
        body = await begun(home, content="hello")

        assert (await replay(home, body, **{"from": "thinker"}))[-1]["identical"] is True


async def test_media_that_left_the_keep_are_not_found(home: House, tmp_path: Path):
    await home.all_of(VL)
    body = await begun(home, content=[text("look"), image()], path="E>L")
    [one] = (await home.ended(graph.decode_invocation(body).id)).kept
    assert await home.keep.get(one.sha256)
    (tmp_path / "kept" / one.sha256[:2] / one.sha256).unlink()

    assert (await refused(home, body, **{"from": "thinker"}))["code"] == "not_found"


@pytest.mark.parametrize("start", ["2", "talker", "-1", "²", "x" * 100, "9" * 30])
async def test_a_stage_that_is_not_there_is_refused_with_those_that_are(home: House, start: str):
    await home.all_of(VL)
    body = await begun(home, content=[text("look"), image()], path="E>L")

    problem = await refused(home, body, **{"from": start})

    assert (problem["code"], problem["param"]) == ("bad_request", "omnibus-from")
    assert "use one of 0 (vision), 1 (thinker)" in problem["message"]


async def test_an_unknown_header_is_refused(home: House):
    await home.all_of(VL)
    body = await begun(home, content="hello")

    assert "use omnibus-from" in (await refused(home, body, form="1"))["message"]


async def test_recording_stages_changes_no_answer(home: House, tmp_path: Path):
    await speaking(home)
    kept = answered(await home.ask(OMNI, "hi", seed=1, **SPEECH))
    (tmp_path / "other").mkdir()
    async with house(tmp_path / "other", record="full") as plain:
        await plain.all_of(OMNI)
        assert answered(await plain.ask(OMNI, "hi", seed=1, **SPEECH)) == kept
    await home.emptied()


async def test_what_is_kept_is_told_by_output_and_not_asked_for_again(home: House):
    await speaking(home)
    body = await begun(home, model=OMNI, content="hi", path="Th>Ta>V", **SPEECH)

    recorded = graph.decode_invocation(body)
    kept = (await home.ended(recorded.id)).kept

    assert {(one.node, one.output) for one in kept} == {use for node in recorded.nodes for use in node.uses}
    assert all(one.digest and one.chunks for one in kept)
    assert set(recorded.outputs).isdisjoint({(one.node, one.output) for one in kept} - set(recorded.outputs))


async def test_what_is_too_large_is_not_kept(home: House, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(capture, "MAX_OUTPUT_BYTES", 10)
    await home.all_of(VL)
    body = await begun(home, content=[text("look"), image()], path="E>L")

    assert (await home.ended(graph.decode_invocation(body).id)).kept == ()
    await home.emptied()


# Another route


async def test_another_path_is_taken_when_it_is_asked_for(home: House):
    await home.all_of(VL)
    body = await begun(home, content=[text("look"), image()], path="E>L")

    running, done = await replay(home, body, path="EL")

    assert (running["path"], len(set(running["route"]))) == ("EL", 1)
    assert done["identical"] is True


async def test_a_path_that_is_not_there_is_refused(home: House):
    await home.all_of(VL)
    body = await begun(home, content=[text("look"), image()])

    assert "no path 'X>Y'" in (await refused(home, body, path="X>Y"))["message"]


async def test_a_stage_may_run_along_another_path(home: House):
    await home.all_of(VL)
    body = await begun(home, content=[text("look"), image()], path="E>L")

    running, done = await replay(home, body, path="EL", **{"from": "thinker"})

    assert "EL" in running["route"][1]
    assert done["identical"] is True


async def several(home: House) -> list[str]:
    home.serve(VL)
    await home.executor(VL, "E", "vision")
    return [await home.executor(VL, "L", "thinker", id=f"L-{number}") for number in range(3)]


async def test_the_recorded_executors_are_taken_when_they_are_asked_for(home: House):
    await several(home)
    for _ in range(4):
        body = await begun(home, content=[text("look"), image()])
        running, done = await replay(home, body, route="recorded")

        assert running["route"] == list(graph.decode_invocation(body).route)
        assert done["identical"] is True


async def test_one_node_may_be_pinned_and_others_left_free(home: House):
    thinkers = await several(home)
    body = await begun(home, content=[text("look"), image()])

    for name in thinkers:
        running, _ = await replay(home, body, route=f",{name}")
        assert running["route"][1] == name


async def test_a_stage_may_run_on_a_certain_executor(home: House):
    thinkers = await several(home)
    body = await begun(home, content=[text("look"), image()])

    running, done = await replay(home, body, route=f",{thinkers[2]}", **{"from": "1"})

    assert (running["route"][1], done["identical"]) == (thinkers[2], True)


@pytest.mark.parametrize(
    ("route", "code", "said"),
    [
        ("a", "bad_request", "an executor for each of 2 nodes"),
        (",a b", "bad_request", "an executor for each of 2 nodes"),
        (",>", "bad_request", "an executor for each of 2 nodes"),
        (",nobody", "stage_unavailable", "executor nobody of the route is not available"),
        ("L-0,", "not_found", "executor L-0 has no"),
    ],
)
async def test_an_executor_that_cannot_take_it_is_refused(home: House, route: str, code: str, said: str):
    await several(home)
    body = await begun(home, content=[text("look"), image()])

    problem = await refused(home, body, route=route)

    assert problem["code"] == code
    assert said in problem["message"]


async def test_digests_of_a_run_leave_no_record_and_are_those_that_were_kept(home: House):
    thinkers = await several(home)
    body = await begun(home, content=[text("look"), image()])
    recorded = graph.decode_invocation(body)
    [kept] = (await home.ended(recorded.id)).kept
    before = len(await home.bus.read_records(subjects.RECORDS))

    [done] = await replay(home, body, route=f"{recorded.route[0]},{thinkers[2]}", digests="all")

    assert (done["status"], done["route"][1]) == ("done", thinkers[2])
    assert done["digests"]["0.embedding"] == kept.digest
    assert done["digests"]["1.text"]
    assert len(await home.bus.read_records(subjects.RECORDS)) == before
    await home.emptied()


async def test_digests_are_those_of_whole_runs(home: House):
    await several(home)
    body = await begun(home, content=[text("look"), image()])

    assert "remove omnibus-from" in (await refused(home, body, digests="all", **{"from": "1"}))["message"]


async def test_whoever_stops_listening_to_a_replay_stops_it(home: House):
    await home.all_of(VL)
    body = await begun(home, content=[text("look"), image()])
    parts = home.replayer.respond(Delivery("s", body))
    first = json.loads(await anext(parts))

    await parts.aclose()

    assert (await home.ended(first["id"])).status == "cancelled"
    await home.emptied()
