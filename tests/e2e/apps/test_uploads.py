"""Uploaded apps use models and tasks, and are isolated from the machine."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.apps.estate import AppSystem, read_error
from tests.e2e.system import VL

pytestmark = pytest.mark.e2e

#: Tries the requested action, and reports the result.
CURIOUS = """
    import os
    import socket
    import subprocess
    import sys
    import urllib.request
    from pathlib import Path


    def attempt(what, argument):
        if what == "read":
            return Path(argument).read_text()
        if what == "write":
            return Path(argument).write_text("was here")
        if what == "list":
            return os.listdir(argument)
        if what == "connect":
            host, port = argument
            return str(socket.create_connection((host, port), 2))
        if what == "listen":
            return str(socket.create_server(("127.0.0.1", 0)))
        if what == "fetch":
            return urllib.request.urlopen(argument, timeout=2).status
        if what == "run":
            return subprocess.run(argument, capture_output=True, text=True, check=True).stdout
        if what == "system":
            raise OSError if os.system(argument) else RuntimeError("it ran")
        if what == "fork":
            return os.fork()
        if what == "kill":
            return os.kill(argument, 9)
        if what == "environ":
            return dict(os.environ)
        if what == "memory":
            return len(bytearray(argument))
        if what == "directory":
            return os.getcwd()
        return sys.version


    async def serve(request: dict):
        try:
            return {"got": attempt(request["what"], request.get("argument"))}
        except BaseException as error:
            return {"error": type(error).__name__}
"""

#: Asks the model; registered with the stack that has one.
ASKS = """
    '''Answers twice.'''

    from omnibus.task import MLLM, ChatInput, Think

    TASK = MLLM(encoders={}, thinker=Think(model="qwen2.5-vl-tiny", component="thinker"))


    async def serve(request: str) -> list[str]:
        asked = ChatInput.of(request, max_tokens=8, temperature=0.0)
        return [await (await TASK(asked)).text for _ in range(2)]
"""


async def test_an_upload_may_compute_and_nothing_else(app_system: AppSystem, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("the answer")
    tmp_path.chmod(0o755)
    secret.chmod(0o644)
    app_system.write("curious", CURIOUS)
    gateway = app_system.system.gateway(0)
    code, output = app_system.run_cli("app", "register", "--upload", str(app_system.directory / "curious.py"))
    assert code == 0, output
    nats = urlsplit(app_system.system.state.nats_url)

    async def try_operation(operation: str, argument: Any = None) -> dict[str, Any]:
        return dict(await app_system.invoke_json("curious", {"what": operation, "argument": argument}))

    try:
        answers = {
            "a file": await try_operation("read", str(secret)),
            "the passwords": await try_operation("read", "/etc/passwd"),
            "the gateway's environment": await try_operation("read", f"/proc/{gateway.pid}/environ"),
            "the state of the run": await try_operation(
                "read", str(Path(app_system.system.state.directory) / "state.json")
            ),
            "another app": await try_operation("read", str(app_system.directory / "curious.py")),
            "a directory": await try_operation("list", str(tmp_path)),
            "writing": await try_operation("write", "/tmp/was-here"),
            "the bus": await try_operation("connect", [nats.hostname, nats.port]),
            "listening": await try_operation("listen"),
            "the gateway": await try_operation("fetch", f"{app_system.system.url}/health"),
            "a program": await try_operation("run", ["/bin/true"]),
            "a shell": await try_operation("system", "true"),
            "a process": await try_operation("fork"),
            "a signal": await try_operation("kill", gateway.pid),
            "much memory": await try_operation("memory", 64 << 30),
        }
        environ = await try_operation("environ")
        home = await try_operation("directory")
        version = await try_operation("version")
    finally:
        await app_system.unregister("curious")
        await app_system.wait_for_version("curious", 0)

    refusals = {"PermissionError", "OSError", "FileNotFoundError", "URLError", "MemoryError", "gaierror"}
    assert {name: answer for name, answer in answers.items() if answer.get("error") not in refusals} == {}
    assert environ == {"got": {}}
    assert home == {"got": "/"}
    assert "3." in version["got"]
    assert not Path("/tmp/was-here").exists()
    assert gateway.is_running()


async def test_an_upload_is_served_by_every_gateway_and_after_a_restart(app_system: AppSystem):
    app_system.write("sent", "async def serve(request):\n    return request\n")
    body = {"source": {"upload": (app_system.directory / "sent.py").read_text(), "name": "sent"}}
    (app_system.directory / "sent.py").unlink()  # only the text is served

    answer = await app_system.ask("POST", "/v1/apps", body)
    try:
        await app_system.wait_for_version("sent", 1)
        replies = [await app_system.invoke_json("sent", {"a": 1}, gateway) for gateway in (0, 1)]
        app_system.system.gateway(1).kill()
        await app_system.system.becomes_ready()
        await app_system.wait_for_version("sent", 1)
        again = await app_system.invoke_json("sent", {"a": 1}, 1)
    finally:
        await app_system.unregister("sent")
        await app_system.wait_for_version("sent", 0)

    assert answer.status_code == 201, answer.text
    assert replies == [{"a": 1}] * 2
    assert again == {"a": 1}


async def test_an_upload_may_not_bring_code_for_executors(app_system: AppSystem):
    text = "from omnibus.task import TaskInput, TaskOutput, UnitTask\nclass A(UnitTask[TaskInput, TaskOutput]):\n"
    body = f"{text}    async def run(self, inputs): ...\nTASK = A()\nasync def serve(request): ...\n"

    response = await app_system.ask("POST", "/v1/apps", {"source": {"upload": body, "name": "brings"}})

    assert response.status_code == 400
    assert "cannot have its own unit tasks" in read_error(response)["message"]
    assert "a" not in await app_system.tasks()


async def test_the_largest_upload_has_a_limit(app_system: AppSystem):
    response = await app_system.ask("POST", "/v1/apps", {"source": {"upload": "#" * (2 << 20), "name": "large"}})

    assert (response.status_code, read_error(response)["code"]) == (413, "too_large")


async def test_an_upload_uses_a_model_of_the_plan(twin_models: AppSystem, tmp_path: Path):
    file = tmp_path / "asks.py"
    AppSystem(twin_models.system, tmp_path).write("asks", ASKS)

    code, output = twin_models.run_cli("app", "register", "--upload", str(file))
    try:
        answers = await twin_models.invoke_json("asks", "hello there")
        async with twin_models.system.client() as client:
            whole = await client.chat.completions.create(
                model=VL, messages=[{"role": "user", "content": "hello there"}], max_tokens=8, temperature=0
            )
    finally:
        await twin_models.unregister("asks")

    assert code == 0, output
    assert answers == [whole.choices[0].message.content] * 2
    assert json.dumps(answers) != '["", ""]'
