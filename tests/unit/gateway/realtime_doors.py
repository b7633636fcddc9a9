"""Two gateways on real servers, for sessions that move between them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import websockets

from tests.unit.gateway.house import OMNI
from tests.unit.gateway.realtime_house import RealtimeCaller, connect_caller
from tests.unit.gateway.responses_house import ResponsesPair


class Doors(ResponsesPair):
    """Two gateways over one bus on real servers."""

    ports: tuple[int, int] = (0, 0)

    @asynccontextmanager
    async def opened(self, query: str = f"model={OMNI}&resumable=true") -> AsyncIterator[RealtimeCaller]:
        async with connect_caller(f"ws://localhost:{self.ports[0]}", query=query) as caller:
            yield caller

    @asynccontextmanager
    async def resumed(self, caller: RealtimeCaller, last: str = "", door: int = 1) -> AsyncIterator[RealtimeCaller]:
        token = caller.events[0]["session"]["resume_token"]
        last = last or caller.events[-1]["event_id"]
        url = f"ws://localhost:{self.ports[door]}/v1/realtime?resume={token}&last_event_id={last}"
        async with websockets.connect(url, max_size=None) as socket:
            yield RealtimeCaller(socket)
