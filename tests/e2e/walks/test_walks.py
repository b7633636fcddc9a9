"""How many modules a request walks through: what a reader of the code has to follow.

The counts are a ratchet. Lower them when the code becomes simpler. A module counts if the thread of the event loop calls
a function of it that an idle system does not call.
"""

import asyncio
import base64
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets

from omnibus.process.spec import PACKAGE_PATH
from omnibus.up import runs
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import OMNI, ROOT, System, declare_model, start_system
from tests.unit.models import files

#: A busy machine calls more, so these are not run beside other tests.
pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

PROBE = Path(__file__).parent / "probe"
#: Largest counts of each request: modules of all processes, and those of the gateway, with room for two of a busy machine.
MOST = {"image": (89, 58), "text": (73, 48), "voice": (111, 78)}
_TRIALS = 4
_IDLE_SECONDS = 3.0
_SETTLED_SECONDS = 1.5  # after which nothing of a request is left: it would count as idle later
_WITHIN = 60.0


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, omni_checkpoint: Path) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("walks")
    (directory / "calls").mkdir()
    environment = {
        "PYTHONPATH": f"{PROBE}:{ROOT}:{PACKAGE_PATH}",
        "OMNIBUS_TEST_WALKS": str(directory / "calls"),
    }
    usual = declare_model("qwen2_5_omni", omni_checkpoint)
    [apart, _] = usual["paths"]
    options = {name: usual["options"][name] for name in apart["options"]}
    model = {**usual, "options": options, "paths": [apart]}  # each request has the same path
    with start_system(directory, {OMNI: model}, **environment) as new_system:
        yield new_system


async def ask(system: System, question: list[Any]) -> None:
    body = {"model": OMNI, "messages": question, "max_tokens": 3}
    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


async def speak(system: System) -> None:
    """Say something to a realtime session, and hear its answer."""
    url = f"{system.url.replace('http', 'ws', 1)}/v1/realtime?model={OMNI}"
    sound = base64.b64encode(files.make_tone(0.5, 0)[44:]).decode()
    detection = {"audio": {"input": {"turn_detection": None}}}
    events = [
        {"type": "session.update", "session": {"type": "realtime", "max_output_tokens": 3, **detection}},
        {"type": "input_audio_buffer.append", "audio": sound},
        {"type": "input_audio_buffer.commit"},
        {"type": "response.create"},
    ]
    async with websockets.connect(url, max_size=None) as socket:
        for event in events:
            await socket.send(json.dumps(event))
        while (event := json.loads(await socket.recv()))["type"] != "response.done":
            assert event["type"] != "error", event
    assert event["response"]["status"] in ("completed", "incomplete"), event


REQUESTS: dict[str, Callable[[System], Awaitable[None]]] = {
    "image": lambda system: ask(system, make_question(make_image(1), "what is this?").messages),
    "text": lambda system: ask(system, make_question("what is this?").messages),
    "voice": speak,
}


async def record_calls(system: System, request: Callable[[], Awaitable[None]]) -> dict[str, set[tuple[str, str]]]:
    """Return the places of all calls during ``request``, by the names of the processes."""
    state = runs.read_state(environ=system.env)
    directory = Path(system.env["OMNIBUS_TEST_WALKS"])
    pids = {name: pid for name, pid in state.pids.items() if name not in ("nats", "valkey") and "fork" not in name}
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR2)
    await asyncio.sleep(0.2)
    await request()
    await asyncio.sleep(_SETTLED_SECONDS)
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR2)
    calls = {}
    async with asyncio.timeout(_WITHIN):
        for name, pid in pids.items():
            path = directory / f"{pid}.json"
            while not path.exists():
                await asyncio.sleep(0.05)
            calls[name] = {(file, function) for file, function in json.loads(path.read_text())}
            path.unlink()
    return calls


async def find_modules(system: System, request: Callable[[System], Awaitable[None]]) -> dict[str, set[str]]:
    """Return the modules that the request walks through in each process.

    These are the ones of every trial: a busy machine calls others beside them, such as those of heartbeats.
    """
    modules: dict[str, set[str]] = {}
    for _ in range(_TRIALS):
        idle_calls = await record_calls(system, lambda: asyncio.sleep(_IDLE_SECONDS))
        for name, calls in (await record_calls(system, lambda: request(system))).items():
            walked = {file for file, _ in calls - idle_calls[name]}
            modules[name] = modules.get(name, walked) & walked
    return modules


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_walks_through_no_more_modules_than_before(system: System, name: str):
    await system.whole()
    await system.becomes_ready()
    await REQUESTS[name](system)  # a first request imports and connects

    modules = await find_modules(system, REQUESTS[name])

    for process, walked in modules.items():
        print(process, *sorted(walked), sep="\n ")
    counts = len(set().union(*modules.values())), len(modules["gateway"])
    print(name, counts)
    assert all(count <= most for count, most in zip(counts, MOST[name], strict=True)), counts
