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
from tests.e2e.debugging.test_deadletters import invoke_app, wait_for_letter, wait_until_served
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import ROOT, VL, System

pytestmark = pytest.mark.e2e

TEXT = (ROOT / "docs" / "debugging.md").read_text()
WITHIN = 60.0  # seconds
THINK = "think-qwen2_5-vl-tiny-thinker"


def read_blocks() -> dict[str, list[str]]:
    """The shell blocks below each heading."""
    result: dict[str, list[str]] = {}
    for part in re.split(r"^##+ ", TEXT, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        result[heading] = re.findall(r"^```sh\n(.*?)^```", body, flags=re.MULTILINE | re.DOTALL)
    return result


BLOCKS = read_blocks()
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
def tool_directory(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory with ``nats`` and ``omnibus``."""
    directory = tmp_path / "bin"
    directory.mkdir()
    if request.param == "CLI":
        (directory / "nats").symlink_to(str(CLI))
    else:
        _write_script(directory / "nats", sys.executable, stand_in.__file__)
    _write_script(directory / "omnibus", *warm.omnibus_command())
    return str(directory)


def _write_script(path: Path, *command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


@pytest.fixture
def shell(traced_system: System, tool_directory: str, tmp_path: Path) -> "Shell":
    return Shell(traced_system, tool_directory, tmp_path)


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
        endings = (until,) if isinstance(until, str) else until
        output = ""
        async with self.running(block, **names) as process, asyncio.timeout(WITHIN):
            assert process.stdout is not None
            while not all(each in output for each in endings):
                await meanwhile()
                try:
                    part = await asyncio.wait_for(process.stdout.read(1 << 16), 1.0)
                except TimeoutError:
                    continue
                assert part, f"{block} ended:\n{output}"
                output += part.decode()
        return output


async def send_request(system: System, path: str = "E>L") -> str:
    """Id of a request whose end is recorded."""
    question = {
        "model": VL,
        "messages": make_question("what {{is}} it", make_image(1)).messages,
        "max_tokens": 4,
        "temperature": 0,
    }
    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=question, headers={"x-omnibus-path": path})
    assert answer.status_code == 200
    id = answer.headers["x-request-id"]
    await system.record(id)
    return str(id)


@pytest.fixture
async def request_id(traced_system: System) -> str:
    return await send_request(traced_system)


@pytest.fixture
async def dead_letter_id(traced_system: System) -> str:
    await wait_until_served(traced_system)
    id = (await invoke_app(traced_system, "defect")).headers["x-request-id"]
    await wait_for_letter(traced_system, id)
    return str(id)


def read_replies(output: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def test_every_command_of_the_page_is_run_here():
    assert {heading for heading, commands in BLOCKS.items() if commands} == KNOWN
    inline = set(re.findall(r"`(nats [a-z][^`]*)`", TEXT)) - {"nats pub --no-templates omnibus.replay"}
    assert inline == set()


async def test_replays_of_the_command_line(traced_system: System, shell: Shell, request_id: str):
    [block] = BLOCKS["Again"]
    whole = [line.partition("#")[0] for line in block.splitlines()]
    assert len(whole) == 4

    for line in whole:
        assert "identical to the recorded answer" in await shell.run(line, ID=request_id)


async def test_dead_letters_of_the_command_line(shell: Shell, dead_letter_id: str):
    [block] = BLOCKS["Inputs that crash or fail an engine"]
    lines = block.splitlines()

    assert dead_letter_id in await shell.run(lines[0], DEAD=dead_letter_id)
    assert "reason  failed again" in await shell.run(lines[1], DEAD=dead_letter_id)
    assert "failed: stage_failed" in await shell.run(lines[2], [1], DEAD=dead_letter_id)


async def test_watching(traced_system: System, shell: Shell):
    everything, _, _, task = BLOCKS["Watch everything, one request, one task"]
    question = {"model": VL, "messages": make_question("hello").messages, "max_tokens": 2}

    async def send_chat() -> None:
        async with traced_system.http() as http:
            assert (await http.post("/v1/chat/completions", json=question)).status_code == 200

    await shell.watch(everything, ("omnibus.inv.chat.", "omnibus.event.executor"), send_chat)
    seen_by_task = await shell.watch(task, f"omnibus.task.{THINK}.", send_chat, TASK=THINK)
    assert "traceparent" in seen_by_task
    assert '"messages"' not in seen_by_task


@pytest.mark.parametrize("index", [1, 2])
async def test_watching_one_request_by_its_id(traced_system: System, shell: Shell, index: int):
    """A stream contains the id at its beginning, long before it ends."""
    block = BLOCKS["Watch everything, one request, one task"][index]
    question = {
        "model": VL,
        "messages": make_question("hi").messages,
        "max_tokens": 3000,
        "ignore_eos": True,
        "stream": True,
    }
    invocation_id: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read_stream() -> None:
        async with traced_system.http() as http, http.stream("POST", "/v1/chat/completions", json=question) as answer:
            invocation_id.set_result(answer.headers["x-request-id"])
            async for _ in answer.aiter_bytes():
                pass

    async def do_nothing() -> None: ...

    reading = asyncio.create_task(read_stream())
    id = await asyncio.wait_for(invocation_id, WITHIN)
    output = await shell.watch(block, '"status":"done"', do_nothing, ID=id)
    await reading

    assert id in output


async def test_executors_and_their_stats(shell: Shell):
    services, census = BLOCKS["Executors and their stats"]

    output = await shell.run(services, OPTION="L")
    census_output = await shell.run(census)

    for name in ("omnibus-E", "omnibus-L", "omnibus-EL"):
        assert name in output
    assert THINK in output
    assert "busy" in output
    assert census_output.count('"state":"ready"') == 3


async def test_reading_a_record(traced_system: System, shell: Shell, tool_directory: str, request_id: str):
    view, files = BLOCKS["Read a record"]

    output = await shell.run(files, ID=request_id)
    if not os.path.islink(f"{tool_directory}/nats"):  # the CLI pages, so it wants a terminal
        record_text = await shell.run(view, ID=request_id)
        assert f"omnibus.inv.chat.{request_id}" in record_text

    begin, _ = records.split_records((shell.directory / "recorded.json").read_bytes().rstrip())
    assert begin == (await traced_system.record(request_id))[0]
    assert '"kind":"end"' in output


async def test_replaying(traced_system: System, shell: Shell, request_id: str):
    [block] = BLOCKS["Replay it"]

    running, end = read_replies(await shell.run(block, ID=request_id))

    assert (running["status"], running["replay_of"], running["path"]) == ("running", request_id, "E>L")
    assert (end["status"], end["identical"]) == ("done", True)
    await traced_system.ledger_is_empty()


async def test_replaying_by_publishing_alone(traced_system: System, shell: Shell, request_id: str):
    assert "`nats pub --no-templates omnibus.replay`" in TEXT
    before = await _list_ids(traced_system)

    await shell.run(
        'nats sub "omnibus.inv.*.$ID" --all --raw --count 1 | nats pub --no-templates omnibus.replay', ID=request_id
    )

    async with asyncio.timeout(WITHIN):
        while not (new := [each for each in await _list_ids(traced_system) if each not in before]):
            await asyncio.sleep(0.05)
    _, end = await traced_system.record(new[0])
    assert end["status"] == "done"


async def _list_ids(system: System) -> list[str]:
    async with system.http() as http:
        response = await http.get("/v1/invocations", headers={"authorization": f"Bearer {system.state.admin_token}"})
    return [each["id"] for each in response.json()["data"]]


async def test_replaying_from_a_stage_with_a_pinned_route(traced_system: System, shell: Shell, request_id: str):
    document = json.loads((await traced_system.record(request_id))[0])
    blocks = BLOCKS["Replay from stage k with a pinned route"]
    executor = document["route"][1]

    for block, start in zip(blocks[:2], ("thinker", "1"), strict=True):
        assert f"Omnibus-From:{start}" in block
        running, end = read_replies(await shell.run(block, ID=request_id, EXECUTOR=executor))
        assert (running["from"], running["route"][1]) == (1, executor)
        assert running["route"][0] != document["route"][0]
        assert (end["status"], end["identical"]) == ("done", True)
    running, end = read_replies(await shell.run(blocks[2], ID=request_id))
    assert running["path"] == "EL"
    assert end["status"] == "done"
    await traced_system.ledger_is_empty()


async def test_dead_letters(traced_system: System, shell: Shell, dead_letter_id: str):
    watch, read, retry = BLOCKS["Dead letters"]
    names = {"DEAD": dead_letter_id, "APP": "brittle"}

    async def invoke_again() -> None:
        await invoke_app(traced_system, "defect")

    assert '"reason":"failed"' in await shell.watch(watch, "omnibus.event.deadletter.brittle.", invoke_again)
    output = await shell.run(read, **names)
    assert dead_letter_id in {each.get("inv") for each in read_replies(output)}
    assert (
        output.count(f"omnibus.event.deadletter.brittle.{dead_letter_id}") == 1
    )  # the last command says where it lies
    running, end = read_replies(await shell.run(retry, **names))
    assert (running["replay_of"], end["status"]) == (dead_letter_id, "failed")
    async with traced_system.bus() as bus:
        assert await bus.read_records(f"omnibus.event.deadletter.brittle.{dead_letter_id}", DEADLETTERS) == []


def test_traces_are_switched_on_as_the_page_says(traced_system: System):
    [block] = BLOCKS["Traces"]

    assert block.startswith("OTEL_EXPORTER_OTLP_ENDPOINT=")
    assert "traces go to http://" in traced_system.log
