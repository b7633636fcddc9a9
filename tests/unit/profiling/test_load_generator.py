"""The closed loop: its concurrency, its shares, and the requests that count."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from omnibus.errors import BadRequest, Overloaded
from omnibus.profiling.client import TimedAnswer
from omnibus.profiling.load_generator import (
    ClosedLoop,
    LoadRequest,
    LoadResult,
    LoadStep,
    mean_quantities,
    request_rate,
)
from omnibus.profiling.workload import WorkloadRequest
from tests.unit.profiling.server import make_event, send_whole, serve_script
from tests.unit.profiling.test_client import make_refusal


def make_request(
    share: float = 1.0, kind: str = "t", body: bytes = b"a", media: tuple[str, ...] = ()
) -> WorkloadRequest:
    return WorkloadRequest(
        share, kind, (*kind.split("+"),), media, body, b"short " + body, 1.0, f"requests[{body.decode()}]"
    )


async def run_load(script, orders, at_once: int, step: LoadStep) -> tuple[LoadResult, int]:
    looks = 0

    async def count_look() -> None:
        nonlocal looks
        looks += 1

    async with asyncio.timeout(20), serve_script(script) as port:
        return await ClosedLoop(port, orders, at_once).run(step, count_look), looks


async def test_so_many_are_under_way_at_all_times_and_the_rate_is_theirs():
    now = SimpleNamespace(here=0, most=0)

    async def track_requests(head, body, send):
        now.here += 1
        now.most = max(now.most, now.here)
        await asyncio.sleep(0.01)
        now.here -= 1
        await send_whole(send, make_event(content="a"))

    load_result, looks = await run_load(track_requests, [LoadRequest(make_request())], 3, LoadStep(0.2, 12))

    assert now.most == 3
    assert looks == 2
    assert len(load_result.answers) >= 12
    assert load_result.rate < 3 / 0.01
    point = load_result.to_point()
    assert (point.at_once, point.rate) == (3, load_result.rate)
    assert 0.01 <= point.median <= point.done


async def test_requests_come_by_their_shares_and_as_they_are_wanted():
    body_counts: Counter[bytes] = Counter()

    async def count_body(head, body, send):
        body_counts[body] += 1
        await send_whole(send, make_event(content="a"))

    orders = [LoadRequest(make_request(0.75, body=b"a")), LoadRequest(make_request(0.25, body=b"b"), "", True)]
    await run_load(count_body, orders, 2, LoadStep(0.05, 100))

    assert set(body_counts) == {b"a", b"short b"}
    assert body_counts[b"a"] / body_counts.total() == pytest.approx(0.75, abs=0.05)


async def test_a_step_lasts_until_enough_have_ended():
    bodies: list[bytes] = []

    async def record_body(head, body, send):
        bodies.append(body)
        await send_whole(send, make_event(content="a"))

    load_result, _ = await run_load(record_body, [LoadRequest(make_request())], 1, LoadStep(0.05, 50))

    assert len(load_result.answers) >= 50
    assert len(load_result.answers) + len(load_result.others) in (
        len(bodies),
        len(bodies) - 1,
    )  # the last one may still run


def test_the_rate_of_a_mix_is_that_of_the_requests_that_do_not_skip_the_option():
    paced_request, other = LoadRequest(make_request(0.25)), LoadRequest(make_request(0.75), paces=False)
    end_times = sorted(
        [(n / 7, paced_request) for n in range(20)] + [(n / 60, other) for n in range(150)], key=lambda each: each[0]
    )

    assert ClosedLoop(0, [paced_request, other], 16)._mix_rate(end_times) == pytest.approx(7 / 0.25)
    assert ClosedLoop(0, [paced_request, other], 16)._mix_rate(end_times[:3]) == pytest.approx(
        request_rate([at for at, _ in end_times[:3]])
    )


@pytest.mark.parametrize("cut", range(4))
def test_the_pace_of_batches_is_theirs_wherever_a_step_begins(cut: int):
    ends = [1.5 * (n // 4) + 0.01 * (n % 4) for n in range(cut, cut + 30)]

    assert request_rate(ends) == pytest.approx(4 / 1.5, rel=0.05)


def test_the_pace_of_a_steady_stream_is_exact():
    assert request_rate([7 + n / 8 for n in range(9)]) == pytest.approx(8)
    assert request_rate([7.0, 7.5]) == pytest.approx(2)


async def test_a_request_that_is_refused_is_named():
    async def send_refusal(head, body, send):
        await send(make_refusal(400, "bad_request"))

    with pytest.raises(BadRequest, match=r"requests\[a\] of the workload is rejected: no"):
        await run_load(send_refusal, [LoadRequest(make_request())], 2, LoadStep(0.1, 1))


async def test_a_gateway_that_is_full_is_told_from_other_errors():
    async def send_refusal(head, body, send):
        await send(make_refusal(429, "overloaded"))

    with pytest.raises(Overloaded):
        await run_load(send_refusal, [LoadRequest(make_request())], 2, LoadStep(0.1, 1))


def make_answer(prompt: int, text: int, image: int = 0, audio: int = 0, speech: float = 0.0) -> TimedAnswer:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": text + 50,
        "prompt_tokens_details": {"image_tokens": image, "audio_tokens": audio},
        "completion_tokens_details": {"text_tokens": text, "audio_tokens": 50},
    }
    return TimedAnswer(done=1.0, usage=usage, speech=speech)


def test_quantities_are_means_by_type():
    film, picture = make_request(kind="film", media=("video",)), make_request(kind="picture", media=("image",))
    quantities = mean_quantities(
        [
            (LoadRequest(film), make_answer(100, 10, image=80)),
            (LoadRequest(film), make_answer(200, 20, image=160, audio=8, speech=3.0)),
            (LoadRequest(picture), make_answer(70, 6, image=60)),
        ]
    )

    assert quantities == {
        "film": {
            "prompt_tokens": 150, "completion_tokens": 15, "video_tokens": 120, "audio_tokens": 4, "speech_seconds": 1.5,
        },
        "picture": {"prompt_tokens": 70, "completion_tokens": 6, "image_tokens": 60},
    }  # fmt: skip


def test_percentiles_are_of_what_there_is():
    answers = [
        (LoadRequest(make_request()), TimedAnswer(done=n / 100, first_token=0.1, gaps=[0.01] * 99 + [0.5]))
        for n in range(1, 201)
    ]
    point = LoadResult(4, 100.0, answers).to_point()

    assert (point.rate, point.done, point.median) == (100.0, 1.98, 1.0)
    assert (point.first_token, point.token, point.first_audio, point.real_time) == (0.1, 0.01, 0.0, 0.0)
