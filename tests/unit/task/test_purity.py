"""Visible side effects in ``invoke`` are rejected before it runs; harmless code is accepted."""

import asyncio
import datetime
import functools
import json
import math
import os
import random
import secrets
import socket
import sys
import time
import urllib.parse
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import date
from datetime import datetime as moment
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from omnibus import task as tasks
from omnibus.errors import SideEffect
from omnibus.task import CompositeTask, tool, use
from omnibus.task.runtime import check_purity
from tests.unit.task.memory import Memory
from tests.unit.task.tasks import ALL, ONE, Number, NumberInput

SEEN: dict[str, int] = {}
COUNTED: Counter[str] = Counter()
LISTED: list[int] = [1]
DICE, NUMPY_DICE = random.Random(7), np.random.default_rng(7)
total = 0


def changes_a_global(_: Any) -> None:
    global total
    total += 1


def call_deeper(_: Any) -> float:
    return read_clock()


def read_clock() -> float:
    return time.perf_counter()


def make_closures() -> dict[str, Callable[[Any], Any]]:
    turns, clock = 0, time.monotonic

    def count_turn(_: Any) -> None:
        nonlocal turns
        turns += 1

    return {"an outer variable": count_turn, "a clock of outside": lambda _: clock()}


def imports_late(_: Any) -> Any:
    from datetime import datetime as now

    return now.now()


def imports_numpy(_: Any) -> Any:
    import numpy

    return numpy.random.rand()


def write_alias(_: Any) -> Any:
    alias = SEEN
    alias["a"] = 1


def inner_function(_: Any) -> Any:
    def make_uuid() -> Any:
        return uuid.uuid4()

    return make_uuid()


async def beside_a_tool(_: Any) -> Any:
    return await tool(time.time), random.random()


def sets_module(_: Any) -> None:
    sys.flags_of_mine = 1  # type: ignore[attr-defined]


def counts_up(x: Any) -> None:
    COUNTED[str(x)] += 1


def delete_global(_: Any) -> None:
    del SEEN["a"]


def writes_the_environment(_: Any) -> None:
    os.environ["A"] = "b"


IMPURE: dict[str, Callable[[Any], Any]] = {
    "time": lambda _: time.time(),
    "sleep": lambda _: time.sleep(1),
    "asyncio.sleep": lambda _: asyncio.sleep(1),
    "asyncio.timeout": lambda _: asyncio.timeout(1),
    "random": lambda _: random.random(),
    "secrets": lambda _: secrets.token_hex(2),
    "uuid": lambda _: uuid.uuid4(),
    "now": lambda _: moment.now(),
    "datetime.datetime.now": lambda _: datetime.datetime.now(),
    "today": lambda _: date.today(),
    "numpy.random": lambda _: np.random.rand(),
    "a generator of numbers": lambda _: DICE.random(),
    "a generator of arrays": lambda _: NUMPY_DICE.normal(),
    "open": lambda _: open("x"),  # noqa: SIM115
    "a file": lambda _: Path("x").read_text(),
    "os.path.exists": lambda _: os.path.exists("x"),
    "os.listdir": lambda _: os.listdir("/"),
    "os.getenv": lambda _: os.getenv("A"),
    "os.environ": lambda _: os.environ["A"],
    "a write to the environment": writes_the_environment,
    "a socket": lambda _: socket.create_connection(("a", 1)),
    "a download": lambda _: urllib.request.urlopen("http://a"),
    "input": lambda _: input(),
    "id": lambda _: id(LISTED),
    "a global": changes_a_global,
    "a global's element": lambda _: SEEN.__setitem__("a", 1) if SEEN.setdefault("a", 1) else None,
    "a global's element by an alias": write_alias,
    "a global's count": counts_up,
    "a global's element that goes": delete_global,
    "a global list": lambda x: LISTED.append(x),  # noqa: PLW0108
    "a module": sets_module,
    **make_closures(),
    "an import inside": imports_late,
    "numpy imported inside": imports_numpy,
    "a helper's helper": call_deeper,
    "a function inside": inner_function,
    "a comprehension": lambda x: [random.random() for _ in x],
    "a sort key": lambda x: sorted(x, key=lambda _: random.random()),
    "beside a tool": beside_a_tool,
}


