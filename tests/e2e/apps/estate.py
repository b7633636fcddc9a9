"""A running system and its apps, for an operator and a client."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.e2e.apps import texts
from tests.e2e.system import System, command_line

WITHIN = 60.0  # seconds for what was asked to be so everywhere


class AppSystem:
    """A system with apps; ``directory`` contains those to register."""

    def __init__(self, system: System, directory: Path) -> None:
        self.system = system
        self.directory = directory

    def write(self, module: str, text: str, **values: str) -> None:
        """Write an app; ``{name}`` in its text is replaced."""
        (self.directory / f"{module}.py").write_text(texts.fill_text(text, **values))

    # An operator

    async def ask(self, method: str, path: str, body: Any = None, gateway: int = 0) -> httpx.Response:
        """A request with the admin token."""
        token = {"authorization": f"Bearer {self.system.state.admin_token}"}
        async with self.system.http(gateway) as http:
            return await http.request(method, path, json=body, headers=token)

    async def register(self, module: str, gateway: int = 0, status: int = 201) -> dict[str, Any]:
        return await self._request_json("POST", "/v1/apps", {"source": make_source(module)}, gateway, status)

    async def update(self, name: str, module: str = "", gateway: int = 0, status: int = 200) -> dict[str, Any]:
        body = {"source": make_source(module)} if module else None
        return await self._request_json("PUT", f"/v1/apps/{name}", body, gateway, status)

    async def unregister(self, name: str, gateway: int = 0, status: int = 200) -> dict[str, Any]:
        return await self._request_json("DELETE", f"/v1/apps/{name}", None, gateway, status)

    async def _request_json(self, method: str, path: str, body: Any, gateway: int, status: int) -> dict[str, Any]:
        response = await self.ask(method, path, body, gateway)
        assert response.status_code == status, response.text
        return dict(response.json())

    async def show(self, name: str, gateway: int = 0) -> dict[str, Any] | None:
        """State of the app at a gateway, or None if unknown."""
        response = await self.ask("GET", f"/v1/apps/{name}", gateway=gateway)
        assert response.status_code in (200, 404), response.text
        return dict(response.json()) if response.status_code == 200 else None

    async def wait_for_version(self, name: str, version: int) -> None:
        """Wait until every gateway serves ``version`` of the app.

        0: until no gateway serves the app.
        """

        async def is_served() -> bool:
            apps = [await self.show(name, gateway) for gateway in range(len(self.system.urls))]
            if not version:
                return not any(apps)
            return all(app is not None and (app["worker"] or {}).get("version") == version for app in apps)

        await wait_until(is_served)

    @contextlib.asynccontextmanager
    async def app(self, name: str, text: str, **values: str) -> AsyncIterator[str]:
        """Serve an app of ``text`` at every gateway until the block ends."""
        self.write(name, text, **values)
        await self.register(name)
        try:
            await self.wait_for_version(name, 1)
            yield name
        finally:
            await self.unregister(name)
            await self.wait_for_version(name, 0)

    def run_cli(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of an ``omnibus`` command against this system."""
        process = self.system.command(*arguments)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    # A client

    async def invoke(self, name: str, body: Any, gateway: int = 0) -> httpx.Response:
        async with self.system.http(gateway) as http:
            return await http.post(f"/v1/apps/{name}/invoke", json=body)

    async def invoke_json(self, name: str, body: Any, gateway: int = 0) -> Any:
        """JSON of an answer, which must be a success."""
        response = await self.invoke(name, body, gateway)
        assert response.status_code == 200, response.text
        return response.json()

    @contextlib.asynccontextmanager
    async def send_repeatedly(self, name: str, body: Any, at_once: int = 2) -> AsyncIterator[Counter[str]]:
        """Send the same request repeatedly to every gateway; count the answers.

        Each request must succeed.
        """
        answers: Counter[str] = Counter()
        stop = asyncio.Event()

        async def send_requests(http: httpx.AsyncClient) -> None:
            while not stop.is_set():
                response = await http.post(f"/v1/apps/{name}/invoke", json=body)
                assert response.status_code == 200, response.text
                answers[response.text] += 1

        async with contextlib.AsyncExitStack() as stack:
            gateways = range(len(self.system.urls))
            clients = [await stack.enter_async_context(self.system.http(gateway)) for gateway in gateways]
            async with asyncio.TaskGroup() as group:
                for http in clients:
                    for _ in range(at_once):
                        group.create_task(send_requests(http))
                try:
                    yield answers
                finally:
                    stop.set()

    # What runs

    def executors(self, task: str = "") -> dict[str, psutil.Process]:
        """Processes of executors by id, or those of an app's unit task."""
        by_id = {}
        for process in self.system.processes():
            try:
                environ = process.environ()
            except psutil.Error:
                continue  # it is just ending
            if "OMNIBUS_EXECUTOR_ID" in environ and (not task or task in environ["OMNIBUS_EXECUTOR_TASKS"].split(",")):
                by_id[environ["OMNIBUS_EXECUTOR_ID"]] = process
        return by_id

    def workers(self, gateway: int) -> list[psutil.Process]:
        """The worker processes of a gateway."""
        return [one for one in self.system.gateway(gateway).children() if "omnibus.app.worker" in command_line(one)]

    async def tasks(self) -> dict[str, dict[str, Any]]:
        """``/v1/tasks`` by name."""
        return {task["name"]: task for task in (await self.ask("GET", "/v1/tasks")).json()["data"]}


def make_source(module: str) -> dict[str, str]:
    return {"module": module, "directory": "."}


async def wait_until(true: Callable[[], Awaitable[object]] | Callable[[], object], within: float = WITHIN) -> None:
    """Wait until ``true``."""
    async with asyncio.timeout(within):
        while True:
            result = true()
            if await result if isinstance(result, Awaitable) else result:
                return
            await asyncio.sleep(0.02)


def read_events(response: httpx.Response) -> list[Any]:
    """The data of each server-sent event; ``[DONE]`` is the last of a whole answer."""
    blocks = [block.removeprefix("data: ") for block in response.text.split("\n\n") if block]
    return [block if block == "[DONE]" else json.loads(block) for block in blocks]


def read_error(response: httpx.Response) -> dict[str, Any]:
    """Error of an answer, without internals."""
    assert "Traceback" not in response.text
    return dict(response.json()["error"])
