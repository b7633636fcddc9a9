"""A request in a worker: its graphs run here, its answer returns, and every part of it is released in time."""

import asyncio
from pathlib import Path

import pytest

from omnibus.app.protocol import WINDOW_BYTES
from omnibus.errors import BadRequest, NotFound
from omnibus.tensors.handle import Item
from tests.unit.gateway.apps.workers import SPELLS, Abacus, run_worker, wait_until_true, write_app


async def test_an_answer_is_made_from_the_results_of_tasks(tmp_path):
    async with run_worker(write_app(tmp_path, SPELLS)) as host:
        run = Abacus()

        answer = await host.invoke(run, b'{"text": "abc"}').read_answer()

    assert answer == b'{"letters":"abc","count":3}'
    assert run.status == "done"
    assert run.failure is None
    (segment,) = run.segments.values()
    assert [node.task for node in segment.nodes] == ["spell"]
    assert {(0, "letters"), (0, "count")} <= set(segment.outputs)


async def test_many_requests_run_side_by_side(tmp_path):
    async with run_worker(write_app(tmp_path, SPELLS)) as host:
        calls = [host.invoke(Abacus(), b'{"text": "%s"}' % (b"a" * count)) for count in range(1, 30)]

        answers = await asyncio.gather(*(call.read_answer() for call in calls))

    assert [answer.count(b"a") for answer in answers] == list(range(1, 30))


async def test_results_that_are_returned_unread_are_read_for_the_answer(tmp_path):
    text = """
    class Told(TaskOutput):
        letters: Stream[str]

    class Short(CompositeTask):
        def invoke(self, request):
            out = SPELL.invoke(request)
            return {"all": [out.letters, {"count": out.count}], "codes": out.codes}

    async def serve(request: Words):
        return await Short()(request)
    """
    async with run_worker(write_app(tmp_path, text)) as host:
        answer = await host.invoke(Abacus(), b'{"text": "ab"}').read_answer()

    assert answer == b'{"all":["ab",{"count":2}],"codes":[97,98]}'


async def test_a_graph_of_several_calls_is_one_segment_and_calls_one_after_the_other_are_several(tmp_path):
    text = """
    async def serve(request: Words):
        first = await (await SUM(request)).sum
        second = await (await SUM(Words(text=str(first)))).sum
        return [first, second]
    """
    async with run_worker(write_app(tmp_path, text)) as host:
        run = Abacus()

        answer = await host.invoke(run, b'{"text": "ab"}').read_answer()

    assert answer == b"[195,159]"
    assert {step: [node.task for node in segment.nodes] for step, segment in run.segments.items()} == {
        0: ["spell", "add"],
        1: ["spell", "add"],
    }
    assert run.segments[0].nodes[1].uses == ((0, "codes"),)


PLACES = """
    import numpy as np
    from omnibus.errors import OmnibusError
    from omnibus.task import Media

    class Look(CompositeTask):
        def invoke(self, request):
            return SPELL.invoke(Words(text=request["modality"]))

    async def serve(request: dict):
        try:
            placed = [await Media.of(bytes(request["file"]) or np.zeros((2, 2, 3), np.uint8)) for _ in range(request["n"])]
        except OmnibusError as error:
            return error.code
        return await (await Look()(placed[-1])).letters
    """


@pytest.mark.parametrize(
    ("request_body", "answer", "file_count"),
    [
        (b'{"n": 2, "file": []}', b'"image"', 2),
        (b'{"n": 33, "file": []}', b'"too_large"', 32),
        (b'{"n": 1, "file": [1, 2]}', b'"bad_media"', 0),
    ],
    ids=["an array", "too many", "no media"],
)
async def test_an_app_places_files_as_many_as_a_client_may_send(
    tmp_path: Path, request_body: bytes, answer: bytes, file_count: int
) -> None:
    async with run_worker(write_app(tmp_path, PLACES)) as host:
        run = Abacus()

        assert await host.invoke(run, request_body).read_answer() == answer

    assert len(run.placed) == file_count


async def test_choices_are_met_evenly_over_requests(tmp_path):
    text = """
    class Picks(CompositeTask):
        def invoke(self, request):
            return choose([SPELL, LOUD], [3, 1]).invoke(request).letters

    async def serve(request: Words):
        return await (await Picks()(request))
    """
    async with run_worker(write_app(tmp_path, text)) as host:
        answers = [await host.invoke(Abacus(), b'{"text": "a"}').read_answer() for _ in range(40)]

    assert abs(answers.count(b'"A"') - 10) <= 1


@pytest.mark.parametrize(
    ("body", "param", "fault"),
    [
        (b'{"text": 3}', "text", "text: Input should be a valid string"),
        (b"{}", "text", "text: Field required"),
        (b'{"text": "a", "more": 1}', "more", "more: Extra inputs are not permitted"),
        (b"{", "", "Invalid JSON"),
        (b"", "", "Invalid JSON"),
        (b'{"text": "\xff"}', "", "Invalid JSON"),
    ],
)
async def test_a_request_that_does_not_fit_is_refused_where_it_does_not(tmp_path, body, param, fault):
    async with run_worker(write_app(tmp_path, SPELLS)) as host:
        run = Abacus()

        with pytest.raises(BadRequest, match=fault) as rejection:
            await host.invoke(run, body).read_answer()

    assert rejection.value.param == param
    assert run.status == "failed"
    assert run.segments == {}


