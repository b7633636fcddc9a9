"""The code under which a request is counted: client errors are not ours, and page no operator."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from omnibus.errors import BadMedia, ContextTooLong, OmnibusError, StageFailed
from omnibus.executor.runner import Job
from tests.unit.gateway.house import VL, ToyGateway, build_chat_body, make_image_part, make_text_part, start_toy_gateway
from tests.unit.gateway.http.test_exchange import ExchangeClient, ExchangeSpeaker
from tests.unit.gateway.wires import build_post, open_doorway
from tests.unit.sidecar.node import wait_until

pytestmark = pytest.mark.usefixtures("either_way")

ALERTS = Path(__file__).parents[3] / "deploy/observability/alerts.yml"
BAD: dict[str, tuple[str, Callable[[], OmnibusError]]] = {
    "a corrupt image": ("vision", lambda: BadMedia("the image is damaged")),
    "a long prompt": ("thinker", lambda: ContextTooLong("the prompt has 9 tokens")),
}


async def count_requests(home: ToyGateway) -> dict[str, float]:
    """Return the requests by code, of the toy model and none."""
    matches = re.findall(
        rf'^omnibus_requests_total\{{code="(\w+)",model="(?:{VL}|)"\}} (\S+)$',
        (await home.http.get("/metrics")).text,
        re.MULTILINE,
    )
    total: dict[str, float] = {}
    for code, value in matches:
        total[code] = total.get(code, 0.0) + float(value)
    return total


async def count_rises(home: ToyGateway, before: dict[str, float]) -> dict[str, float]:
    return {
        code: value - before.get(code, 0.0)
        for code, value in (await count_requests(home)).items()
        if value != before.get(code)
    }


def pages_operator(code: str) -> bool:
    """Return True if the operator is paged for requests of this code."""
    [rule] = [
        rule
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]
        if rule["alert"] == "OmnibusErrors"
    ]
    left_out = re.search(r'code!~"([^"]+)"', rule["expr"])
    assert left_out is not None
    return not re.fullmatch(left_out[1], code)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("component", "error"), BAD.values(), ids=BAD.keys())
async def test_what_an_executor_refuses_is_counted_as_the_clients_fault(
    home: ToyGateway, component: str, error: Callable[[], OmnibusError], stream: bool
):
    async def raise_error(job: Job) -> None:
        raise error()

    home.serve(VL)
    await home.executor(VL, "EL", "vision", "thinker", **{component: raise_error})
    before = await count_requests(home)

    await home.ask(content=[make_text_part("look"), make_image_part()], stream=stream)

    assert await count_rises(home, before) == {error().code: 1.0}
    assert not pages_operator(error().code)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_what_an_engine_fails_at_is_counted_as_ours(home: ToyGateway, stream: bool):
    async def raise_failure(job: Job) -> None:
        raise StageFailed("the engine broke", stage="thinker")

    home.serve(VL)
    await home.executor(VL, "EL", "vision", "thinker", thinker=raise_failure)
    before = await count_requests(home)

    await home.ask(stream=stream)

    assert await count_rises(home, before) == {"stage_failed": 1.0}
    assert pages_operator("stage_failed")


@pytest.mark.parametrize("calls_back", [False, True], ids=["watched", "called back"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_is_counted_as_that(tmp_path: Path, stream: bool, calls_back: bool):
    speaker = ExchangeSpeaker()
    async with start_toy_gateway(tmp_path) as home:
        home.serve(VL)
        await home.executor(VL, "EL", "vision", "thinker", thinker=speaker)
        before = await count_requests(home)
        client = ExchangeClient(build_chat_body(VL, "hi", stream=stream), calls_back)
        serving = asyncio.ensure_future(home.app(client.scope, client.receive, client.send))
        await asyncio.wait_for(speaker.spoke.wait(), 10)

        client.leave()

        await asyncio.wait_for(serving, 10)
        await home.emptied()
        assert await count_rises(home, before) == {"cancelled": 1.0}
        assert not pages_operator("cancelled")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_a_client_that_leaves_in_the_middle_of_its_body_is_counted_as_that(home: ToyGateway, path: str):
    before = await count_requests(home)
    async with open_doorway(home) as door:
        wire = await door.wire()
        await wire.send(build_post(path, 100, b"{"))
        await door.get()  # the gateway waits for the body by now

        wire.close()

        async def is_counted() -> bool:
            return bool(await count_rises(home, before))

        await wait_until(is_counted)
    assert await count_rises(home, before) == {"cancelled": 1.0}
