import asyncio
from math import inf

from omnibus_sidecar.request_handler import TimerQueue


class Item:
    def __init__(self, name: str) -> None:
        self.name = name
        self.due = inf


class Bell:
    """An agenda that records the items that rang."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.agenda: TimerQueue[Item] = TimerQueue(self.loop, self._ring_item)
        self.rung: list[str] = []
        self.last = asyncio.Event()

    def set(self, item: Item, seconds: float) -> Item:
        self.agenda.set_due(item, self.loop.time() + seconds)
        return item

    async def wait(self) -> list[str]:
        await asyncio.wait_for(self.last.wait(), 20)
        return self.rung

    def _ring_item(self, item: Item) -> None:
        assert item.due == inf
        self.rung.append(item.name)
        if item.name == "last":
            self.last.set()


async def test_items_ring_in_the_order_of_their_times():
    bell = Bell()
    for name, seconds in [("last", 0.03), ("b", 0.02), ("a", 0.01), ("past", -5)]:
        bell.set(Item(name), seconds)

    assert await bell.wait() == ["past", "a", "b", "last"]


async def test_a_cancelled_item_does_not_ring():
    bell = Bell()
    item = bell.set(Item("cancelled"), 0.01)
    bell.set(Item("last"), 0.03)

    item.due = inf

    assert await bell.wait() == ["last"]


async def test_only_the_newest_time_of_an_item_counts():
    bell = Bell()
    later, sooner = bell.set(Item("last"), 0.01), bell.set(Item("sooner"), 60)

    bell.set(later, 0.04)
    bell.set(sooner, 0.02)

    assert await bell.wait() == ["sooner", "last"]


async def test_ringing_may_set_new_times():
    bell = Bell()
    again = Item("again")

    def ring_again(item: Item) -> None:
        bell.rung.append(item.name)
        if len(bell.rung) < 3:
            bell.set(again, 0.0)
        else:
            bell.last.set()

    bell.agenda = TimerQueue(bell.loop, ring_again)
    bell.set(again, 0.0)

    assert await bell.wait() == ["again"] * 3


async def test_tombstones_do_not_pile_up():
    bell = Bell()
    living = [bell.set(Item("living"), 60) for _ in range(100)]

    for _ in range(20_000):
        bell.set(Item("dead"), 60).due = inf

    assert len(bell.agenda) < 1000
    assert {item.due < inf for item in living} == {True}
    bell.agenda.close()


async def test_nothing_rings_after_closing():
    bell = Bell()
    bell.set(Item("silent"), 0.0)

    bell.agenda.close()
    await asyncio.sleep(0.02)

    assert bell.rung == []
