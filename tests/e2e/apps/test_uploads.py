"""Uploaded apps use models and tasks like all others, and reach nothing else of the machine."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.apps.estate import Estate, error
from tests.e2e.system import VL

pytestmark = pytest.mark.e2e

#: Tries whatever it is told to, and says what came of it.
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


async def test_an_upload_may_compute_and_nothing_else(land: Estate, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("the answer")
    tmp_path.chmod(0o755)
    secret.chmod(0o644)
    land.write("curious", CURIOUS)
    gateway = land.system.gateway(0)
    code, said = land.omnibus("app", "register", "--upload", str(land.directory / "curious.py"))
    assert code == 0, said
    nats = urlsplit(land.system.state.nats_url)

    async def tries(what: str, argument: Any = None) -> dict[str, Any]:
        return dict(await land.said("curious", {"what": what, "argument": argument}))

    try:
        found = {
            "a file": await tries("read", str(secret)),
            "the passwords": await tries("read", "/etc/passwd"),
            "the gateway's environment": await tries("read", f"/proc/{gateway.pid}/environ"),
            "the state of the run": await tries("read", str(Path(land.system.state.directory) / "state.json")),
            "another app": await tries("read", str(land.directory / "curious.py")),
            "a directory": await tries("list", str(tmp_path)),
            "writing": await tries("write", "/tmp/was-here"),
            "the bus": await tries("connect", [nats.hostname, nats.port]),
            "listening": await tries("listen"),
            "the gateway": await tries("fetch", f"{land.system.url}/health"),
            "a program": await tries("run", ["/bin/true"]),
            "a shell": await tries("system", "true"),
            "a process": await tries("fork"),
            "a signal": await tries("kill", gateway.pid),
            "much memory": await tries("memory", 64 << 30),
        }
        environ = await tries("environ")
        home = await tries("directory")
        version = await tries("version")
    finally:
        await land.unregister("curious")
        await land.everywhere("curious", 0)

    refusals = {"PermissionError", "OSError", "FileNotFoundError", "URLError", "MemoryError", "gaierror"}
    assert {what: answer for what, answer in found.items() if answer.get("error") not in refusals} == {}
    assert environ == {"got": {}}
    assert home == {"got": "/"}
    assert "3." in version["got"]
    assert not Path("/tmp/was-here").exists()
    assert gateway.is_running()


async def test_an_upload_is_served_by_every_gateway_and_after_a_restart(land: Estate):
    land.write("sent", "async def serve(request):\n    return request\n")
    body = {"source": {"upload": (land.directory / "sent.py").read_text(), "name": "sent"}}
    (land.directory / "sent.py").unlink()  # the text alone is what is served

    answer = await land.ask("POST", "/v1/apps", body)
    try:
        await land.everywhere("sent", 1)
        said = [await land.said("sent", {"a": 1}, gateway) for gateway in (0, 1)]
        land.system.gateway(1).kill()
        await land.system.becomes_ready()
        await land.everywhere("sent", 1)
        again = await land.said("sent", {"a": 1}, 1)
    finally:
        await land.unregister("sent")
        await land.everywhere("sent", 0)

    assert answer.status_code == 201, answer.text
    assert said == [{"a": 1}] * 2
    assert again == {"a": 1}


async def test_an_upload_may_not_bring_code_for_executors(land: Estate):
    text = "from omnibus.task import TaskInput, TaskOutput, UnitTask\nclass A(UnitTask[TaskInput, TaskOutput]):\n"
    body = f"{text}    async def run(self, inputs): ...\nTASK = A()\nasync def serve(request): ...\n"

    refused = await land.ask("POST", "/v1/apps", {"source": {"upload": body, "name": "brings"}})

    assert refused.status_code == 400
    assert "cannot have its own unit tasks" in error(refused)["message"]
    assert "a" not in await land.tasks()


async def test_the_largest_upload_has_a_limit(land: Estate):
    refused = await land.ask("POST", "/v1/apps", {"source": {"upload": "#" * (2 << 20), "name": "large"}})

    assert (refused.status_code, error(refused)["code"]) == (413, "too_large")


async def test_an_upload_uses_a_model_of_the_plan(twins: Estate, tmp_path: Path):
    file = tmp_path / "asks.py"
    Estate(twins.system, tmp_path).write("asks", ASKS)

    code, said = twins.omnibus("app", "register", "--upload", str(file))
    try:
        answers = await twins.said("asks", "hello there")
        async with twins.system.client() as client:
            whole = await client.chat.completions.create(
                model=VL, messages=[{"role": "user", "content": "hello there"}], max_tokens=8, temperature=0
            )
    finally:
        await twins.unregister("asks")

    assert code == 0, said
    assert answers == [whole.choices[0].message.content] * 2
    assert json.dumps(answers) != '["", ""]'