async def test_a_place_deep_in_a_request_is_named_as_clients_write_it(tmp_path):
    async with run_worker(
        write_app(tmp_path, "async def serve(request: dict[str, list[dict[str, int]]]): ...\n")
    ) as host:
        with pytest.raises(BadRequest) as rejection:
            await host.invoke(Abacus(), b'{"a": [{"b": 1}, {"b": "x"}]}').read_answer()

    assert rejection.value.param == "a[1].b"


# Parts


async def test_parts_arrive_one_by_one(tmp_path):
    text = """
    async def serve(request: Words) -> AsyncIterator[dict[str, str]]:
        async for letter in (await SPELL(request)).letters:
            yield {"letter": letter}
    """
    async with run_worker(write_app(tmp_path, text)) as host:
        run = Abacus()
        assert host.description.streams

        parts = [part async for part in host.invoke(run, b'{"text": "abc"}').read_parts()]

    assert parts == [b'{"letter":"a"}', b'{"letter":"b"}', b'{"letter":"c"}']
    assert run.status == "done"


async def test_a_stream_that_serve_returns_is_passed_on(tmp_path):
    text = """
    async def serve(request: Words) -> AsyncIterator[str]:
        return (await SPELL(request)).letters.transform(str.upper)
    """
    async with run_worker(write_app(tmp_path, text)) as host:
        parts = [part async for part in host.invoke(Abacus(), b'{"text": "ab"}').read_parts()]

    assert parts == [b'"A"', b'"B"']


async def test_a_part_arrives_before_the_next_one_is_there(tmp_path):
    async with run_worker(
        write_app(
            tmp_path,
            "async def serve(request: Words):\n    async for x in (await SPELL(request)).letters:\n        yield x\n",
        )
    ) as host:
        run, streams = Abacus(), {}
        run.fills = streams.__setitem__
        parts = host.invoke(run, b'{"text": "ab"}').read_parts()

        first = asyncio.ensure_future(anext(parts))
        await wait_until_true(lambda: "letters" in streams)
        streams["letters"].add_item(Item({"value": "x"}))
        streams["letters"].wake_reader()
        assert await first == b'"x"'
        streams["letters"].end()

        assert [part async for part in parts] == []


PIECES, PIECE = 20, 60_000
MANY = f"""
MADE = 0
async def serve(request) -> AsyncIterator[Any]:
    global MADE
    if request == "made":
        yield MADE
        return
    for _ in range({PIECES}):
        MADE += 1
        yield "x" * {PIECE}
"""


async def test_an_app_does_not_run_ahead_of_a_slow_client(tmp_path):
    ahead = WINDOW_BYTES // PIECE + 1
    async with run_worker(write_app(tmp_path, MANY)) as host:

        async def count_parts() -> int:
            (part_count,) = [part async for part in host.invoke(Abacus(), b'"made"').read_parts()]
            return int(part_count)

        slow = host.invoke(Abacus(), b"1").read_parts()
        await anext(slow)
        while await count_parts() < ahead:
            pass

        assert [await count_parts() for _ in range(5)] == [ahead] * 5
        assert len([part async for part in slow]) == PIECES - 1


async def test_a_part_over_the_window_still_arrives(tmp_path):
    async with run_worker(
        write_app(
            tmp_path, f"async def serve(request):\n    for _ in range(3):\n        yield 'x' * {2 * WINDOW_BYTES}\n"
        )
    ) as host:
        parts = [len(part) async for part in host.invoke(Abacus(), b"1").read_parts()]

    assert parts == [2 * WINDOW_BYTES + 2] * 3


async def test_a_failure_in_the_middle_comes_after_what_was_there(tmp_path):
    async with run_worker(
        write_app(tmp_path, "async def serve(request):\n    yield 1\n    yield 2\n    raise NotFound('no third')\n")
    ) as host:
        run, parts = Abacus(), []

        with pytest.raises(NotFound, match="no third"):
            async for part in host.invoke(run, b"1").read_parts():
                parts.append(part)

    assert parts == [b"1", b"2"]
    assert run.status == "failed"


async def test_a_client_that_stops_reading_ends_the_app(tmp_path):
    text = """
    STATE = "idle"
    async def serve(request):
        global STATE
        if request == "state":
            yield STATE
            return
        try:
            STATE = "runs"
            while True:
                yield 1
                await asyncio.sleep(0)
        finally:
            STATE = "ended"
    """
    async with run_worker(write_app(tmp_path, text)) as host:
        run = Abacus()
        parts = host.invoke(run, b"1").read_parts()
        await anext(parts)

        await parts.aclose()

        assert run.status == "cancelled"
        assert [part async for part in host.invoke(Abacus(), b'"state"').read_parts()] == [b'"ended"']
