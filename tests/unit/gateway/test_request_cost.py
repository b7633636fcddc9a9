"""Cost of one request in calls and messages. A more expensive hot path fails here on any machine.

Times depend on the machine and its other users; counts do not. Counted are calls of this project's functions, in the
gateway and the executors' loop together, and messages on the bus. For each function, the median of its calls per
request counts. Calls by the clock, such as heartbeats, occur in more requests on a slow machine, but not in most. If a
figure is too high, the test lists the most called functions. If it is much lower than its limit, lower the limit, so
that the gain is not lost. Direct answers must leave no reference cycles: each would wait for the garbage collector,
which once took a tenth of the gateway's time.
"""

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median_low
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

from omnibus.bus import coalescer
from omnibus.executor.runner import Job
from tests.unit.gateway import house as houses
from tests.unit.gateway.house import OMNI, TEXT, VL, ToyGateway, make_image_part, make_text_part, start_toy_gateway

ROOT = Path(__file__).parents[3]
OURS = (str(ROOT / "shared"), str(ROOT / "services"))
LEFT_OUT = (
    # Additions in place of the library's, which are not counted either.
    "/shared/omnibus/metrics/collectors.py:Tally",
    "/shared/omnibus/metrics/collectors.py:Distribution",
    "/shared/omnibus/metrics/collectors.py:TallyCounter",
    "/shared/omnibus/metrics/collectors.py:TallyHistogram",
    "/shared/omnibus/executor/status.py:Vitals",
    "/services/gateway/omnibus_gateway/dispatch/failures.py:FailureDetector",
)
REQUESTS = 20
#: Seconds in which fast pieces become one, more than real ones that a request takes, and how many come in them.
PIECE_SECONDS = 60.0
PIECES_TOGETHER = 48
#: Maximum number of measurements: a busy machine adds to the counts, never removes.
MEASUREMENTS = 4


class Cost(NamedTuple):
    """Limits on one request's calls and messages. They are about one per cent above the measured counts.

    On a busy machine fewer chunks share a message.
    """

    calls: int
    messages: float


class Calls:
    """Counts calls of functions of this project."""

    def __init__(self) -> None:
        self.count: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.count[frame.f_code] += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)

    def take(self) -> Counter[CodeType]:
        """Return the calls since the last time."""
        counts, self.count = self.count, Counter()
        return counts


def select_own_calls(calls: Counter[CodeType]) -> Counter[str]:
    """Return calls by function, without the stand-in server and timers."""
    own_counts: Counter[str] = Counter()
    for code, count in calls.items():
        name = f"{code.co_filename.removeprefix(str(ROOT))}:{code.co_qualname}"
        if code.co_filename.startswith(OURS) and not name.startswith(LEFT_OUT):
            own_counts[name] += count
    return own_counts


async def send_chat(home: ToyGateway, model: str, content: Any, **more: Any) -> None:
    answer = await home.ask(model, content, **more)
    assert answer.status_code == 200, answer.text


def send_text(home: ToyGateway) -> Awaitable[None]:
    return send_chat(home, TEXT, "one two three")


def stream_text(home: ToyGateway) -> Awaitable[None]:
    return send_chat(home, TEXT, " ".join(["word"] * 62), stream=True)


