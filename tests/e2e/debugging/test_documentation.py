"""The commands of docs/debugging.md work verbatim in a shell.

They run with the ``nats`` CLI if it is installed, and always with a stand-in that sends the same bytes (``stand_in``).
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from omnibus.bus.subjects import DEADLETTERS
from omnibus.recording import records
from tests.e2e import warm
from tests.e2e.debugging import stand_in
from tests.e2e.debugging.test_deadletters import asked, letter, served
from tests.e2e.questions import ask, image
from tests.e2e.system import ROOT, VL, System

pytestmark = pytest.mark.e2e

TEXT = (ROOT / "docs" / "debugging.md").read_text()
WITHIN = 60.0  # seconds
THINK = "think-qwen2_5-vl-tiny-thinker"


def blocks() -> dict[str, list[str]]:
    """The shell blocks below each heading."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^##+ ", TEXT, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        found[heading] = re.findall(r"^```sh\n(.*?)^```", body, flags=re.MULTILINE | re.DOTALL)
    return found


BLOCKS = blocks()
#: Its commands are run where there are several: tests/e2e/nodes.
NODES = "Nodes and what they pull"
KNOWN = {
    "Again",
    "Inputs that crash or fail an engine",
    "Watch everything, one request, one task",
    "Executors and their stats",
    NODES,
    "Read a record",
    "Replay it",
    "Replay from stage k with a pinned route",
    "Dead letters",
    "Traces",
}


CLI = shutil.which("nats")


