"""The playback scheduler: the stream closest to silence is next, and a cancelled one releases the vocoder."""

import asyncio
import random

import pytest

from omnibus_generator.vocoder import DeadlineLock, Playback

RATE = 24000


def test_a_listener_without_sound_is_patient_for_a_while():
    assert Playback(RATE, begin_time=10.0, patience=0.2).dry == pytest.approx(10.2)


def test_sound_lasts_from_when_it_came():
    one = Playback(RATE, begin_time=10.0, patience=0.2)

    one.record_sent(RATE, now=10.1)
    assert one.dry == pytest.approx(11.1)

    one.record_sent(RATE // 2, now=10.5)
    assert one.dry == pytest.approx(11.6)


def test_after_a_silence_playing_goes_on_with_what_comes():
    one = Playback(RATE, begin_time=10.0, patience=0.2)
    one.record_sent(RATE, now=10.0)

    one.record_sent(RATE, now=15.0)

    assert one.dry == pytest.approx(16.0)


def test_no_samples_change_nothing():
    one = Playback(RATE, begin_time=10.0, patience=0.2)

    one.record_sent(0, now=12.0)
    one.record_sent(RATE, now=12.0)
    one.record_sent(0, now=12.5)

    assert one.dry == pytest.approx(13.0)


async def run_ready_tasks() -> None:
    """Let every task run as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def queue_turns(floor: DeadlineLock, order: list[float], *dues: float) -> list[asyncio.Task[None]]:
    async def take_turn(due: float) -> None:
        async with floor.hold_turn(due):
            order.append(due)

    tasks = [asyncio.create_task(take_turn(due)) for due in dues]
    await run_ready_tasks()
    return tasks


async def test_of_those_who_wait_the_first_due_is_next():
    floor, order = DeadlineLock(), []
    async with floor.hold_turn(0.0):
        tasks = await queue_turns(floor, order, 5.0, 2.0, 9.0, 2.5)
        assert order == []

    await asyncio.gather(*tasks)

    assert order == [2.0, 2.5, 5.0, 9.0]


async def test_a_free_floor_is_taken_at_once():
    floor, order = DeadlineLock(), []

    await asyncio.gather(*await queue_turns(floor, order, 5.0))
    await asyncio.gather(*await queue_turns(floor, order, 1.0))

    assert order == [5.0, 1.0]


async def test_there_is_one_at_a_time():
    floor, inside, most = DeadlineLock(), 0, 0
    chance = random.Random(1)

    async def take_turn(due: float, pauses: int) -> None:
        nonlocal inside, most
        async with floor.hold_turn(due):
            inside += 1
            most = max(most, inside)
            for _ in range(pauses):
                await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(take_turn(chance.random(), chance.randrange(4)) for _ in range(50)))

    assert (inside, most) == (0, 1)


@pytest.mark.parametrize("when", ["while it waits", "as its turn comes"])
async def test_who_is_cancelled_does_not_keep_the_floor(when: str):
    floor, order = DeadlineLock(), []
    async with floor.hold_turn(0.0):
        first, second = await queue_turns(floor, order, 1.0, 2.0)
        if when == "while it waits":
            first.cancel()
            await run_ready_tasks()
    first.cancel()

    await asyncio.wait_for(second, 5)

    assert order == [2.0]
    assert first.cancelled()
    await asyncio.gather(*await queue_turns(floor, order, 3.0))
    assert order == [2.0, 3.0]


async def test_a_failure_inside_gives_the_floor_back():
    floor, order = DeadlineLock(), []

    with pytest.raises(RuntimeError):
        async with floor.hold_turn(0.0):
            raise RuntimeError
    await asyncio.gather(*await queue_turns(floor, order, 1.0))

    assert order == [1.0]


def measure_silence(deadlines: bool, streams: int, cost: float, chunk: float, seconds: float) -> float:
    """Return the seconds of silence that ``streams`` listeners hear. A chunk of audio costs ``cost``."""
    playing = [Playback(RATE, 0.0, 0.2) for _ in range(streams)]
    audio_seconds, silent, now = [0.0] * streams, 0.0, 0.0
    while any(each < seconds for each in audio_seconds):
        waiting = [one for one in range(streams) if audio_seconds[one] < seconds]
        # In order of arrival, a complete long answer is made in one go.
        one = min(waiting, key=lambda each: playing[each].dry) if deadlines else waiting[0]
        now += cost
        silent += max(0.0, now - playing[one].dry)
        playing[one].record_sent(int(chunk * RATE), now)
        audio_seconds[one] += chunk
    return silent


def test_listeners_hear_no_silence_while_there_is_time_for_all():
    assert measure_silence(True, streams=8, cost=0.02, chunk=0.4, seconds=10) == 0
    assert measure_silence(False, streams=8, cost=0.02, chunk=0.4, seconds=10) > 1