class TurnClock:
    """A clock that advances with each loop turn. The same number of pieces share a message on any machine."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += PIECE_SECONDS / PIECES_TOGETHER
        return self._now


async def write_tokens(job: Job) -> None:
    """Write tokens very fast, one in each turn."""
    for number in range(64):
        await job.send_text("text", {"text": f" {number}", "ids": [number]})
        await asyncio.sleep(0)
    job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 1, "completion_tokens": 64}})


def stream_fast(home: ToyGateway) -> Awaitable[None]:
    return send_chat(home, TEXT, "one two three", stream=True)


def send_image(home: ToyGateway) -> Awaitable[None]:
    return send_chat(home, VL, [make_text_part("what is"), make_image_part()], path="E>L")


def send_speech(home: ToyGateway) -> Awaitable[None]:
    return send_chat(
        home, OMNI, "one two three", modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"}
    )


async def serve_text_and_images(home: ToyGateway) -> None:
    home.serve(TEXT, VL)
    assert home.router.plan is not None
    for model, option in ((TEXT, "L"), (VL, "E"), (VL, "L")):
        await home.executor(model, option, *home.router.plan.models[model].options[option].components)


@pytest.mark.parametrize(
    ("case", "limit", "direct"),
    [
        (send_text, Cost(436, 5.5), True),
        (stream_text, Cost(1490, 5.5), True),
        (send_text, Cost(464, 5.5), False),
        (stream_text, Cost(1533, 5.5), False),
        (stream_fast, Cost(925, 8), True),
        (send_image, Cost(980, 8.4), False),
        (send_speech, Cost(2200, 18), True),
    ],
    ids=[
        "text",
        "64 streamed tokens",
        "text in a task",
        "64 streamed tokens in a task",
        "64 tokens that come fast",
        "a picture over two executors",
        "speech over three executors",
    ],
)
async def test_a_request_costs_no_more_than_it_did(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: Callable[[ToyGateway], Awaitable[None]],
    limit: Cost,
    direct: bool,
):
    """``direct`` includes the server's direct answers."""
    monkeypatch.setattr(houses, "SERVED_DIRECTLY", direct)
    async with start_toy_gateway(tmp_path) as home:
        if case is send_speech:
            await home.all_of(OMNI)
        elif case is stream_fast:
            monkeypatch.setattr(coalescer, "PIECE_FLUSH_SECONDS", PIECE_SECONDS)
            monkeypatch.setattr(coalescer, "monotonic", TurnClock())
            home.serve(TEXT)
            await home.executor(TEXT, "L", "thinker", thinker=write_tokens)
        else:
            await serve_text_and_images(home)
        for _ in range(3):
            await case(home)
        await home.emptied()
        for _ in range(MEASUREMENTS):
            calls, messages = await _count_calls(home, case)
            if calls.total() <= limit.calls and len(messages) / REQUESTS <= limit.messages:
                break
        with cyclic_garbage() as left:
            await case(home)
            await home.emptied()

    assert not (direct and left)
    most = "\n".join(f"{count:5} {name}" for name, count in calls.most_common(30))
    assert calls.total() <= limit.calls, most
    assert len(messages) / REQUESTS <= limit.messages, Counter(messages)


async def _count_calls(
    home: ToyGateway, case: Callable[[ToyGateway], Awaitable[None]]
) -> tuple[Counter[str], list[str]]:
    """Return the calls of one request by function. Also returns the subjects of all messages of ``REQUESTS`` ones."""
    calls, counts = Calls(), []
    with calls.counted(), record_published(home) as messages:
        for _ in range(REQUESTS):
            await case(home)
            counts.append(calls.take())
        await home.emptied()
    each = [select_own_calls(count) for count in counts]
    names = {name for count in each for name in count}
    return Counter({name: median_low([count[name] for count in each]) for name in names}), messages


@contextmanager
def record_published(home: ToyGateway) -> Iterator[list[str]]:
    """Yield the kinds of published messages, except those sent by the clock."""
    kinds: list[str] = []
    publish = home.bus.publish

    def record_kind(subject: str, *rest: Any, **more: Any) -> None:
        kind = subject.split(".")[1]
        if kind != "event":
            kinds.append(kind)
        publish(subject, *rest, **more)

    home.bus.publish = record_kind  # type: ignore[method-assign]
    yield kinds
    home.bus.publish = publish  # type: ignore[method-assign]


@contextmanager
def cyclic_garbage() -> Iterator[list[str]]:
    """Yield a list of this project's classes with objects in reference cycles."""
    left: list[str] = []
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        left += [str(kind) for kind in map(type, gc.garbage) if kind.__module__.startswith("omnibus")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
