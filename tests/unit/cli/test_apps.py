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
from omnibus.up.runs import RunDirectory, RunState
from omnibus_gateway.http.server import create_server
from tests.unit.checkpoints.test_adapters import write_adapter
from tests.unit.gateway.apps.estate import (
    COUNT,
    ECHO,
    LOUD,
    TOKEN,
    AppCluster,
    AppGateway,
    format_source,
    start_app_cluster,
)
from tests.unit.gateway.apps.forked_workers import fork_workers
from tests.unit.gateway.house import TEXT, VL

WORDS = """
    from collections.abc import AsyncIterator


    async def serve(request: str) -> AsyncIterator[str]:
        for word in request.split():
            yield word + " "
"""


class ShellResult(NamedTuple):
    code: int
    out: str
    err: str


class AppShell:
    """A shell in the apps' directory, next to a running Omnibus."""

    def __init__(self, land: AppCluster, gate: AppGateway, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.land = land
        self.gate = gate
        self.url = url
        self._capsys = capsys

    async def run_command(self, *arguments: str) -> ShellResult:
        self._capsys.readouterr()
        code = await asyncio.to_thread(main, arguments)
        return ShellResult(code, *self._capsys.readouterr())

    async def run_good(self, *arguments: str) -> str:
        result = await self.run_command(*arguments)
        assert (result.code, result.err) == (0, "")
        return result.out

    async def run_bad(self, *arguments: str) -> str:
        """Run a wrong command and return its one line of error."""
        result = await self.run_command(*arguments)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("omnibus: ")
        assert result.err.count("\n") == 1
        return result.err


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork workers with modules already imported, see ``forked_workers``."""
    fork_workers(monkeypatch)


@pytest.fixture
async def app_shell(
    tmp_path: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[AppShell]:
    client = redis.Redis.from_url(valkey_url)
    await client.flushall()
    await client.aclose()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    for name in ("OMNIBUS_GATEWAY_ADMIN_TOKEN", "OMNIBUS_GATEWAY_APPS_DIR"):
        monkeypatch.delenv(name, raising=False)
    async with start_app_cluster(tmp_path, valkey_url, adapters_dir=str(tmp_path)) as land:
        gate = land.gateway()
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving = create_server(gate.app)
        task = asyncio.ensure_future(serving.serve(sockets=[listener]))
        monkeypatch.chdir(land.directory)
        with RunDirectory(tmp_path / "run") as run:
            where = {"gateway_url": url, "admin_token": TOKEN, "apps_dir": str(land.directory)}
            run.write_state(RunState(str(run.path), os.getpid(), 0.0, "", "", **where))
            yield AppShell(land, gate, url, capsys)
        serving.should_exit = serving.force_exit = True
        await task


async def test_an_app_lives_from_register_to_unregister(app_shell: AppShell):
    app_shell.land.write("echo", ECHO, by="one")
    assert "echo is registered, version 1" in await app_shell.run_good("app", "register", "echo.py")
    assert json.loads(await app_shell.run_good("app", "invoke", "echo", '{"text": "hi"}')) == {
        "text": "hi",
        "by": "one",
    }

    app_shell.land.write("echo", ECHO, by="two")
    assert "echo is updated, version 2" in await app_shell.run_good("app", "update", "echo")
    assert json.loads(await app_shell.run_good("app", "invoke", "echo", '{"text": "hi"}'))["by"] == "two"

    head, row = (await app_shell.run_good("app", "list")).splitlines()
    assert head.split() == ["APP", "VERSION", "STATE", "MODEL", "TASKS"]
    assert row.split() == ["echo", "2", "ready", "-", "-"]

    assert await app_shell.run_good("app", "unregister", "echo") == "echo is unregistered\n"
    assert len((await app_shell.run_good("app", "list")).splitlines()) == 1
    assert "unknown app 'echo'" in await app_shell.run_bad("app", "invoke", "echo", "{}")


async def test_show_says_everything(app_shell: AppShell):
    app_shell.land.write("echo", ECHO, by="one")
    await app_shell.run_good("app", "register", "echo.py")

    lines = dict(line.split(maxsplit=1) for line in (await app_shell.run_good("app", "show", "echo")).splitlines())

    assert lines["app"] == "echo"
    assert lines["request"] == "{text: string}"
    assert lines["response"] == "{text: string, by?: string}"
    assert lines["doc"] == "Says it back."
    assert (lines["version"], lines["state"]) == ("1", "ready")
    assert lines["source"] == "echo, in the directory of apps"


async def test_parts_are_printed_as_they_come_texts_as_text(app_shell: AppShell):
    for name, text in (("words", WORDS), ("count", COUNT)):
        app_shell.land.write(name, text)
        await app_shell.run_good("app", "register", f"{name}.py")

    assert await app_shell.run_good("app", "invoke", "words", '"one two"') == "one two \n"
    assert await app_shell.run_good("app", "invoke", "words", '"one two"', "--json") == '"one "\n"two "\n'
    assert await app_shell.run_good("app", "invoke", "count", "3") == "0\n1\n2\n"


async def test_a_stream_that_fails_says_so_after_what_came(app_shell: AppShell):
    app_shell.land.write("count", COUNT)
    await app_shell.run_good("app", "register", "count.py")

    result = await app_shell.run_command("app", "invoke", "count", "6")

    assert (result.code, result.out) == (1, "0\n1\n2\n3\n4\n5\n")
    assert "omnibus: the app count failed: ValueError" in result.err


async def test_a_request_may_come_from_stdin(app_shell: AppShell, monkeypatch: pytest.MonkeyPatch):
    app_shell.land.write("count", COUNT)
    await app_shell.run_good("app", "register", "count.py")
    monkeypatch.setattr("sys.stdin", io.StringIO(" 2 \n"))

    assert await app_shell.run_good("app", "invoke", "count", "-") == "0\n1\n"
    assert "the request must be JSON" in await app_shell.run_bad("app", "invoke", "count", "{")


async def test_an_upload_sends_the_text(app_shell: AppShell):
    app_shell.land.write("echo", ECHO, by="one")

    app_record = json.loads(await app_shell.run_good("app", "register", "--upload", "echo.py", "--json"))

    assert (app_record["source"]["kind"], app_record["source"]["module"]) == ("upload", "echo")
    assert "upload echo" in await app_shell.run_good("app", "show", "echo")


async def test_an_app_that_is_a_model_says_so(app_shell: AppShell):
    await app_shell.land.home.all_of(VL)
    app_shell.land.write("loud", LOUD, model="opera")

    output = await app_shell.run_good("app", "register", "loud.py")

    assert "it is also the model 'opera' for chat" in output
    tasks = (await app_shell.run_good("tasks")).splitlines()
    assert tasks[0].split() == ["TASK", "KIND", "MODEL", "COMPONENT", "USED", "BY", "EXECUTORS"]
    [thinker] = [line for line in tasks if line.startswith("think-")]
    assert "chat, loud" in thinker
    assert f"{VL}-L-0 ok" in thinker
    assert {task["kind"] for task in json.loads(await app_shell.run_good("tasks", "--json"))} == {"encode", "think"}


async def test_machines_get_json(app_shell: AppShell):
    app_shell.land.write("echo", ECHO, by="one")

    assert json.loads(await app_shell.run_good("app", "register", "echo.py", "--json"))["version"] == 1
    assert json.loads(await app_shell.run_good("app", "update", "echo", "echo.py", "--json"))["version"] == 2
    assert json.loads(await app_shell.run_good("app", "list", "--json"))[0]["worker"] == {
        "state": "ready",
        "version": 2,
    }
    assert json.loads(await app_shell.run_good("app", "show", "echo", "--json"))["request"]["title"] == "Asked"
    assert json.loads(await app_shell.run_good("app", "unregister", "echo", "--json"))["deleted"] is True


# Mistakes


async def test_what_the_gateway_refuses_is_one_line(app_shell: AppShell, tmp_path: Path):
    app_shell.land.write("broken", "import nonsense")
    (tmp_path / "stray.py").write_text("")

    assert "No module named 'nonsense'" in await app_shell.run_bad("app", "register", "broken.py")
    assert "--apps-dir" in await app_shell.run_bad("app", "register", "../stray.py")
    assert "file not found" in await app_shell.run_bad("app", "register", "none.py")
    assert "register it with POST" in await app_shell.run_bad("app", "update", "none")
    assert "unknown app 'none'" in await app_shell.run_bad("app", "show", "none")


async def test_another_gateway_may_be_named_and_needs_its_token(app_shell: AppShell, monkeypatch: pytest.MonkeyPatch):
    app_shell.land.write("echo", ECHO, by="one")
    assert "loads no files" in await app_shell.run_bad("app", "register", "echo.py", "--url", app_shell.url)
    monkeypatch.setenv("OMNIBUS_GATEWAY_APPS_DIR", str(app_shell.land.directory))
    assert "OMNIBUS_GATEWAY_ADMIN_TOKEN" in await app_shell.run_bad(
        "app", "register", "echo.py", "--url", app_shell.url
    )

    monkeypatch.setenv("OMNIBUS_GATEWAY_ADMIN_TOKEN", TOKEN)

    assert "version 1" in await app_shell.run_good("app", "register", "echo.py", "--url", f"{app_shell.url}/")


async def test_what_is_no_gateway_is_said(app_shell: AppShell):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()

    assert f"no gateway at http://127.0.0.1:{port}" in await app_shell.run_bad(
        "app", "list", "--url", f"http://127.0.0.1:{port}"
    )
    assert "no gateway at" in await app_shell.run_bad("app", "list", "--url", "nonsense")


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
    (tmp_path / "echo.py").write_text(format_source(ECHO, by="one") + "print('loaded')\n")

    assert main(["app", "check", "echo.py"]) == 0
    output = capsys.readouterr()
    assert "request   {text: string}" in output.out
    assert "loaded" not in output.out
    assert main(["app", "check", "echo.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "echo"
    assert main(["app", "check", "--upload", "echo.py"]) == 0
    assert "walls" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nonsense", "No module named 'nonsense' (broken.py, line 1)"),
        ("def serve(", "line 1"),
        ("x = 1", "it has no `serve`"),
        ("import os\nos._exit(0)", "ended its process"),
    ],
)
def test_check_says_what_is_wrong_in_one_line(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "broken.py").write_text(text)

    assert main(["app", "check", str(tmp_path / "broken.py")]) == 1

    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


async def test_an_adapter_is_added_listed_and_removed(app_shell: AppShell, tmp_path: Path):
    write_adapter(tmp_path / "pirate-2")
    await app_shell.land.home.all_of(TEXT)

    assert "'nobody'" in await app_shell.run_bad("adapters", "add", "pirate", "nobody")
    adapter_record = json.loads(
        await app_shell.run_good("adapters", "add", "pirate", "pirate-2", "--model", TEXT, "--json")
    )
    assert (adapter_record["id"], adapter_record["parent"], adapter_record["root"]) == ("pirate", TEXT, "pirate-2")
    assert "already been loaded" in await app_shell.run_bad("adapters", "add", "pirate", "pirate-2")
    assert "is loaded" in await app_shell.run_good("adapters", "add", "pirate", "pirate-2", "--replace")

    head, row = (await app_shell.run_good("adapters", "list")).splitlines()
    assert head.split() == ["ADAPTER", "MODEL", "ROOT"]
    assert row.split() == ["pirate", TEXT, "pirate-2"]
    assert await app_shell.run_good("adapters", "list", "-q") == "pirate\n"

    removal = json.loads(await app_shell.run_good("adapters", "remove", "pirate", "--json"))
    assert removal == {"id": "pirate", "deleted": True}
    assert json.loads(await app_shell.run_good("adapters", "list", "--json")) == []
    assert "cannot be found" in await app_shell.run_bad("adapters", "remove", "pirate")
