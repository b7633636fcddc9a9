"""Servers that a test kills and restarts while its event loop runs."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from omnibus.process.tuning import die_with_parent
from omnibus.up.infra import InfraServer

PATIENCE = 15.0  # seconds


class Owned:
    """A server that the test owns; it keeps its ports across restarts."""

    def __init__(self, server: InfraServer, without: str = "") -> None:
        self.server = server
        self._argv = [argument for argument in server.spec.argv if argument != without]
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self.launch()
        await self.wait_ready()

    async def wait_ready(self) -> None:
        assert self.server.spec.ready is not None
        await asyncio.wait_for(self.server.spec.ready(), PATIENCE)

    def launch(self) -> None:
        self._process = subprocess.Popen(self._argv, cwd=self.server.spec.cwd, preexec_fn=die_with_parent())

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@asynccontextmanager
async def run_owned_server(server: InfraServer, without: str = "") -> AsyncIterator[Owned]:
    """``server``, started without the argument ``without``, killed at the end."""
    owned_server = Owned(server, without)
    try:
        await owned_server.start()
        yield owned_server
    finally:
        owned_server.kill()