@pytest.mark.parametrize("invoke", IMPURE.values(), ids=IMPURE.keys())
def test_a_side_effect_is_refused_with_advice(invoke: Callable[[Any], Any]):
    with pytest.raises(
        SideEffect, match="(uses|changes) .*: `invoke` runs twice and must depend only on its request. Do"
    ):
        check_purity(invoke)


def test_what_is_wrong_is_named():
    with pytest.raises(SideEffect, match="uses moment.now: "):
        check_purity(IMPURE["now"])
    with pytest.raises(SideEffect, match="changes LISTED: "):
        check_purity(IMPURE["a global list"])
    with pytest.raises(SideEffect, match="changes the global 'total': "):
        check_purity(changes_a_global)


def build_containers(x: Any) -> Any:
    entries: dict[str, Any] = {}
    entries["a"] = SEEN.get("a", LISTED[0])
    entries.update(b=[*LISTED, 2])
    seen_copy = dict(SEEN)
    seen_copy.pop("a", None)
    seen_copy["c"] = 3
    list_copy = LISTED.copy()
    list_copy.append(x)
    return entries, seen_copy, list_copy


async def wait_for_tools(_: Any) -> Any:
    first, second = await asyncio.gather(tool(time.time), tool(random.random))
    return first, second, await tasks.tool(uuid.uuid4)


def imports_pure(x: Any) -> Any:
    import re

    return re.sub("a", "b", x)


PURE: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: [math.sqrt(each) for each in x if each > 0],
    "json": lambda x: json.loads(json.dumps(x)),
    "dates": lambda x: moment.fromisoformat(x) + datetime.timedelta(days=1),
    "paths": lambda x: (os.path.join("a", x), PurePosixPath(x).name),
    "quoting": lambda x: urllib.parse.quote(x) + "?",
    "a known uuid": lambda x: (uuid.UUID(x), uuid.uuid5(uuid.NAMESPACE_DNS, x)),
    "numpy": lambda x: np.mean(np.asarray(x)),
    "containers of its own": build_containers,
    "tools": wait_for_tools,
    "an import": imports_pure,
    "printing": lambda x: (print(x), x),
    "functools": lambda x: functools.reduce(lambda a, b: a + b, x),
}


@pytest.mark.parametrize("invoke", PURE.values(), ids=PURE.keys())
def test_harmless_code_is_accepted(invoke: Callable[[Any], Any]):
    check_purity(invoke)


class Timed(CompositeTask):
    number: Number = ONE

    @property
    def hour(self) -> int:
        return moment.now().hour

    def now(self) -> float:
        return self.clock()

    def clock(self) -> float:
        return time.time()

    def invoke(self, _: Any) -> Any:
        return self.number.invoke(NumberInput(x=int(self.now()))).n


class Hourly(Timed):
    def invoke(self, _: Any) -> Any:
        return self.number.invoke(NumberInput(x=self.hour)).n


class Around(CompositeTask):
    inner: Timed = Timed()

    def invoke(self, request: Any) -> Any:
        return self.inner.invoke(request)


class Fixed(Timed):
    def now(self) -> float:
        return 7.0


@pytest.mark.parametrize("task", [Timed(), Hourly(), Around()], ids=["a method", "a property", "a nested composite"])
def test_what_invoke_calls_through_self_is_looked_at_too(task: CompositeTask):
    with pytest.raises(SideEffect, match="uses"):
        check_purity(task.invoke)


def test_a_method_that_is_replaced_counts_no_more():
    check_purity(Fixed().invoke)


async def test_an_impure_task_is_refused_before_anything_runs():
    runtime = Memory(*ALL)

    with (
        use(runtime),
        pytest.raises(SideEffect, match="Timed.invoke uses .*wrap it in `omnibus.task.tool` in an async"),
    ):
        await Timed()(None)
    assert runtime.segments == {}
