"""Decode requests a cache when it has room: slots and blocks, first come, first served."""

import asyncio

from omnibus_llm.vllm.prefill_decode import SlotGate

BLOCKS, SLOTS = 10, 3


class SlotGuests:
    """Guests of a room by name, in order of entry."""

    def __init__(self) -> None:
        self.room = SlotGate()
        self.inside: list[str] = []
        self._doors: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def enter_room(self, name: str, need: int) -> None:
        self._doors[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._stay_inside(name, need))
        await self._run_tasks()

    async def _stay_inside(self, name: str, need: int) -> None:
        async with self.room(need, BLOCKS, SLOTS):
            self.inside.append(name)
            await self._doors[name].wait()

    async def leave_room(self, name: str) -> None:
        self._doors[name].set()
        await self._tasks[name]
        await self._run_tasks()

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)
        await self._run_tasks()

    async def _run_tasks(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_nobody_overtakes_who_waits_for_blocks() -> None:
    house = SlotGuests()
    for name, need in {"large": 6, "larger": 7, "small": 1}.items():
        await house.enter_room(name, need)
    before = list(house.inside)

    await house.leave_room("large")

    assert before == ["large"]
    assert house.inside == ["large", "larger", "small"]


async def test_there_are_no_more_guests_than_slots() -> None:
    house = SlotGuests()
    for name in "abcde":
        await house.enter_room(name, 1)
    before = list(house.inside)

    await house.leave_room("b")

    assert before == ["a", "b", "c"]
    assert house.inside == ["a", "b", "c", "d"]


async def test_who_gives_up_makes_room_for_the_next() -> None:
    house = SlotGuests()
    for name, need in {"a": 6, "b": 7, "c": 2, "d": 2}.items():
        await house.enter_room(name, need)

    await house.give_up("b")

    assert house.inside == ["a", "c", "d"]
    await house.give_up("a")
    await house.enter_room("e", 6)
    assert house.inside == ["a", "c", "d", "e"]


async def test_one_that_needs_more_than_there_is_comes_in_alone() -> None:
    house = SlotGuests()
    await house.enter_room("small", 1)
    await house.enter_room("huge", BLOCKS + 1)
    before = list(house.inside)

    await house.leave_room("small")

    assert before == ["small"]
    assert house.inside == ["small", "huge"]
