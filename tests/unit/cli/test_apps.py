"""``omnibus app``, ``omnibus adapters`` and ``omnibus tasks`` against a listening gateway, found by default."""

import asyncio
import io
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis.asyncio as redis

from omnibus.cli import main
from omnibus.up.run_dir import RunDirectory, RunState
from omnibus_gateway.http.server import create_server
from tests.unit.checkpoints.test_adapters import adapter
from tests.unit.gateway.apps.estate import COUNT, ECHO, LOUD, TOKEN, Estate, Gateway, estate, source
from tests.unit.gateway.apps.forked_workers import fork_workers
from tests.unit.gateway.house import TEXT, VL

WORDS = """
    from collections.abc import AsyncIterator


    async def serve(request: str) -> AsyncIterator[str]:
        for word in request.split():
            yield word + " "
"""


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Desk:
    """A shell in the apps' directory, next to a running Omnibus."""

    def __init__(self, land: Estate, gate: Gateway, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.land = land
        self.gate = gate
        self.url = url
        self._capsys = capsys

    async def type(self, *arguments: str) -> Said:
        self._capsys.readouterr()
        code = await asyncio.to_thread(main, arguments)
        return Said(code, *self._capsys.readouterr())

    async def good(self, *arguments: str) -> str:
        said = await self.type(*arguments)
        assert (said.code, said.err) == (0, "")
        return said.out

    async def bad(self, *arguments: str) -> str:
        """Run a wrong command and return its one line of error."""
        said = await self.type(*arguments)
        assert (said.code, said.out) == (1, "")
        assert said.err.startswith("omnibus: ")
        assert said.err.count("\n") == 1
        return said.err


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork workers with modules already imported, see ``forked_workers``."""
    fork_workers(monkeypatch)


@pytest.fixture
async def desk(
    tmp_path: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Desk]:
    client = redis.Redis.from_url(valkey_url)
    await client.flushall()
    await client.aclose()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    for name in ("OMNIBUS_GATEWAY_ADMIN_TOKEN", "OMNIBUS_GATEWAY_APPS_DIR"):
        monkeypatch.delenv(name, raising=False)
    async with estate(tmp_path, valkey_url, adapters_dir=str(tmp_path)) as land:
        gate = land.gateway()
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving = create_server(gate.app)
        task = asyncio.ensure_future(serving.serve(sockets=[listener]))
        monkeypatch.chdir(land.directory)
        with RunDirectory(tmp_path / "run") as run:
            where = {"gateway_url": url, "admin_token": TOKEN, "apps_dir": str(land.directory)}
            run.write_state(RunState(str(run.path), os.getpid(), 0.0, "", "", **where))
            yield Desk(land, gate, url, capsys)
        serving.should_exit = serving.force_exit = True
        await task


async def test_an_app_lives_from_register_to_unregister(desk: Desk):
    desk.land.write("echo", ECHO, by="one")
    assert "echo is registered, version 1" in await desk.good("app", "register", "echo.py")
    assert json.loads(await desk.good("app", "invoke", "echo", '{"text": "hi"}')) == {"text": "hi", "by": "one"}

    desk.land.write("echo", ECHO, by="two")
    assert "echo is updated, version 2" in await desk.good("app", "update", "echo")
    assert json.loads(await desk.good("app", "invoke", "echo", '{"text": "hi"}'))["by"] == "two"

    head, row = (await desk.good("app", "list")).splitlines()
    assert head.split() == ["APP", "VERSION", "STATE", "MODEL", "TASKS"]
    assert row.split() == ["echo", "2", "ready", "-", "-"]

    assert await desk.good("app", "unregister", "echo") == "echo is unregistered\n"
    assert len((await desk.good("app", "list")).splitlines()) == 1
    assert "unknown app 'echo'" in await desk.bad("app", "invoke", "echo", "{}")


async def test_show_says_everything(desk: Desk):
    desk.land.write("echo", ECHO, by="one")
    await desk.good("app", "register", "echo.py")

    lines = dict(line.split(maxsplit=1) for line in (await desk.good("app", "show", "echo")).splitlines())

    assert lines["app"] == "echo"
    assert lines["request"] == "{text: string}"
    assert lines["response"] == "{text: string, by?: string}"
    assert lines["doc"] == "Says it back."
    assert (lines["version"], lines["state"]) == ("1", "ready")
    assert lines["source"] == "echo, in the directory of apps"


async def test_parts_are_printed_as_they_come_texts_as_text(desk: Desk):
    for name, text in (("words", WORDS), ("count", COUNT)):
        desk.land.write(name, text)
        await desk.good("app", "register", f"{name}.py")

    assert await desk.good("app", "invoke", "words", '"one two"') == "one two \n"
    assert await desk.good("app", "invoke", "words", '"one two"', "--json") == '"one "\n"two "\n'
    assert await desk.good("app", "invoke", "count", "3") == "0\n1\n2\n"


async def test_a_stream_that_fails_says_so_after_what_came(desk: Desk):
    desk.land.write("count", COUNT)
    await desk.good("app", "register", "count.py")

    said = await desk.type("app", "invoke", "count", "6")

    assert (said.code, said.out) == (1, "0\n1\n2\n3\n4\n5\n")
    assert "omnibus: the app count failed: ValueError" in said.err


async def test_a_request_may_come_from_stdin(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    desk.land.write("count", COUNT)
    await desk.good("app", "register", "count.py")
    monkeypatch.setattr("sys.stdin", io.StringIO(" 2 \n"))

    assert await desk.good("app", "invoke", "count", "-") == "0\n1\n"
    assert "the request must be JSON" in await desk.bad("app", "invoke", "count", "{")


async def test_an_upload_sends_the_text(desk: Desk):
    desk.land.write("echo", ECHO, by="one")

    made = json.loads(await desk.good("app", "register", "--upload", "echo.py", "--json"))

    assert (made["source"]["kind"], made["source"]["module"]) == ("upload", "echo")
    assert "upload echo" in await desk.good("app", "show", "echo")


async def test_an_app_that_is_a_model_says_so(desk: Desk):
    await desk.land.home.all_of(VL)
    desk.land.write("loud", LOUD, model="opera")

    said = await desk.good("app", "register", "loud.py")

    assert "chat completions as model 'opera'" in said
    tasks = (await desk.good("tasks")).splitlines()
    assert tasks[0].split() == ["TASK", "KIND", "MODEL", "COMPONENT", "USED", "BY", "EXECUTORS"]
    [thinker] = [line for line in tasks if line.startswith("think-")]
    assert "chat, loud" in thinker
    assert f"{VL}-L-0 ok" in thinker
    assert {task["kind"] for task in json.loads(await desk.good("tasks", "--json"))} == {"encode", "think"}


async def test_machines_get_json(desk: Desk):
    desk.land.write("echo", ECHO, by="one")

    assert json.loads(await desk.good("app", "register", "echo.py", "--json"))["version"] == 1
    assert json.loads(await desk.good("app", "update", "echo", "echo.py", "--json"))["version"] == 2
    assert json.loads(await desk.good("app", "list", "--json"))[0]["worker"] == {"state": "ready", "version": 2}
    assert json.loads(await desk.good("app", "show", "echo", "--json"))["request"]["title"] == "Asked"
    assert json.loads(await desk.good("app", "unregister", "echo", "--json"))["deleted"] is True


# Mistakes


async def test_what_the_gateway_refuses_is_one_line(desk: Desk, tmp_path: Path):
    desk.land.write("broken", "import nonsense")
    (tmp_path / "stray.py").write_text("")

    assert "No module named 'nonsense'" in await desk.bad("app", "register", "broken.py")
    assert "--apps-dir" in await desk.bad("app", "register", "../stray.py")
    assert "file not found" in await desk.bad("app", "register", "none.py")
    assert "register it with POST" in await desk.bad("app", "update", "none")
    assert "unknown app 'none'" in await desk.bad("app", "show", "none")


async def test_another_gateway_may_be_named_and_needs_its_token(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    desk.land.write("echo", ECHO, by="one")
    assert "loads no files" in await desk.bad("app", "register", "echo.py", "--url", desk.url)
    monkeypatch.setenv("OMNIBUS_GATEWAY_APPS_DIR", str(desk.land.directory))
    assert "OMNIBUS_GATEWAY_ADMIN_TOKEN" in await desk.bad("app", "register", "echo.py", "--url", desk.url)

    monkeypatch.setenv("OMNIBUS_GATEWAY_ADMIN_TOKEN", TOKEN)

    assert "version 1" in await desk.good("app", "register", "echo.py", "--url", f"{desk.url}/")


async def test_what_is_no_gateway_is_said(desk: Desk):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()

    assert f"no gateway at http://127.0.0.1:{port}" in await desk.bad(
        "app", "list", "--url", f"http://127.0.0.1:{port}"
    )
    assert "no gateway at" in await desk.bad("app", "list", "--url", "nonsense")


def test_without_a_running_omnibus_it_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    for arguments in (["app", "list"], ["tasks"]):
        assert main(arguments) == 1
        assert "omnibus up" in capsys.readouterr().err


# check


def test_check_says_what_an_app_is_with_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "echo.py").write_text(source(ECHO, by="one") + "print('loaded')\n")

    assert main(["app", "check", "echo.py"]) == 0
    said = capsys.readouterr()
    assert "request   {text: string}" in said.out
    assert "loaded" not in said.out
    assert main(["app", "check", "echo.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "echo"
    assert main(["app", "check", "--upload", "echo.py"]) == 0
    assert "walls" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nonsense", "No module named 'nonsense' (broken.py, line 1)"),
        ("def serve(", "line 1"),
        ("x = 1", "it has no `serve`"),
        ("import os\nos._exit(0)", "ended its process"),
    ],
)
def test_check_says_what_is_wrong_in_one_line(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "broken.py").write_text(text)

    assert main(["app", "check", str(tmp_path / "broken.py")]) == 1

    found = capsys.readouterr().err
    assert said in found
    assert found.count("\n") == 1


async def test_an_adapter_is_added_listed_and_removed(desk: Desk, tmp_path: Path):
    adapter(tmp_path / "pirate-2")
    await desk.land.home.all_of(TEXT)

    assert "'nobody'" in await desk.bad("adapters", "add", "pirate", "nobody")
    made = json.loads(await desk.good("adapters", "add", "pirate", "pirate-2", "--model", TEXT, "--json"))
    assert (made["id"], made["parent"], made["root"]) == ("pirate", TEXT, "pirate-2")
    assert "already been loaded" in await desk.bad("adapters", "add", "pirate", "pirate-2")
    assert "is loaded" in await desk.good("adapters", "add", "pirate", "pirate-2", "--replace")

    head, row = (await desk.good("adapters", "list")).splitlines()
    assert head.split() == ["ADAPTER", "MODEL", "ROOT"]
    assert row.split() == ["pirate", TEXT, "pirate-2"]
    assert await desk.good("adapters", "list", "-q") == "pirate\n"

    gone = json.loads(await desk.good("adapters", "remove", "pirate", "--json"))
    assert gone == {"id": "pirate", "deleted": True}
    assert json.loads(await desk.good("adapters", "list", "--json")) == []
    assert "cannot be found" in await desk.bad("adapters", "remove", "pirate")