@pytest.fixture(params=["stand-in", "CLI"] if CLI else ["stand-in"])
def tools(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory with ``nats`` and ``omnibus``."""
    directory = tmp_path / "bin"
    directory.mkdir()
    if request.param == "CLI":
        (directory / "nats").symlink_to(str(CLI))
    else:
        _script(directory / "nats", sys.executable, stand_in.__file__)
    _script(directory / "omnibus", *warm.omnibus_command())
    return str(directory)


def _script(path: Path, *command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


@pytest.fixture
def shell(seen: System, tools: str, tmp_path: Path) -> "Shell":
    return Shell(seen, tools, tmp_path)


class Shell:
    def __init__(self, system: System, tools: str, directory: Path) -> None:
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        self.env = {**system.env, "PATH": path, "NATS_URL": system.state.nats_url}
        self.directory = directory

    async def run(self, block: str, codes: Sequence[int] = (0,), **names: str) -> str:
        """Return the output of ``block``, with ``names`` as variables."""
        async with self.running(block, **names) as process:
            output, errors = await asyncio.wait_for(process.communicate(), WITHIN)
        assert process.returncode in codes, f"{block}\n{output.decode()}\n{errors.decode()}"
        return output.decode()

    @asynccontextmanager
    async def running(self, block: str, **names: str) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            "bash", "-o", "pipefail", "-c", block,
            env={**self.env, **names}, cwd=self.directory, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGTERM)
                await process.wait()

    async def watch(self, block: str, until: str | tuple[str, ...], meanwhile: Any, **names: str) -> str:
        """Return the output of ``block`` while ``meanwhile`` runs repeatedly.

        With ``until``, the output ends there.
        """
        wanted = (until,) if isinstance(until, str) else until
        output = ""
        async with self.running(block, **names) as process, asyncio.timeout(WITHIN):
            assert process.stdout is not None
            while not all(each in output for each in wanted):
                await meanwhile()
                try:
                    part = await asyncio.wait_for(process.stdout.read(1 << 16), 1.0)
                except TimeoutError:
                    continue
                assert part, f"{block} ended:\n{output}"
                output += part.decode()
        return output


async def request(system: System, path: str = "E>L") -> str:
    """Id of a request whose end is recorded."""
    question = {"model": VL, "messages": ask("what {{is}} it", image(1)).messages, "max_tokens": 4, "temperature": 0}
    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=question, headers={"x-omnibus-path": path})
    assert answer.status_code == 200
    id = answer.headers["x-request-id"]
    await system.record(id)
    return str(id)


@pytest.fixture
async def id(seen: System) -> str:
    return await request(seen)


@pytest.fixture
async def dead(seen: System) -> str:
    await served(seen)
    id = (await asked(seen, "defect")).headers["x-request-id"]
    await letter(seen, id)
    return str(id)


def replies(output: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def test_every_command_of_the_page_is_run_here():
    assert {heading for heading, found in BLOCKS.items() if found} == KNOWN
    inline = set(re.findall(r"`(nats [a-z][^`]*)`", TEXT)) - {"nats pub --no-templates omnibus.replay"}
    assert inline == set()


async def test_replays_of_the_command_line(seen: System, shell: Shell, id: str):
    [block] = BLOCKS["Again"]
    whole = [line.partition("#")[0] for line in block.splitlines()]
    assert len(whole) == 4

    for line in whole:
        assert "identical to the recorded answer" in await shell.run(line, ID=id)


async def test_dead_letters_of_the_command_line(shell: Shell, dead: str):
    [block] = BLOCKS["Inputs that crash or fail an engine"]
    lines = block.splitlines()

    assert dead in await shell.run(lines[0], DEAD=dead)
    assert "reason  failed again" in await shell.run(lines[1], DEAD=dead)
    assert "failed: stage_failed" in await shell.run(lines[2], [1], DEAD=dead)


async def test_watching(seen: System, shell: Shell):
    everything, _, _, task = BLOCKS["Watch everything, one request, one task"]
    question = {"model": VL, "messages": ask("hello").messages, "max_tokens": 2}

    async def again() -> None:
        async with seen.http() as http:
            assert (await http.post("/v1/chat/completions", json=question)).status_code == 200

    await shell.watch(everything, ("omnibus.inv.chat.", "omnibus.event.executor"), again)
    seen_by_task = await shell.watch(task, f"omnibus.task.{THINK}.", again, TASK=THINK)
    assert "traceparent" in seen_by_task
    assert '"messages"' not in seen_by_task


@pytest.mark.parametrize("which", [1, 2])
async def test_watching_one_request_by_its_id(seen: System, shell: Shell, which: int):
    """A stream contains the id at its beginning, long before it ends."""
    block = BLOCKS["Watch everything, one request, one task"][which]
    question = {"model": VL, "messages": ask("hi").messages, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        async with seen.http() as http, http.stream("POST", "/v1/chat/completions", json=question) as answer:
            begun.set_result(answer.headers["x-request-id"])
            async for _ in answer.aiter_bytes():
                pass

    async def nothing() -> None: ...

    reading = asyncio.create_task(read())
    id = await asyncio.wait_for(begun, WITHIN)
    output = await shell.watch(block, '"status":"done"', nothing, ID=id)
    await reading

    assert id in output


async def test_executors_and_their_stats(shell: Shell):
    services, census = BLOCKS["Executors and their stats"]

    output = await shell.run(services, OPTION="L")
    heard = await shell.run(census)

    for name in ("omnibus-E", "omnibus-L", "omnibus-EL"):
        assert name in output
    assert THINK in output
    assert "busy" in output
    assert heard.count('"state":"ready"') == 3


async def test_reading_a_record(seen: System, shell: Shell, tools: str, id: str):
    view, files = BLOCKS["Read a record"]

    output = await shell.run(files, ID=id)
    if not os.path.islink(f"{tools}/nats"):  # the CLI pages, so it wants a terminal
        viewed = await shell.run(view, ID=id)
        assert f"omnibus.inv.chat.{id}" in viewed

    begin, _ = records.split_records((shell.directory / "recorded.json").read_bytes().rstrip())
    assert begin == (await seen.record(id))[0]
    assert '"kind":"end"' in output


async def test_replaying(seen: System, shell: Shell, id: str):
    [block] = BLOCKS["Replay it"]

    running, done = replies(await shell.run(block, ID=id))

    assert (running["status"], running["replay_of"], running["path"]) == ("running", id, "E>L")
    assert (done["status"], done["identical"]) == ("done", True)
    await seen.ledger_is_empty()


async def test_replaying_by_publishing_alone(seen: System, shell: Shell, id: str):
    assert "`nats pub --no-templates omnibus.replay`" in TEXT
    before = await _ids(seen)

    await shell.run(
        'nats sub "omnibus.inv.*.$ID" --all --raw --count 1 | nats pub --no-templates omnibus.replay', ID=id
    )

    async with asyncio.timeout(WITHIN):
        while not (new := [each for each in await _ids(seen) if each not in before]):
            await asyncio.sleep(0.05)
    _, end = await seen.record(new[0])
    assert end["status"] == "done"


async def _ids(system: System) -> list[str]:
    async with system.http() as http:
        found = await http.get("/v1/invocations", headers={"authorization": f"Bearer {system.state.admin_token}"})
    return [each["id"] for each in found.json()["data"]]


async def test_replaying_from_a_stage_with_a_pinned_route(seen: System, shell: Shell, id: str):
    recorded = json.loads((await seen.record(id))[0])
    blocks = BLOCKS["Replay from stage k with a pinned route"]
    executor = recorded["route"][1]

    for block, start in zip(blocks[:2], ("thinker", "1"), strict=True):
        assert f"Omnibus-From:{start}" in block
        running, done = replies(await shell.run(block, ID=id, EXECUTOR=executor))
        assert (running["from"], running["route"][1]) == (1, executor)
        assert running["route"][0] != recorded["route"][0]
        assert (done["status"], done["identical"]) == ("done", True)
    running, done = replies(await shell.run(blocks[2], ID=id))
    assert running["path"] == "EL"
    assert done["status"] == "done"
    await seen.ledger_is_empty()


async def test_dead_letters(seen: System, shell: Shell, dead: str):
    watch, read, retry = BLOCKS["Dead letters"]
    names = {"DEAD": dead, "APP": "brittle"}

    async def again() -> None:
        await asked(seen, "defect")

    assert '"reason":"failed"' in await shell.watch(watch, "omnibus.event.deadletter.brittle.", again)
    output = await shell.run(read, **names)
    assert dead in {each.get("inv") for each in replies(output)}
    assert output.count(f"omnibus.event.deadletter.brittle.{dead}") == 1  # the last command says where it lies
    running, failed = replies(await shell.run(retry, **names))
    assert (running["replay_of"], failed["status"]) == (dead, "failed")
    async with seen.bus() as bus:
        assert await bus.read_records(f"omnibus.event.deadletter.brittle.{dead}", DEADLETTERS) == []


def test_traces_are_switched_on_as_the_page_says(seen: System):
    [block] = BLOCKS["Traces"]

    assert block.startswith("OTEL_EXPORTER_OTLP_ENDPOINT=")
    assert "traces go to http://" in seen.log
